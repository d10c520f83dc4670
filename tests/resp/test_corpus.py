"""The inputs that fuzzing found are replayed, and one that broke a promise breaks none any more."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from resp.decode import Decoder
from resp.tap.dialogue import Dialogue
from tests import guided, targets

_INPUTS = [
    pytest.param(target, data, id=f"{target}-{name}")
    for target in targets.TARGETS
    for name, data in targets.corpus(target).items()
]


@pytest.mark.parametrize(("target", "data"), _INPUTS)
def test_replay(target: str, data: bytes) -> None:
    """What reached a line by one way is tried by each, with the cuts that it came with."""
    targets.TARGETS[target](data)
    for way in range(targets.WAYS[target]):
        targets.TARGETS[target](bytes((way,)) + data[1:])


@pytest.mark.parametrize("target", targets.TARGETS)
def test_a_corpus_is_small(target: str) -> None:
    found = targets.corpus(target)
    assert 50 < len(found) < 300
    assert (targets.CORPUS / f"{target}.jsonl").stat().st_size < 300_000
    assert len(set(found.values())) == len(found)


def test_what_an_input_stands_for() -> None:
    head, cut, parts = targets.meaning(b"\x07\x01+OK\r\n\xf4\x02:1\r\n\xf4\x01\xf5\xf5_\r\n")
    assert head == 7
    assert parts == [b"+OK\r\n" * 3 + b":1\r\n" * 2, b"", b"_\r\n"]
    assert cut(b"abcde") == [b"ab", b"cd", b"e"]
    _, cut, parts = targets.meaning(b"\x00\x90" + b"x" * 1000 + b"\xf4\xff\xf4")
    assert len(parts[0]) <= 12 * 1024
    pieces = cut(parts[0])
    assert b"".join(pieces) == parts[0]
    assert pieces == cut(parts[0])
    assert targets.meaning(b"")[2] == [b""]


# A check must be able to fail.


def test_a_decoder_that_minds_the_cuts_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = Decoder.feed
    monkeypatch.setattr(Decoder, "feed", lambda self, data: feed(self, data.replace(b"ab", b"ba")))
    targets.decoder(b"\0\0+ab\r\n"[:5])
    with pytest.raises(AssertionError):
        targets.decoder(b"\0\0+ab\r\n")


@pytest.mark.parametrize("broken", ["_secrets_of", "_look_at_open_request"])
def test_a_dialogue_that_shows_a_secret_is_found(
    monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    wire = b"\x03\x04*1\r\n$4\r\nPING\r\n"
    targets.tap(wire)
    if broken == "_secrets_of":
        monkeypatch.setattr("resp.tap.dialogue._secrets_of", lambda frame, words: ((), []))
    else:
        monkeypatch.setattr(Dialogue, broken, lambda *arguments: None)
    with pytest.raises(AssertionError):
        targets.tap(wire)


# The command


def test_a_corpus_is_written_as_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(targets, "CORPUS", tmp_path)
    inputs = {"all bytes": bytes(range(256)), "none": b"", "text": b"\0\0+OK\r\n"}
    targets.keep("tap", inputs)
    assert targets.corpus("tap") == inputs
    assert list(targets.corpus("tap")) == ["none", "text", "all bytes"]
    assert all(map(json.loads, (tmp_path / "tap.jsonl").read_text().splitlines()))


def test_an_input_is_varied_as_resp() -> None:
    words = guided.tokens()
    assert b"*1\r\n$4\r\nPING\r\n" in words
    wire = b"\0\0*2\r\n$3\r\nGET\r\n$9\r\nk\r\n"
    mutator = guided.Mutator(words, lambda data, most: data[::-1])
    found = {mutator(wire, 60, seed) for seed in range(3000)}
    assert len(found) > 100
    assert all(len(data) <= 60 for data in found)
    assert wire[::-1] in found
    assert b"\0\0*2\r\n$3\r\nGET\r\n$1\r\nk\r\n" in found  # mended
    assert b"\0\0*3\r\n$3\r\nGET\r\n$9\r\nk\r\n" in found  # counted
    assert b"\0\0*2\r\n$3\r\nGET\r\n" in found  # shortened
    assert mutator(wire, 60, 7) == mutator(wire, 60, 7)


def test_nothing_is_an_input_too() -> None:
    mutator = guided.Mutator(guided.tokens(), lambda data, most: data)
    rng = random.Random(1)
    for _ in range(200):
        assert len(mutator(b"", 40, rng.randrange(2**32))) <= 40


@pytest.mark.parametrize("argv", [[], ["resp"], ["tap", "--minutes", "0"], ["tap", "--seed", "x"]])
def test_wrong_usage_is_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        guided.main(argv)
    assert left.value.code == 2
    assert "usage: python -m tests.guided" in capsys.readouterr().err


def test_without_atheris_it_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(guided, "find_spec", lambda name: None)
    assert guided.main(["decoder"]) == 2
    [told] = capsys.readouterr().err.splitlines()
    assert "atheris" in told
    assert "python -m tests.fuzz" in told


@pytest.fixture
def unmeasured(monkeypatch: pytest.MonkeyPatch) -> None:
    """What fuzzes is instrumented already; measured as well, it takes many times as long."""
    for name in ("COVERAGE_PROCESS_START", "COVERAGE_PROCESS_CONFIG"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("unmeasured")
def test_it_runs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("atheris", reason="there is none for this Python or system")
    monkeypatch.setattr(guided, "seeds", lambda target: [b"\0\0+OK\r\n", b"\1\0*1\r\n:1\r\n"])
    assert guided.main(["decoder", "--minutes", "0.01", "--seed", "1", "--json"]) == 0
    [told] = capsys.readouterr().out.splitlines()
    figures = json.loads(told)
    assert figures["target"] == "decoder"
    assert figures["executions"] > 0
    assert figures["coverage"] > 100


@pytest.mark.usefixtures("unmeasured")
def test_a_failure_is_a_line_for_the_corpus(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("atheris", reason="there is none for this Python or system")
    break_it = "from tests import guided, targets; targets.line = lambda exchange: chr(0)"
    monkeypatch.setattr(guided, "_CHILD", f"{break_it}; guided.fuzz()")
    monkeypatch.setattr(guided, "seeds", lambda target: [b"\2\0*1\r\n$4\r\nPING\r\n"])
    assert guided.main(["tap", "--minutes", "0.05", "--seed", "1"]) == 1
    out, err = capsys.readouterr()
    assert "FAILED: tap, seed 1" in err
    assert "AssertionError" in err
    [line] = out.splitlines()
    data = json.loads(line)["input"].encode("latin-1")
    targets.tap(data)
    monkeypatch.setattr(targets, "line", lambda exchange: "\0")
    with pytest.raises(AssertionError):
        targets.tap(data)

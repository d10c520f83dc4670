"""The byte table: exact, repeatable, and the same by four ways of counting."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import __main__ as bench
from bench import bytes as module
from bench.bytes import ClosedForm, bulk, bus_calls, frame, main, sized_script
from bench.figures import Size, silent
from emq import scripts
from emq.embedded import EmbeddedError
from resp import encode_command
from resp.tap import Cost, Exchange, Ledger

# Made anew with `python -m bench bytes --json > tests/data/bytes.json`, when a script has changed.
_EXPECTED: Final = Path(__file__).parents[1] / "data" / "bytes.json"

_sizes: Final = st.lists(st.integers(0, 2000), min_size=1, max_size=12)


def test_table_is_the_expected_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(_EXPECTED.read_text())


def test_every_script_of_the_bus_has_its_row() -> None:
    assert sorted(call.script.name for call in bus_calls()) == scripts.names()


@given(_sizes)
def test_closed_form_of_a_command_is_its_encoded_length(sizes: list[int]) -> None:
    assert frame(sizes) == len(encode_command(*(b"x" * size for size in sizes)))


@pytest.mark.parametrize("size", [0, 1, 9, 10, 99, 100, 999, 1000, 12345])
def test_closed_form_of_a_bulk(size: int) -> None:
    assert bulk(size) == len(b"$%d\r\n%b\r\n" % (size, b"x" * size))


@given(st.integers(0, 300), st.lists(st.integers(0, 40), max_size=3))
def test_break_even_is_the_first_call_that_pays(body: int, sizes: list[int]) -> None:
    form = ClosedForm.of(body, sizes, sizes)
    totals = {calls: form.totals(calls) for calls in range(1, 500)}
    pays = [calls for calls, total in totals.items() if total.evalsha < total.eval]
    pays_cold = [calls for calls, total in totals.items() if total.cold_evalsha < total.eval]
    for computed, found in ((form.break_even, pays), (form.break_even_cold, pays_cold)):
        assert found[:1] == ([computed] if computed is not None and computed in totals else [])


@pytest.mark.parametrize("body", [1, 7, 8, 9, 800])
def test_sized_script_has_its_size(body: int) -> None:
    assert len(sized_script(body).source) == body


def test_any_size_and_count_agree(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--calls", "1", "--body", "1"]) == 0
    out = capsys.readouterr().out
    assert "never" in out
    assert "to the byte" in out
    assert "# " in out


def test_a_count_that_is_off_by_one_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "bulk", lambda size: bulk(size) + (size == 40))
    assert main(["--calls", "3"]) == 1
    assert "NOT EQUAL" in capsys.readouterr().out


def test_a_byte_that_the_ledger_misses_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Forgetful(Ledger):
        def add(self, exchange: Exchange) -> None:
            if exchange.number % 100:
                super().add(exchange)

    monkeypatch.setattr(module, "Ledger", Forgetful)
    assert main(["--calls", "60"]) == 1
    out = capsys.readouterr().out
    assert "NOT EQUAL: written" in out
    assert "to the byte" not in out


def test_a_life_with_a_byte_too_many_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = Ledger.subject

    def generous(ledger: Ledger, name: str) -> Cost:
        cost = real(ledger, name)
        return cost._replace(up=cost.up + 1)

    monkeypatch.setattr(Ledger, "subject", generous)
    assert main(["--calls", "1"]) == 1
    assert "enqueue, claim, complete: NOT EQUAL" in capsys.readouterr().out


def test_kinds_of_a_call_add_up_and_tell_the_payload() -> None:
    rows = {row["script"]: row for row in json.loads(_EXPECTED.read_text())["rows"]}
    for row in rows.values():
        for verb, size in row["per_call"].items():
            assert sum(row["kinds"][verb].values()) == size
    kinds = rows["enqueue"]["kinds"]
    assert kinds["evalsha"]["payloads"] == len(module._PAYLOAD)
    assert kinds["evalsha"]["digests"] == 40
    assert kinds["eval"]["script bodies"] == kinds["load"]["script bodies"] > 0


def test_a_life_is_three_commands_or_two() -> None:
    three, two = json.loads(_EXPECTED.read_text())["lives"]
    assert (three["commands"], three["round_trips"]) == (3, 3)
    assert (two["commands"], two["round_trips"]) == (2, 2)
    assert [step["name"] for step in three["steps"]] == ["enqueue", "claim", "complete"]
    for life in (three, two):
        for way in ("up", "down"):
            assert sum(step[way] for step in life["steps"]) == life[way]
    # The two of its payload, and no more than 400 bytes beside it.
    for life in (three, two):
        assert life["up"] + life["down"] - 2 * life["payload"] <= 400


def test_chart_is_drawn_and_is_repeatable(tmp_path: Path) -> None:
    rows, _ = module.measure(10, 800)
    for name in ("one.svg", "two.svg"):
        module.chart(rows, 10, str(tmp_path / name))

    drawn = (tmp_path / "one.svg").read_bytes()
    assert drawn == (tmp_path / "two.svg").read_bytes()
    texts = " ".join(ET.fromstring(drawn).itertext())
    for expected in (
        "EVAL every time",
        "EVALSHA after one load",
        "complete_and_claim",
        "bytes sent",
    ):
        assert expected in texts


def test_chart_that_cannot_be_written_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--calls", "1", "--svg", str(tmp_path / "nowhere" / "chart.svg")]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_suite_tells_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CALLS", 3)
    told = module.suite(Size(), silent)
    found = {(one.section, one.work, one.contender): one.median for one in told.figures}
    expected = json.loads(_EXPECTED.read_text())
    for row in expected["rows"]:
        once = row["per_call"]
        warm = once["load"] + 3 * once["evalsha"]
        for name, total in (
            ("EVAL", 3 * once["eval"]),
            ("EVALSHA", warm),
            ("cold EVALSHA", warm + once["evalsha"]),
        ):
            assert found[module.BOTH_WAYS, row["script"], name] == total
    for row in expected["rows"][1:]:
        for kind, count in row["kinds"]["evalsha"].items():
            assert found[module.BY_KIND, row["script"], kind] == count
    for life in expected["lives"]:
        for way in ("up", "down"):
            assert found["a job's life", f"bytes {way}", ", ".join(life["verbs"])] == life[way]
    assert [verdict.got for verdict in told.verdicts] == [0]


def test_without_a_server_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(calls: int, body: int) -> None:
        raise EmbeddedError("install it")

    monkeypatch.setattr(module, "measure", fail)
    assert main([]) == 3
    assert "install it" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["--calls", "0"], ["--body", "0"], ["--body", "x"], ["more"]])
def test_wrong_usage_is_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(argv)
    assert left.value.code == 2


def test_benchmarks_are_listed_and_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 2
    assert bench.main(["nothing"]) == 2
    assert "wire" in capsys.readouterr().err
    assert bench.main(["--help"]) == 0
    assert "bytes" in capsys.readouterr().out
    assert bench.main(["bytes", "--calls", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calls"] == 1

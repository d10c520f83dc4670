"""The page as text: what is in it, what can not get out of it, and what is left out."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from resp.tap import page
from resp.tap.frames import parse, spans
from resp.tap.ledger import KINDS, Ledger

from .browser import Talk, many

_HOSTILE = "</script><script>alert(1)</script><!--<img src=x onerror=alert(2)>\u2028\u202e&\"'"


class _Reader(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: dict[str, str] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        self._open = tag + (dict(attributes).get("id") or "")

    def handle_data(self, data: str) -> None:
        self.inside[self._open] = self.inside.get(self._open, "") + data

    def handle_endtag(self, tag: str) -> None:
        self._open = ""


def document(text: str) -> Any:
    return json.loads(_Reader(text).inside["scriptdata"])


def test_a_page_refers_to_nothing_outside_of_it() -> None:
    text = page.render(many(10))

    for tag, attributes in _Reader(text).tags:
        assert tag not in {"link", "img", "iframe", "object", "embed", "base", "form", "a"} or (
            tag == "form" and attributes == {"method": "dialog"}
        )
        assert not {"src", "href", "srcset", "action", "style"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    without_data = re.sub(r'id="data">.*?</script>', "", text, flags=re.DOTALL)
    assert "url(" not in without_data
    assert "@import" not in without_data
    assert not re.search(r"https?://", without_data)


def test_its_policy_allows_its_own_script_and_style_alone() -> None:
    reader = _Reader(page.render(many(3)))

    [policy] = [
        attributes["content"] or ""
        for tag, attributes in reader.tags
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    for rule, tag in (("script-src", "script"), ("style-src", "style")):
        digest = base64.b64encode(hashlib.sha256(reader.inside[tag].encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert rules["require-trusted-types-for"] == "'script'"
    assert rules["base-uri"] == rules["form-action"] == rules["trusted-types"] == "'none'"


def test_the_script_makes_no_markup_of_text() -> None:
    script = _Reader(page.render([])).inside["script"]

    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert way not in script
    assert "fetch(" not in script
    assert "XMLHttpRequest" not in script


def test_what_peers_say_can_not_end_the_data() -> None:
    talk = Talk()
    talk.ask("SET", _HOSTILE, _HOSTILE, reply=b"-ERR " + _HOSTILE.encode() + b"\r\n")
    talk.ask(
        "EVAL", f"-- {_HOSTILE}\n-- KEYS[1] {_HOSTILE} hash\nreturn 1", 1, "k", reply=b":1\r\n"
    )
    text = page.render(talk.end(), title=_HOSTILE)

    reader = _Reader(text)
    assert [tag for tag, _ in reader.tags].count("script") == 2
    assert "img" not in [tag for tag, _ in reader.tags]
    assert reader.inside["title"] == _HOSTILE
    data = reader.inside["scriptdata"]
    assert not set("<>&\u2028\u2029") & set(data)
    assert json.loads(data)["title"] == _HOSTILE


def test_a_title_is_never_a_place_for_another_part() -> None:
    assert "%%SCRIPT%%" in page.render([], title="%%SCRIPT%%")


def test_data_holds_every_byte_and_every_token() -> None:
    talk = Talk()
    talk.ask("SET", "k", b"\x00\xff\r\n", reply=b"+OK\r\n")
    talk.ask("LRANGE", "l", 0, -1, reply=b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n")
    talk.receive(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n")
    exchanges = talk.end()
    found = document(page.render(exchanges))

    wire = b"".join(
        frame.data
        for exchange in exchanges
        for frame in ((exchange.request,) if exchange.request else ()) + exchange.replies
    )
    assert base64.b64decode(found["data"]) == wire
    assert [found["kinds"][kind] for kind in found["kind"]] == ["reply", "reply", "push"]

    column = iter(found["frames"])
    for exchange in exchanges:
        frames = ((exchange.request,) if exchange.request else ()) + exchange.replies
        assert next(column) == 2 * len(exchange.replies) + (exchange.request is not None)
        for frame in frames:
            at, _, size, kept, shape = (next(column) for _ in range(5))
            assert (at, size, kept) == (frame.at, frame.size, len(frame.data))
            flat = found["shapes"][shape]
            told = [
                (flat[n + 1], found["parts"][flat[n + 2]][:3], flat[n])
                for n in range(0, len(flat), 3)
            ]
            expected = []
            work = [
                (node, 0) for node in reversed(parse(frame.data, inline=frame is exchange.request))
            ]
            assert sum(span.end - span.start for node, _ in work for span in spans(node)) == size
            while work:
                node, depth = work.pop()
                lengths = [node.body - node.at, node.stop - node.body, node.end - node.stop]
                expected.append((node.at, lengths, depth))
                work += [(item, depth + 1) for item in reversed(node.items)]
            assert told == expected
    assert next(column, None) is None


def test_costs_add_up_to_the_ledger() -> None:
    exchanges = many(50)
    ledger = Ledger()
    for exchange in exchanges:
        ledger.add(exchange)
    found = document(page.render(exchanges, lenses=[]))

    sums = {kind: [0, 0] for kind in KINDS}
    for number in found["cost"]:
        flat = found["costs"][number]
        for at in range(0, len(flat), 3):
            sums[found["text"][flat[at]]][0] += flat[at + 1]
            sums[found["text"][flat[at]]][1] += flat[at + 2]
    assert {kind: tuple(both) for kind, both in sums.items()} == ledger.by_kind


def test_a_script_has_its_name_before_it_is_loaded() -> None:
    source = "-- claim: take one\n-- KEYS[1] row hash\nreturn 1"
    sha = hashlib.sha1(source.encode()).hexdigest()
    talk = Talk()
    talk.ask("EVALSHA", sha, 1, "k", reply=b"-NOSCRIPT No matching script.\r\n")
    talk.ask("SCRIPT", "LOAD", source, reply=b"$40\r\n" + sha.encode() + b"\r\n")
    found = document(page.render(talk.end(), lenses=[]))

    assert [found["text"][number] for number in found["script"]] == ["claim", "claim"]


def test_the_newest_stay() -> None:
    kept = page.Page(limit=3, lenses=[])
    exchanges = many(10)
    for exchange in exchanges:
        kept.add(exchange)

    assert (len(kept), kept.left_out) == (3, 7)
    found = document(kept.render())
    assert found["left_out"] == 7
    assert sorted(found["number"]) == sorted(one.number for one in exchanges[-3:])


def test_bytes_are_bounded_too() -> None:
    talk = Talk()
    for _ in range(10):
        talk.ask("SET", "k", b"x" * 1000, reply=b"+OK\r\n")
    kept = page.Page(max_bytes=3500, lenses=[])
    for exchange in talk.end():
        kept.add(exchange)

    assert (len(kept), kept.left_out) == (3, 7)
    assert len(base64.b64decode(document(kept.render())["data"])) <= 3500


def test_a_long_frame_is_cut_and_says_its_size() -> None:
    talk = Talk()
    talk.ask("GET", "k", reply=b"$5000\r\n" + b"x" * 5000 + b"\r\n")
    kept = page.Page(keep=100, lenses=[])
    kept.add(talk.end()[0])
    found = document(kept.render())

    assert found["frames"][8:10] == [5009, 100]


@pytest.mark.parametrize("wrong", ["limit", "max_bytes", "keep"])
def test_bounds_are_at_least_one(wrong: str) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        page.Page(**dict[str, Any]({wrong: 0}))


def test_writing_replaces_the_file_whole(tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    target.write_text("before")

    assert page.write(target, many(5), title="t") == 5
    assert document(target.read_text(encoding="utf-8"))["title"] == "t"
    assert list(tmp_path.iterdir()) == [target]


def test_what_can_not_be_written_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.html"
    target.write_text("before")

    def refuse(self: Path, target: Path) -> Path:
        raise OSError("no room")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(OSError, match="no room"):
        page.write(target, many(1))
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(OSError, match=r"absent"):
        page.write(tmp_path / "absent" / "out.html", [])


def test_a_link_stays_one_and_what_is_no_file_is_written_to(tmp_path: Path) -> None:
    kept = page.Page(lenses=[])
    target, link, pipe = tmp_path / "a.html", tmp_path / "link", tmp_path / "pipe"
    target.write_text("before")
    link.symlink_to(target)
    kept.write(link)
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8") == kept.render()

    os.mkfifo(pipe)
    came: list[str] = []
    reader = threading.Thread(
        target=lambda: came.append(pipe.read_text(encoding="utf-8")), daemon=True
    )
    reader.start()
    kept.write(pipe)
    assert pipe.is_fifo()
    reader.join(30)
    assert came == [kept.render()]

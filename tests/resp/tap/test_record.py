"""The tap as a keeper: its bounds, what is paired, what goes to a file, and what a fault does."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp import AddressError, Tap, connect, encode_command
from resp.tap import recording
from resp.tap.dialogue import Exchange
from resp.tap.record import Record

from ..conftest import Shell

ROOT: Final = Path(__file__).parents[3]


def ask(tap: Tap, connection: int, word: Any, reply: bytes | None = None) -> None:
    tap.write(connection, encode_command("ECHO", word))
    data = str(word).encode()
    tap.read(connection, b"$%d\r\n%b\r\n" % (len(data), data) if reply is None else reply)


def paired(exchange: Exchange) -> bool:
    """Whether an ECHO has its own reply."""
    assert exchange.request is not None
    assert exchange.request.words is not None
    word = exchange.request.words[1]
    return exchange.replies[0].data == b"$%d\r\n%b\r\n" % (len(word), word)


def test_bounded_in_bytes() -> None:
    tap = Tap(max_bytes=100)
    number = tap.connection()
    for _ in range(20):
        tap.write(number, b"*1\r\n$4\r\nPING\r\n")
        assert sum(len(record.data) for record in tap) <= 100
    assert len(tap) == 7
    tap.write(number, b"x" * 101)
    assert list(tap) == []
    tap.write(number, b"x" * 100)
    assert len(tap) == 1


def test_bounds_that_keep_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_bytes"):
        Tap(max_bytes=0)
    with pytest.raises(ValueError, match="capacity"):
        Tap(-1, file=tmp_path / "a")
    with Tap(0, file=tmp_path / "a") as tap:
        ask(tap, tap.connection(), "x")
        assert len(tap) == 0
    assert len([item for item in recording.read(tmp_path / "a") if isinstance(item, Record)]) == 2


@given(
    st.lists(st.tuples(st.sampled_from("wr"), st.integers(0, 1), st.integers(1, 60)), max_size=60),
    st.integers(1, 12),
)
def test_what_is_left_is_paired_rightly(steps: list[tuple[str, int, int]], capacity: int) -> None:
    """A ring that starts anywhere, in the middle of frames, answers the newest exchanges of all."""
    sent = b"".join(encode_command("ECHO", number) for number in range(40))
    read = b"".join(b"$%d\r\n%d\r\n" % (len(str(number)), number) for number in range(40))
    streams = {(way, one): sent if way == "w" else read for way in "wr" for one in (0, 1)}
    ring, whole = Tap(capacity), Tap()
    numbers = [(ring.connection(), whole.connection()) for _ in range(2)]
    asked = [0, 0]
    for way, one, size in steps:
        if way == "r":  # no reply before its command
            size = min(
                size, max(0, (asked[one] // 23 - 1) * 6 - (len(read) - len(streams["r", one])))
            )
        else:
            asked[one] += size
        chunk, streams[way, one] = streams[way, one][:size], streams[way, one][size:]
        if not chunk:
            continue
        for tap, number in zip((ring, whole), numbers[one], strict=True):
            (tap.write if way == "w" else tap.read)(number, chunk)
    every = [(e.connection, e.number, e.kind, e.name) for e in whole.exchanges()]
    left = [(e.connection, e.number, e.kind, e.name) for e in ring.exchanges()]
    assert set(left) <= set(every)
    assert {e for e in every if e[2] == "lost"} <= set(left)
    assert all(paired(e) for e in ring.exchanges() if e.kind == "reply")


def test_clear_keeps_what_is_in_flight() -> None:
    tap = Tap()
    number = tap.connection()
    tap.write(number, encode_command("ECHO", "late"))
    tap.clear()
    tap.read(number, b"$4\r\nlate\r\n")
    [exchange] = tap.exchanges()
    assert (exchange.kind, paired(exchange)) == ("reply", True)


def test_what_is_held_of_closed_connections_goes() -> None:
    tap = Tap(4)
    for _ in range(50):
        number = tap.connection()
        ask(tap, number, "x")
        tap.closed(number)
    assert [len(tap._connections), len(tap._held), len(tap._gone)] == [0, 2, 2]
    assert len(tap._bases) <= 2
    tap.write(number, b"what was forgotten may say that this is a password")
    assert len(tap) == 4
    tap.clear()
    assert not tap._bases
    assert not tap._gone


def test_a_file_has_what_the_tap_saw(shell: Shell, server: Any, tmp_path: Path) -> None:
    with Tap(file=tmp_path / "a") as tap:
        connector = shell.connect(server.url, tap=tap)
        connector.pipeline([("ECHO", number) for number in range(50)])
        connector.command("AUTH", "default", "hunter2")
        seen = list(tap)
    connector.command("PING")  # recorded no more
    assert list(tap) == seen
    found = [item for item in recording.read(tmp_path / "a") if isinstance(item, Record)]
    assert found == seen
    assert b"hunter2" not in (tmp_path / "a").read_bytes()
    assert list(recording.exchanges(tmp_path / "a")) == list(tap.exchanges())


def test_taps_share_a_writer_that_they_do_not_close(tmp_path: Path) -> None:
    with recording.Writer(tmp_path / "a") as writer:
        for _ in range(2):
            with Tap(file=writer) as tap:
                ask(tap, tap.connection("h:1", "client"), "x")
    items = list(recording.read(tmp_path / "a"))
    assert [item.connection for item in items if isinstance(item, recording.Opened)] == [1, 2]


def test_payloads_are_masked_if_asked() -> None:
    tap = Tap(payloads=False)
    number = tap.connection()
    tap.write(number, encode_command("SET", "name", "precious"))
    tap.read(number, b"+OK\r\n")
    tap.write(number, encode_command("GET", "name"))
    tap.read(number, b"$8\r\nprecious\r\n")
    data = b"".join(record.data for record in tap)
    assert b"precious" not in data
    assert data.count(b"********") == 2
    assert b"name" in data


def test_many_threads(tmp_path: Path) -> None:
    with Tap(capacity=100, file=tmp_path / "a") as tap:

        def work(name: int) -> None:
            number = tap.connection()
            for n in range(200):
                ask(tap, number, f"{name}.{n}")

        threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tap.error is None
        assert len(tap) == 100
        assert all(map(paired, tap.exchanges()))
    found = list(recording.exchanges(tmp_path / "a"))
    assert len(found) == 800
    assert all(map(paired, found))


# Faults.


def failing(tap: Tap, monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> list[Any]:
    told: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", told.append)
    act()
    return told


def test_a_full_disk_harms_no_connector(
    shell: Shell, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tap = Tap(file=tmp_path / "a")
    connector = shell.connect(server.url, tap=tap)
    before = len(tap)
    writer = tap._writer
    assert writer is not None
    full = os.open("/dev/full", os.O_WRONLY)
    spare, writer._fd = writer._fd, full
    told = failing(
        tap, monkeypatch, lambda: [connector.command("ECHO", number) for number in range(3)]
    )
    assert connector.command("ECHO", "alive") == b"alive"
    assert isinstance(tap.error, OSError)
    assert len(told) == 1
    assert told[0].exc_value.__cause__ is tap.error
    assert len(tap) == before
    tap.close()
    os.close(spare)


def test_what_cannot_be_masked_is_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    tap = Tap()
    number = tap.connection()

    def broken(data: bytes, time_ns: int) -> None:
        raise RecursionError("broken")

    monkeypatch.setattr(tap._connections[number].dialogue, "sent", broken)
    told = failing(tap, monkeypatch, lambda: tap.write(number, encode_command("AUTH", "hunter2")))
    tap.write(number, encode_command("AUTH", "hunter2"))
    assert (list(tap), len(told), type(tap.error)) == ([], 1, RecursionError)


def test_an_interrupt_ends_the_recording_of_its_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What came before is unknown from then on, and so is what is a password."""
    tap = Tap()
    one, two = tap.connection(), tap.connection()

    def interrupted(data: bytes, time_ns: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(tap._connections[one].dialogue, "sent", interrupted)
        with pytest.raises(KeyboardInterrupt):
            tap.write(one, encode_command("AUTH", "hunter2"))
    tap.write(one, b"hunter2")
    ask(tap, two, "x")
    assert {record.connection for record in tap} == {two}
    assert tap.error is None


def test_a_forked_child_goes_on(tmp_path: Path) -> None:
    """Also if a thread holds the locks that moment."""
    tap = Tap(file=tmp_path / "a")
    mine = tap.connection()
    tap.write(mine, encode_command("ECHO", "parent"))
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with tap._lock, tap._connections[mine].lock:
            held.set()
            done.wait(30)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(30)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            ask(tap, tap.connection(), "child")
            tap.write(mine, b"not the parent's")
            status = 0 if tap.error is None else 2
            tap.close()
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    done.set()
    thread.join()
    tap.read(mine, b"$6\r\nparent\r\n")
    tap.close()
    found = list(recording.exchanges(tmp_path / "a"))
    assert [(e.connection, e.kind) for e in found] == [(2, "reply"), (1, "reply")]
    assert all(map(paired, found))


def test_importing_resp_loads_no_views() -> None:
    code = "import sys, resp; print(*(name for name in sys.modules if name.startswith('resp.tap')))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=ROOT
    ).stdout.split()
    light = {"chunk", "record", "secrets", "dialogue", "scan", "frames"}
    assert set(loaded) <= {"resp.tap", *(f"resp.tap.{name}" for name in light)}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"capacity": "9"}, "capacity is a whole number, not str"),
        ({"capacity": True}, "capacity is a whole number, not bool"),
        ({"max_bytes": 1.5}, "max_bytes is a whole number, not float"),
        ({"file": 3}, "file is a path or a Writer, not int"),
        ({"file": b"x"}, "file is a path or a Writer, not bytes"),
    ],
)
def test_arguments_of_other_types_are_refused(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(TypeError, match=told):
        Tap(**arguments)


@pytest.mark.parametrize("wrong", [-1, "x", True, 1.5])
def test_a_number_that_is_none_is_refused_at_once(wrong: Any) -> None:
    from resp.tap import Dialogue, Ledger, hexdump, tree

    dialogue = Dialogue()
    dialogue.sent(b"*1\r\n$4\r\nPING\r\n", 1)
    _, [exchange] = dialogue.received(b"+PONG\r\n", 2)
    calls: dict[str, Callable[[], object]] = {
        "capacity": lambda: Tap(wrong),
        "max_bytes": lambda: Tap(max_bytes=wrong),
        "most": lambda: Ledger(most=wrong),
        "most ": lambda: Ledger().render(most=wrong),
        "most  ": lambda: Ledger().as_json(most=wrong),
        "keep": lambda: Dialogue(keep=wrong),
        "connection": lambda: Dialogue(wrong),
        "limit": lambda: tree(exchange, limit=wrong),
        "limit ": lambda: hexdump(exchange, limit=wrong),
    }
    for name, call in calls.items():
        with pytest.raises(ValueError if wrong == -1 else TypeError, match=f"^{name.strip()} "):
            call()
    with pytest.raises(TypeError, match=r"^conceal is a function"):
        Dialogue(conceal=wrong)


def test_the_class_is_no_tap_and_what_is_lazy_is_listed() -> None:
    from resp import tap

    with pytest.raises(AddressError, match=r"tap=Tap\(\)"):
        connect("valkey://127.0.0.1", tap=Tap)
    assert set(tap.__all__) <= set(dir(tap))

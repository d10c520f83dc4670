"""The version fence: as a plan, reply by reply, and on a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

import emq
from emq.errors import FenceError
from emq.fence import WIRE_VERSION, fence
from emq.keyspace import VERSION_KEY
from resp import ErrorReply, ServerError

GET = ("GET", VERSION_KEY)
SET_NX = ("SET", VERSION_KEY, WIRE_VERSION, "NX")
OURS = WIRE_VERSION.encode()


def play(replies: list[Any]) -> list[Any]:
    """Run one check against scripted replies; answer the commands that it said."""
    plan = fence(WIRE_VERSION)()
    said = [next(plan)]
    for reply in replies[:-1]:
        said.append(plan.send(reply))
    with pytest.raises(StopIteration) as end:
        plan.send(replies[-1])
    assert end.value.value is None
    return said


def test_the_wire_version_is_the_newest_of_the_bus() -> None:
    assert WIRE_VERSION == "echomq:3.0.0"


def test_equal_is_one_read() -> None:
    assert play([OURS]) == [GET]


def test_an_unclaimed_server_is_claimed_and_read_again() -> None:
    assert play([None, "OK", OURS]) == [GET, SET_NX, GET]


def test_losing_the_race_to_a_peer_of_the_same_version_is_no_loss() -> None:
    assert play([None, None, OURS]) == [GET, SET_NX, GET]


@pytest.mark.parametrize(
    ("replies", "found"),
    [
        ([b"echomq:2.4.2"], b"echomq:2.4.2"),
        ([b"echomq:3.0.0 "], b"echomq:3.0.0 "),
        ([b""], b""),
        ([b"\xff\x00"], b"\xff\x00"),
        ([None, None, b"echomq:2.4.2"], b"echomq:2.4.2"),
        ([None, "OK", None], None),
    ],
)
def test_another_version_is_refused(replies: list[Any], found: bytes | None) -> None:
    with pytest.raises(FenceError) as caught:
        play(replies)
    assert caught.value.found == found
    assert caught.value.expected == WIRE_VERSION


@pytest.mark.parametrize(
    ("replies", "command"),
    [
        ([ErrorReply("NOPERM", "NOPERM no permission")], "GET"),
        ([None, ErrorReply("READONLY", "READONLY a replica")], "SET"),
        ([None, "OK", ErrorReply("LOADING", "LOADING")], "GET"),
    ],
)
def test_an_error_reply_is_no_verdict(replies: list[Any], command: str) -> None:
    with pytest.raises(ServerError) as caught:
        play(replies)
    assert caught.value.command == command
    assert caught.value.code == replies[-1].code


def test_every_connect_gets_a_fresh_plan() -> None:
    on_connect = fence("echomq:9")
    first, second = on_connect(), on_connect()

    assert first is not second
    assert next(first) == next(second) == GET
    first.close()
    with pytest.raises(StopIteration):
        second.send(b"echomq:9")


@pytest.mark.parametrize(
    ("wire_version", "kind"),
    [(5, TypeError), (b"echomq:3.0.0", TypeError), ("", ValueError), ("4111 \ud800", ValueError)],
)
def test_a_version_that_is_none_is_refused_undialled(wire_version: Any, kind: Any) -> None:
    nowhere = "unix:///nowhere"  # dialling it would raise ConnectFailed

    async def dial() -> None:
        await emq.connect_async(nowhere, wire_version=wire_version)

    for call in (
        lambda: emq.connect(nowhere, wire_version=wire_version),
        lambda: asyncio.run(dial()),
    ):
        with pytest.raises(kind, match="wire_version is") as caught:
            call()
        assert type(caught.value) is kind
        assert "4111" not in repr(caught.value)
        assert caught.value.__context__ is None


def test_a_look_claims_nothing() -> None:
    look = fence(claim=False)()
    assert next(look) == GET
    with pytest.raises(StopIteration):
        look.send(None)
    look = fence(claim=False)()
    next(look)
    with pytest.raises(FenceError):
        look.send(b"echomq:2.4.2")


@pytest.fixture
def version(server: Any) -> Iterator[Any]:
    """The server's admin client; the version key is as it was afterwards."""
    before = server.admin.get(VERSION_KEY)
    server.admin.delete(VERSION_KEY)
    yield server.admin
    if before is None:
        server.admin.delete(VERSION_KEY)
    else:
        server.admin.set(VERSION_KEY, before)


@pytest.mark.parametrize("protocol", [2, 3])
def test_connecting_claims_the_version(server: Any, version: Any, protocol: int) -> None:
    with emq.connect(server.url, protocol=protocol) as connector:
        assert connector.command("GET", VERSION_KEY) == OURS
    assert version.get(VERSION_KEY) == OURS
    with emq.connect(server.url, protocol=protocol) as connector:
        assert connector.command("PING") == "PONG"


@pytest.mark.parametrize("protocol", [2, 3])
def test_another_version_keeps_us_out(server: Any, version: Any, protocol: int) -> None:
    version.set(VERSION_KEY, "echomq:2.4.2")

    with pytest.raises(FenceError) as caught:
        emq.connect(server.url, protocol=protocol)
    assert caught.value.found == b"echomq:2.4.2"
    assert caught.value.expected == "echomq:3.0.0"
    assert version.get(VERSION_KEY) == b"echomq:2.4.2"

    async def dial() -> None:
        await emq.connect_async(server.url, protocol=protocol)

    with pytest.raises(FenceError):
        asyncio.run(dial())


def test_the_version_can_be_chosen_and_the_fence_left_out(server: Any, version: Any) -> None:
    with emq.connect(server.url, wire_version=None) as connector:
        assert connector.command("GET", VERSION_KEY) is None
    with emq.connect(server.url, wire_version="echomq:2.4.2"):
        assert version.get(VERSION_KEY) == b"echomq:2.4.2"
    with emq.connect(server.url, wire_version=None) as connector:
        assert connector.command("PING") == "PONG"


def test_the_fence_stands_on_every_reconnect(server: Any, version: Any) -> None:
    with emq.connect(server.url) as connector:
        number = connector.command("CLIENT", "ID")
        version.set(VERSION_KEY, "echomq:2.4.2")
        version.execute_command("CLIENT", "KILL", "ID", number)

        with pytest.raises(FenceError) as caught:
            _until_reconnected(connector)
        assert caught.value.found == b"echomq:2.4.2"


def _until_reconnected(connector: Any) -> None:
    from resp import ConnectionLost

    try:
        connector.command("PING")
    except ConnectionLost:
        connector.command("PING")

"""Connecting is resp's connecting, with the fence in front."""

from __future__ import annotations

from typing import Any

import pytest

import emq
from emq.errors import FenceError
from resp import Plan


def my_own() -> Plan[None]:
    yield ("CLIENT", "SETNAME", "mine")


def test_fence_stands_in_front(server: Any) -> None:
    with emq.connect(server.url) as connector:
        assert connector.command("GET", "{emq}:version") == emq.WIRE_VERSION.encode()
    with pytest.raises(FenceError):
        emq.connect(server.url, wire_version="echomq:2.4.2")


def test_options_reach_the_connector(server: Any) -> None:
    with emq.connect(server.url, client_name="here", protocol=2) as connector:
        assert connector.command("CLIENT", "GETNAME") == b"here"


def test_without_a_fence_on_connect_is_the_callers(server: Any) -> None:
    with emq.connect(server.url, wire_version=None, on_connect=my_own) as connector:
        assert connector.command("CLIENT", "GETNAME") == b"mine"


def test_a_fence_and_an_on_connect_exclude_each_other(server: Any) -> None:
    with pytest.raises(TypeError, match="wire_version=None"):
        emq.connect(server.url, on_connect=my_own)


def test_async_too(server: Any) -> None:
    import asyncio

    async def go() -> None:
        with pytest.raises(FenceError):
            await emq.connect_async(server.url, wire_version="echomq:2.4.2")
        with pytest.raises(TypeError, match="wire_version=None"):
            await emq.connect_async(server.url, on_connect=my_own)
        async with await emq.connect_async(server.url) as connector:
            assert await connector.command("PING") == "PONG"

    asyncio.run(go())

"""What `pytest bench` needs: a private server, filled with what is asked for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from emq.embedded import Embedded

from .works import fill


@pytest.fixture(scope="session")
def server() -> Iterator[Embedded]:
    with Embedded(tcp=True) as server:
        fill(server)
        yield server

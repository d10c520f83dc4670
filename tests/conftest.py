"""Servers and names that tests share.

One private Valkey serves the whole run. It is reached through the code under test by its URLs, and
behind the code's back by `server.admin`, a redis-py client.
"""

from __future__ import annotations

import itertools
import os
import signal
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest
import redis
from hypothesis import HealthCheck, settings

# A shared two-core machine stalls now and then: a deadline on one example says nothing about code.
settings.register_profile("dev", deadline=None, max_examples=30)
settings.register_profile(
    "ci",
    deadline=None,
    max_examples=50,
    derandomize=True,  # one tree, one verdict; `python -m tests.fuzz` looks for new failures
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "long", settings.get_profile("ci"), max_examples=10_000, derandomize=False
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if "CI" in os.environ else "dev")
)

# A run in the background of a shell without job control starts with Ctrl-C ignored, and so would
# all processes that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_numbers: Final = itertools.count(1)

# Files that take long come first, or a worker is left alone with one of them at the end.
_LONG: Final = (
    "resp/test_decode_properties",
    "resp/tap/test_dialogue",
    "emq/test_chaos",
    "bench/test_bytes",
    "bench/test_fuzz",
    "emq/test_explore",
    "emq/test_matrix",
    "test_proxy",
    "emq/test_consumer",
    "emq/test_aio_consumer",
    "emq/test_consumer_faults",
    "resp/tap/test_page_browser",
    "resp/tap/test_views",
    "resp/tap/test_recording",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {f"tests/{name}.py": place for place, name in enumerate(_LONG)}
    items.sort(key=lambda item: places.get(item.nodeid.partition("::")[0], len(places)))


@dataclass(frozen=True)
class Server:
    """A running Valkey.

    Attributes:
        url, unix_url: The two ways to it, without credentials.
        admin: A redis-py client of full rights, for looking behind the code under test.
        password: The default user's password; "" where it has none.
        user, user_password: An ACL user beside the default one; "" where there is none.
    """

    host: str
    port: int
    url: str
    unix_url: str
    admin: Any
    password: str = ""
    user: str = ""
    user_password: str = ""

    @property
    def path(self) -> str:
        """The unix socket's path."""
        return self.unix_url.removeprefix("unix://")


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A private Valkey without passwords, on a loopback port and on a unix socket."""
    from emq.embedded import Embedded

    with (
        Embedded(tcp=True) as valkey,
        redis.Redis(host=valkey.host, port=valkey.port) as admin,
    ):
        yield Server(valkey.host, valkey.port, valkey.url, valkey.unix_url, admin)


@pytest.fixture(scope="session")
def password_server() -> Iterator[Server]:
    """A private Valkey whose default user has a password, beside an ACL user `worker`."""
    from emq.embedded import Embedded

    # Characters that a URL must escape.
    password, user_password = "p@ss:w/rd?%", "w0rk er#&"
    with Embedded(tcp=True) as valkey:
        with redis.Redis(host=valkey.host, port=valkey.port) as open_admin:
            open_admin.execute_command(
                "ACL", "SETUSER", "worker", "on", f">{user_password}", "~*", "&*", "+@all"
            )
            open_admin.config_set("requirepass", password)
        with redis.Redis(host=valkey.host, port=valkey.port, password=password) as admin:
            yield Server(
                valkey.host,
                valkey.port,
                valkey.url,
                valkey.unix_url,
                admin,
                password,
                "worker",
                user_password,
            )


@pytest.fixture
def fresh_name(server: Server) -> Iterator[str]:
    """A queue or key name that nobody used; every key that carries it is deleted afterwards."""
    name = f"t{next(_numbers)}-{uuid.uuid4().hex[:8]}"
    yield name
    if keys := list(server.admin.scan_iter(match=f"*{name}*", count=1000)):
        server.admin.delete(*keys)

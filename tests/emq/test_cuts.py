"""The connection is cut after every byte of a transition, each way; no job is lost or doubled.

Each position is tried twice, with an end of stream and with a reset; a reconnect is cheap. Only a
call that meets NOSCRIPT, most of whose bytes are a script's text, is cut at every 17th byte and at
its last two.

Afterwards a look behind the code's back decides: the job is in one place, and the client's error
denies no more than is true. Once a link has ended, the server has acted on all that it got, so no
look comes too early.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pytest

from emq import JobGone, Queue
from emq.ids import Mint
from emq.job import Job
from emq.keyspace import VERSION_KEY
from resp import ConnectFailed, ConnectionLost, TransportError

from ..proxy import Fault, Link, Proxy, Way
from .conftest import Keys
from .shells import Blocking, Shell

PING: Final = {"to_server": len("*1rn$4rnPINGrn"), "to_client": len("+PONGrn")}  # bytes
PLACES: Final = ("pending", "active", "schedule", "dead")
PAYLOAD: Final = b"the payload"


class Line:
    """A shell whose connection leads through a proxy, and one of the same kind that needs none."""

    def __init__(self, proxy: Proxy, shell: Shell, direct: Shell) -> None:
        self.proxy = proxy
        self.shell = shell
        self.direct = direct

    def fresh(self) -> Link:
        """The link of a new connection, over which the boot and one PING have gone."""
        self.proxy.to_server = self.proxy.to_client = Fault()
        before = self.proxy.links
        before[-1].cut()
        with suppress(ConnectionLost):  # it may not have noticed
            self.shell.connector.command("PING")
        if len(self.proxy.links) == len(before):
            self.shell.connector.command("PING")
        _, link = self.proxy.links[len(before) - 1 :]
        return link


@pytest.fixture(scope="module", params=["threads", "aio"])
def line(
    request: pytest.FixtureRequest, server: Any, shells: Callable[[str, int], Shell]
) -> Iterator[Line]:
    """Each shell, behind a proxy. In RESP2 the boot is shorter, and these replies are the same."""
    with Proxy((server.host, server.port)) as proxy:
        shell = hurried(Shell(request.param, 3, proxy.url))
        yield Line(proxy, shell, shells(request.param, 3))
        shell.close()


def hurried(shell: Shell) -> Shell:
    """The shell with a connector that hardly waits after a failure to connect."""
    waits, shell.connector = shell.connector, shell.connector.sibling(backoff=(0.001, 0.001))
    waits.close()
    if shell._loop is not None:
        shell._async, shell.connector = shell.connector, Blocking(shell.connector, shell._loop)
    return shell


Direction: TypeAlias = Literal["to_server", "to_client"]
DIRECTIONS: Final[list[Direction]] = ["to_server", "to_client"]


@pytest.fixture(params=DIRECTIONS)
def direction(request: pytest.FixtureRequest) -> Direction:
    """Each direction in which the bytes are counted."""
    found: Direction = request.param
    return found


class Cut(NamedTuple):
    """Where a connection ends: so many bytes from now, by an end of stream or a reset."""

    after: int
    reset: bool

    def on(self, way: Way) -> None:
        way.fault = Fault(cut=way.passed + self.after, reset=self.reset)


def sweep(positions: Iterable[int], play: Callable[[Cut], object]) -> None:
    """Cut at each position, in both manners; a failure tells where it was."""
    for after in positions:
        for reset in (False, True):
            cut = Cut(after, reset)
            try:
                play(cut)
            except BaseException as error:
                error.add_note(f"with {cut}")
                raise


class Look:
    """What the server holds of one queue's job, seen behind the code's back."""

    def __init__(self, keys: Keys, job_id: str) -> None:
        self._keys = keys
        self._id = job_id
        self._completed_before = self.completed()

    def completed(self) -> int:
        return int(self._keys.admin.hget(self._keys.base + "metrics:completed", "count") or 0)

    def place(self) -> str:
        """The only place where the job is: a set of the queue, `gone`, or `nowhere`."""
        row = self._keys.row(self._id)
        places = [place for place in PLACES if self._keys.score(place, self._id) is not None]
        done = self.completed() - self._completed_before
        if not row:
            assert places == []
            assert done in (0, 1)
            return "gone" if done else "nowhere"
        assert done == 0
        assert len(places) == 1, f"the row says {row['state']!r}, and its id stands in {places}"
        [place] = places
        attempts = b"1" if place == "active" else b"0"
        assert row == {"state": place.encode(), "attempts": attempts, "payload": PAYLOAD}
        return place

    def finish(self, queue: Queue, place: str, held: Any = None) -> None:
        """Once its lease is over the job can be done, by one and only once."""
        if place == "active":
            self._keys.admin.zadd(self._keys.base + "active", {self._id: 1}, xx=True)
            assert queue.reap() == 1
        else:
            assert queue.reap() == 0
        job = queue.claim()
        if place == "gone":
            assert job is None
        else:
            assert job == Job(self._id, PAYLOAD, 2 if place == "active" else 1, queue.name)
            queue.complete(job)
        assert queue.claim() is None
        if held is not None:
            with pytest.raises(JobGone):
                queue.complete(held)
        assert self.completed() == self._completed_before + 1
        assert self._keys.admin.keys(self._keys.base + "*") == [
            (self._keys.base + "metrics:completed").encode()
        ]


def attempt(call: Callable[[], Any]) -> tuple[Any, TransportError | None]:
    """What a call answers, or how its connection was lost."""
    try:
        return call(), None
    except (ConnectionLost, ConnectFailed) as error:
        return None, error


def test_claim_and_complete(line: Line, direction: Direction, fresh_name: str, keys: Keys) -> None:
    queue, direct = line.shell.queue(fresh_name), line.direct.queue(fresh_name)

    def play(cut: Cut | None) -> tuple[int, int]:
        """Bytes that passed for the claim, and for both calls."""
        look = Look(keys, direct.enqueue(PAYLOAD).job_id)
        link = line.fresh()
        links = len(line.proxy.links)
        way: Way = getattr(link, direction)
        begun = way.passed
        if cut is not None:
            cut.on(way)
        job, unclaimed = attempt(queue.claim)
        claimed = way.passed
        unsettled = attempt(lambda: queue.complete(job))[1] if job is not None else unclaimed
        passed = claimed - begun, way.passed - begun

        if cut is not None:
            link.wait_ended()
        place = look.place()
        if unsettled is None:
            assert place == "gone"
        elif not unsettled.may_have_run:
            assert place == ("pending" if job is None else "active")
        if cut is not None:
            # A shell that sees the cut between two calls dials again, through no fault.
            again = len(line.proxy.links) > links
            assert place == ("gone" if again else expected(cut.after))
        look.finish(direct, place, job)
        return passed

    def expected(n: int) -> str:
        if direction == "to_server":  # what came whole was run
            return "pending" if n < claim else "active" if n < both else "gone"
        if n == 0:  # and nothing was sent after this
            return "pending"
        return "active" if n <= claim else "gone"

    play(None)  # loads the scripts
    claim, both = play(None)
    sweep(range(both + 1), play)


def test_claim_that_meets_no_script(
    line: Line, direction: Direction, fresh_name: str, keys: Keys
) -> None:
    queue, direct = line.shell.queue(fresh_name), line.direct.queue(fresh_name)

    def play(cut: Cut | None) -> int:
        """Bytes that passed."""
        look = Look(keys, direct.enqueue(PAYLOAD).job_id)
        link = line.fresh()
        way: Way = getattr(link, direction)
        begun = way.passed
        keys.admin.script_flush()
        if cut is not None:
            cut.on(way)
        job, lost = attempt(queue.claim)
        passed = way.passed - begun

        if cut is not None:
            link.wait_ended()
        place = look.place()
        assert place in ("pending", "active")
        if lost is None:
            assert place == "active"
        elif not lost.may_have_run:
            assert place == "pending"
        if cut is not None and direction == "to_server":
            assert place == ("active" if cut.after == size else "pending")
        look.finish(direct, place, job)
        return passed

    size = play(None)
    sweep({*range(1, size, 17), size - 1, size}, play)


def test_enqueue(line: Line, direction: Direction, fresh_name: str, keys: Keys) -> None:
    queue, direct = line.shell.queue(fresh_name), line.direct.queue(fresh_name)
    mint = Mint()

    def play(cut: Cut | None) -> int:
        """Bytes that passed."""
        id = mint.mint()
        look = Look(keys, id)
        link = line.fresh()
        links = len(line.proxy.links)
        way: Way = getattr(link, direction)
        begun = way.passed
        if cut is not None:
            cut.on(way)
        receipt, lost = attempt(lambda: queue.enqueue(PAYLOAD, job_id=id))
        passed = way.passed - begun

        if cut is not None:
            link.wait_ended()
        place = look.place()
        if lost is None:
            assert receipt == (id, True)
            assert place == "pending"
        elif not lost.may_have_run:
            assert place == "nowhere"
        if cut is not None and len(line.proxy.links) == links:
            whole = cut.after == size if direction == "to_server" else cut.after > 0
            assert place == ("pending" if whole else "nowhere")
        # Who got no answer says it again, and that makes no second job.
        assert direct.enqueue(PAYLOAD, job_id=id) == (id, place == "nowhere")
        look.finish(direct, "pending")
        return passed

    play(None)  # loads the script
    size = play(None)
    sweep(range(size + 1), play)


@pytest.mark.parametrize("claimed", [True, False], ids=["fenced", "nobody's"])
def test_boot(
    line: Line, server: Any, direction: Direction, fresh_name: str, keys: Keys, claimed: bool
) -> None:
    queue, direct = line.shell.queue(fresh_name), line.direct.queue(fresh_name)

    def disclaim() -> None:
        if not claimed:
            server.admin.delete(VERSION_KEY)

    def play(cut: Cut) -> None:
        look = Look(keys, direct.enqueue(PAYLOAD).job_id)
        line.fresh().cut()
        disclaim()
        setattr(line.proxy, direction, Fault(cut=cut.after, reset=cut.reset))
        with pytest.raises((ConnectionLost, ConnectFailed)):  # as it has noticed the cut, or not
            line.shell.connector.command("PING")
        for dial in (queue.claim, line.shell.connector.sibling):
            disclaim()
            with pytest.raises(ConnectFailed) as caught:
                dial()
            assert not caught.value.may_have_run
        assert look.place() == "pending"
        setattr(line.proxy, direction, Fault())
        job = queue.claim()
        assert job is not None
        queue.complete(job)
        look.finish(direct, "gone")

    disclaim()
    boot = getattr(line.fresh(), direction).passed - PING[direction]
    sweep(range(boot), play)

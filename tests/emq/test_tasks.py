"""Functions as jobs: what is sent, what is refused before it is, and what a worker makes of it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import emq
from emq import AsyncQueue, Item, Queue
from emq.backoff import fixed
from emq.errors import EmqError
from emq.job import Receipt
from emq.tasks import BadPayload, StrictJson, Task, Tasks, UnknownTask
from emq.telemetry import Telemetry
from emq.work import Discard, JsonCodec

from .workers import Worker

_ROOT: Final = Path(__file__).parents[2]


def held(payload: Any) -> Any:
    """A job in a handler's hands."""
    return SimpleNamespace(id="JOB0EEMl9I7KXg", payload=payload)


class Sent:
    """A queue that keeps what it was given, and answers as one does."""

    def __init__(self) -> None:
        self.name = "q"
        self.calls: list[tuple[bytes, dict[str, Any]]] = []

    def enqueue(self, payload: bytes, **options: Any) -> Receipt:
        self.calls.append((payload, {k: v for k, v in options.items() if v is not None}))
        return Receipt("JOB0EEMl9I7KXg", True)


@pytest.fixture
def sent() -> Any:
    return Sent()


@pytest.fixture
def tasks() -> Tasks:
    return Tasks()


@pytest.fixture
def greet(tasks: Tasks) -> Task[..., str]:
    @tasks.task
    def greet(name: str, *, loud: bool = False) -> str:
        """Say hello."""
        return f"hello {name}{'!' if loud else ''}"

    return greet


@pytest.mark.parametrize(
    ("args", "kwargs", "payload"),
    [
        (("é",), {}, '{"task":"greet","args":["é"]}'),
        (("x",), {"loud": True}, '{"task":"greet","args":["x"],"kwargs":{"loud":true}}'),
        ((), {"name": "x"}, '{"task":"greet","kwargs":{"name":"x"}}'),
    ],
)
def test_a_call_is_compact_json(
    greet: Task[..., str], sent: Any, args: Any, kwargs: Any, payload: str
) -> None:
    receipt = greet.enqueue(sent, *args, **kwargs)

    assert receipt.admitted
    assert sent.calls == [(payload.encode(), {})]
    assert greet.item(*args, **kwargs) == Item(payload.encode())


def test_without_arguments_the_name_is_all(tasks: Tasks) -> None:
    @tasks.task
    def tick() -> None: ...

    assert tick.item().payload == b'{"task":"tick"}'


def test_a_task_is_still_its_function(greet: Task[..., str]) -> None:
    assert greet("x", loud=True) == "hello x!"
    assert greet.name == vars(greet)["__name__"] == "greet"
    assert greet.__doc__ == "Say hello."
    assert list(inspect.signature(greet).parameters) == ["name", "loud"]
    assert repr(greet) == "<Task greet>"


@pytest.mark.parametrize(
    ("args", "kwargs", "said"),
    [
        ((), {}, "task greet: missing a required argument: 'name'"),
        (("a", "b"), {}, "task greet: too many positional arguments"),
        (("a",), {"lod": 1}, "task greet: got an unexpected keyword argument 'lod'"),
    ],
)
def test_arguments_that_do_not_fit_are_refused_where_they_are_passed(
    greet: Task[..., str], sent: Any, args: Any, kwargs: Any, said: str
) -> None:
    with pytest.raises(TypeError) as raised:
        greet.enqueue(sent, *args, **kwargs)
    assert str(raised.value) == said
    assert sent.calls == []


def _deep() -> Any:
    value: Any = []
    for _ in range(100_000):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ({1}, "set"),
        (b"secret", "bytes"),
        (object(), "object"),
        (float("nan"), "float"),
        ("\ud800secret", "str"),
        ({1: "secret"}, "dict"),
        ([{"a": {None: 1}}], "list"),
        (_deep(), "list"),
    ],
)
def test_values_that_the_codec_cannot_take_are_refused_where_they_are_passed(
    greet: Task[..., str], sent: Any, value: Any, kind: str
) -> None:
    with pytest.raises(TypeError, match=f"task greet: argument name, {kind}, cannot be") as raised:
        greet.enqueue(sent, value)
    assert sent.calls == []
    assert "secret" not in str(raised.value)
    assert raised.value.__context__ is None


def test_options_go_with_the_job_and_the_call_has_the_last_word(tasks: Tasks, sent: Any) -> None:
    @tasks.task(max_attempts=3, backoff=fixed(5), time_limit_ms=9, result_ttl_ms=7)
    def tick() -> None: ...

    own = {"max_attempts": 3, "backoff": fixed(5), "time_limit_ms": 9, "result_ttl_ms": 7}
    tick.enqueue(sent)
    later = tick.options(delay_ms=4, dedup="k", max_attempts=1)
    later.enqueue(sent)
    later.options(headers={"a": "b"}).enqueue(sent)

    more = {**own, "delay_ms": 4, "dedup": "k", "max_attempts": 1}
    assert [options for _, options in sent.calls] == [own, more, {**more, "headers": {"a": "b"}}]
    item = later.item()
    assert {name: getattr(item, name) for name in more} == more
    assert tick.item().delay_ms is None
    with pytest.raises(TypeError, match="task tick: no option delay; there are backoff, dedup"):
        tick.options(delay=4)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"max_attempts": 0}, ValueError),
        ({"time_limit_ms": 1.5}, ValueError),
        ({"result_ttl_ms": 0}, ValueError),
        ({"backoff": 5}, TypeError),
        ({"name": ""}, TypeError),
        ({"retries": 1}, TypeError),
    ],
)
def test_a_task_is_checked_where_it_is_made(
    tasks: Tasks, options: Any, error: type[Exception]
) -> None:
    with pytest.raises(error):
        tasks.task(**options)(lambda: None)
    assert tasks.names == []


def test_names_are_given_or_the_functions_own_and_never_shared(tasks: Tasks) -> None:
    tasks.task(name="other")(functools.partial(print, "x"))
    with pytest.raises(TypeError, match="no name of its own"):
        tasks.task(functools.partial(print, "x"))
    with pytest.raises(ValueError, match="a task 'other' already"):
        tasks.task(name="other")(print)
    assert tasks.names == ["other"]


def test_the_registry_runs_what_a_job_names(greet: Task[..., str], tasks: Tasks) -> None:
    result = tasks(held(b'{"task":"greet","args":["x"],"kwargs":{"loud":true},"more":1}'))

    assert result == b'"hello x!"'
    assert tasks.result(result) == "hello x!"
    assert tasks.result(None) is None
    assert tasks(held(greet.item("y").payload)) == b'"hello y"'


def test_an_unknown_task_is_told_with_those_that_are_known(
    greet: Task[..., str], tasks: Tasks
) -> None:
    with pytest.raises(UnknownTask, match="no task 'greed' here; known are greet;") as raised:
        tasks(held(b'{"task":"greed"}'))
    assert (raised.value.name, raised.value.known) == ("greed", ["greet"])
    assert isinstance(raised.value, EmqError)
    for n in range(20):
        tasks.task(name=f"task-{n}")(print)
    with pytest.raises(UnknownTask, match=r"task-\d+ and 11 more; register"):
        tasks(held(b'{"task":"\\u001b[2J"}'))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"secret",
        b"\xff\xfe",
        b"null",
        b'["greet"]',
        b'{"args":["secret"]}',
        b'{"task":1}',
        b'{"task":"greet","args":"secret"}',
        b'{"task":"greet","args":{"name":"secret"}}',
        b'{"task":"greet","kwargs":["secret"]}',
        b'{"task":"greet","args":null}',
        b'{"task":"greet","args":[NaN]}',
        b'{"task":"greet"}',
        b'{"task":"greet","args":["secret","secret","secret"]}',
        b'{"task":"greet","args":["secret"],"kwargs":{"nam":"secret"}}',
        b"[" * 100_000,
        b'{"task":"greet","args":[' + b"9" * 5000 + b"]}",
    ],
)
def test_a_payload_that_is_no_call_is_told_without_its_text(
    greet: Task[..., str], tasks: Tasks, payload: bytes
) -> None:
    with pytest.raises(BadPayload) as raised:
        tasks(held(payload))
    assert "secret" not in str(raised.value)


def test_a_type_error_of_the_function_is_its_own(tasks: Tasks) -> None:
    @tasks.task
    def broken() -> None:
        raise TypeError("of the function")

    with pytest.raises(TypeError, match="of the function"):
        tasks(held(broken.item().payload))


def test_a_result_that_cannot_be_carried_is_dropped_and_said_once(
    tasks: Tasks, caplog: pytest.LogCaptureFixture
) -> None:
    @tasks.task
    def fetch() -> object:
        return {b"secret"}

    with caplog.at_level(logging.WARNING, "emq.tasks"):
        assert tasks(held(fetch.item().payload)) is None
        assert tasks(held(fetch.item().payload)) is None
    [record] = caplog.records
    assert "task fetch returned set" in record.getMessage()
    assert "secret" not in record.getMessage()


def test_a_signal_that_is_returned_stays_one_and_none_is_no_result(tasks: Tasks) -> None:
    signal = Discard("no")
    tasks.task(name="discard")(lambda: signal)
    tasks.task(name="nothing")(lambda: None)

    assert tasks(held(b'{"task":"discard"}')) is signal
    assert tasks(held(b'{"task":"nothing"}')) is None


def test_a_coroutine_function_is_answered_as_a_coroutine(tasks: Tasks) -> None:
    @tasks.task
    async def double(n: int) -> int:
        await asyncio.sleep(0)
        return 2 * n

    @tasks.task
    def triple(n: int) -> int:
        return 3 * n

    async def go() -> None:
        job = held(double.item(4).payload)
        made = tasks(job)
        assert inspect.isawaitable(made)
        assert await made == b"8"
        assert await tasks.on_loop(job) == b"8"
        assert await tasks.on_loop(held(triple.item(4).payload)) == b"12"
        assert await double(4) == 8

    asyncio.run(go())


def test_a_job_task_gets_the_job_in_hand(tasks: Tasks, sent: Any) -> None:
    @tasks.job_task
    def export(job: Any, table: str) -> str:
        return f"{job.id} {table}"

    @tasks.job_task(max_attempts=2)
    def more(job: Any) -> None: ...

    export.enqueue(sent, "orders")
    assert sent.calls == [(b'{"task":"export","args":["orders"]}', {})]
    job = held(sent.calls[0][0])
    assert tasks(job) == b'"JOB0EEMl9I7KXg orders"'
    assert export(job, "mails") == "JOB0EEMl9I7KXg mails"
    assert more.options(delay_ms=1).item() == Item(b'{"task":"more"}', delay_ms=1, max_attempts=2)
    with pytest.raises(TypeError, match="task export: missing a required argument: 'table'"):
        export.enqueue(sent)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="task none: its first parameter"):
        tasks.job_task(name="none")(lambda: None)  # type: ignore[arg-type,misc]


class Upside:
    """A codec of a program's own."""

    def encode(self, value: Any) -> bytes:
        return StrictJson().encode(value)[::-1]

    def decode(self, payload: bytes) -> Any:
        return StrictJson().decode(payload[::-1])


def test_another_codec_can_be_used() -> None:
    tasks = Tasks(Upside())
    add = tasks.task(name="add")(lambda a, b: [a, b])
    item = add.item(1, 2)

    assert item.payload == b'}]2,1[:"sgra","dda":"ksat"{'
    assert tasks.result(tasks(held(item.payload))) == [1, 2]
    with pytest.raises(TypeError, match="task add: argument b, object, cannot be encoded;"):
        add.item(1, object())


@pytest.mark.parametrize("codec", ["yaml", None, json])
def test_a_codec_has_both_ways(codec: Any) -> None:
    with pytest.raises(TypeError, match="codec is"):
        Tasks(codec)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), inner
    ),
)  # fmt: skip


@given(st.lists(_json), st.dictionaries(st.text("ab", min_size=1), _json))
@example([{"": []}], {})
def test_what_was_passed_arrives(args: list[Any], kwargs: dict[str, Any]) -> None:
    tasks = Tasks()
    got: list[Any] = []

    @tasks.task
    def take(*args: Any, **kwargs: Any) -> None:
        got.append((list(args), kwargs))

    tasks(held(take.item(*args, **kwargs).payload))
    assert got == [(args, kwargs)]


@given(st.binary())
@example(b'{"task":"t","args":[]}')
def test_any_payload_runs_or_is_refused(payload: bytes) -> None:
    tasks = Tasks()
    tasks.task(name="t")(lambda: 1)
    with contextlib.suppress(BadPayload, UnknownTask):
        assert tasks(held(payload)) == b"1"


@pytest.mark.parametrize("kind", ["threads", "aio"])
def test_a_worker_takes_a_registry_and_no_single_task_nor_codec(
    kind: str, greet: Task[..., str], tasks: Tasks
) -> None:
    made: Any
    if kind == "threads":
        made = functools.partial(emq.Consumer, Queue(SimpleNamespace(run=print), "q"))
    else:

        async def run(plan: Any) -> Any: ...

        made = functools.partial(emq.AsyncConsumer, AsyncQueue(SimpleNamespace(run=run), "q"))
    with pytest.raises(TypeError, match="greet> is one task; give the worker"):
        made(greet)
    for handler in (tasks, tasks.on_loop):
        made(handler)
        with pytest.raises(TypeError, match="has its own codec; leave"):
            made(handler, codec=JsonCodec())


def test_the_telemetry_is_told_and_gives_headers(server: Any, fresh_name: str) -> None:
    class Carrying(Telemetry):
        def headers(self) -> dict[str, str]:
            return {"trace": "t"}

    telemetry = Carrying()
    names: list[object] = []
    telemetry.attach("emq.job.add", lambda _, __, metadata: names.append(metadata["job_name"]))
    tick = Tasks(telemetry=telemetry).task(name="tick")(lambda: None)
    assert tick.options(headers={"a": "b"}).item().headers == {"trace": "t", "a": "b"}

    async def go() -> None:
        async with await emq.connect_async(server.url) as connector:
            queue: Any = AsyncQueue(connector, fresh_name)
            await tick.enqueue_async(queue)
            with pytest.raises(TypeError, match="task tick: use enqueue_async with"):
                tick.enqueue(queue)

    asyncio.run(go())
    with emq.connect(server.url) as connector:
        queue = Queue(connector, fresh_name)
        tick.enqueue(queue)
        with pytest.raises(TypeError, match="task tick: use enqueue with"):
            asyncio.run(tick.enqueue_async(queue))  # type: ignore[arg-type]
        jobs = queue.claim_many(5)
    assert [(job.payload, dict(job.settings.headers)) for job in jobs] == [
        (b'{"task":"tick"}', {"trace": "t"})
    ] * 2
    assert names == ["tick", "tick"]


@pytest.mark.parametrize("kind", ["threads", "aio-function"])
def test_a_worker_runs_tasks_of_both_kinds(server: Any, fresh_name: str, kind: str) -> None:
    tasks = Tasks()

    @tasks.task(result_ttl_ms=60_000)
    def double(n: int) -> int:
        return 2 * n

    @tasks.task(result_ttl_ms=60_000)
    async def triple(n: int) -> int:
        await asyncio.sleep(0)
        return 3 * n

    with emq.connect(server.url) as connector:
        queue = Queue(connector, fresh_name)
        receipts = [double.enqueue(queue, 4), triple.enqueue(queue, 4)]
        unknown = queue.enqueue(b'{"task":"lost"}', result_ttl_ms=60_000, max_attempts=1)
        with contextlib.closing(Worker(kind, server.url, fresh_name, tasks)) as worker:
            worker.start()
            outcomes = [queue.wait(receipt.job_id, timeout=20) for receipt in receipts]
            dead = queue.wait(unknown.job_id, timeout=20)

    assert [outcome and tasks.result(outcome.result) for outcome in outcomes] == [8, 12]
    assert dead is not None
    assert dead.state == "dead"
    assert dead.error is not None
    assert dead.error.startswith("UnknownTask: no task 'lost' here; known are double, triple;")


SNIPPET: Final = """
from emq import AsyncQueue, Queue
from emq.tasks import Tasks
from emq.work import HeldJob

tasks = Tasks()

@tasks.task
def plain(name: str, n: int = 1) -> float: raise NotImplementedError

@tasks.task(max_attempts=3)
async def awaited(name: str) -> bytes: raise NotImplementedError

@tasks.job_task
def job(held: HeldJob, name: str) -> int: raise NotImplementedError

async def use(queue: Queue, other: AsyncQueue) -> None:
    plain.enqueue(queue, "x", n=2)
    await awaited.enqueue_async(other, "x")
    awaited.options(delay_ms=1).item("x")
    job.enqueue(queue, "x")
    a: float = plain("x")
    b: bytes = await awaited("x")
    plain.enqueue(queue, 5)  # error
    plain.enqueue(other, "x")  # error
    plain.enqueue(queue, "x", m=2)  # error
    await awaited.enqueue_async(other)  # error
    awaited.options(delay_ms="1")  # error
    plain.options(dedup="k").item(b"x")  # error
    job.enqueue(queue, 5)  # error
    job("x")  # error
    c: str = plain("x")  # error
"""


def test_the_types_of_arguments_and_results_are_seen(
    tmp_path: Path,
) -> None:
    snippet = tmp_path / "snippet.py"
    snippet.write_text(SNIPPET)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mypy", "--strict", "--no-error-summary"),
            *("--follow-imports=silent", "--cache-dir", str(_ROOT / ".mypy_cache"), str(snippet)),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=_ROOT,
    )
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    lines = SNIPPET.splitlines()
    assert found == {n for n, line in enumerate(lines, 1) if "# error" in line}, done.stdout


def test_a_function_that_yields_is_no_task(tasks: Tasks) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(TypeError, match="the function has a yield"):
        tasks.task(numbers)
    assert "numbers" not in tasks.names


@pytest.mark.parametrize("queue", ["world", None, 5])
def test_a_call_whose_queue_was_left_out_is_told_so(queue: Any) -> None:
    tasks = Tasks()

    @tasks.task
    def greet(name: str) -> None: ...

    with pytest.raises(TypeError, match=r"task greet: the queue goes first, not "):
        greet.enqueue(queue, "world")

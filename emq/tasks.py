"""Functions as jobs: a registry that enqueues calls of functions, and runs them where they arrive.

    tasks = Tasks()

    @tasks.task(max_attempts=3)
    def greet(name: str) -> str:
        return f"hello {name}"

    greet.enqueue(queue, "world")       # the producer
    Consumer(queue, tasks).run()        # the worker
    greet("world")                      # a plain call

A job's payload names the function and carries its arguments, `{"task":"greet","args":["world"]}`,
so that a producer needs no more than the name, whatever it is written in. Nothing but data goes
over: a worker runs what it has registered and nothing else.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from .backoff import Backoff
from .errors import EmqError, escaped
from .job import Item, Receipt
from .numbers import whole
from .options import JobOptions
from .telemetry import Telemetry
from .work import Codec, Signal

if TYPE_CHECKING:
    from .queue import AsyncQueue, Queue

P = ParamSpec("P")
R = TypeVar("R")
J = TypeVar("J")

_log: Final = logging.getLogger("emq.tasks")
_TOLD: Final = 10  # names that a message lists


class UnknownTask(EmqError):
    """A job names a task that is not registered here.

    Attributes:
        name: As the job has it.
        known: The names that are registered, sorted.
    """

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        super().__init__(name, known)
        self.name = name
        self.known = known

    def __str__(self) -> str:
        told = ", ".join(map(escaped, self.known[:_TOLD])) or "none"
        more = f" and {len(self.known) - _TOLD} more" if len(self.known) > _TOLD else ""
        return (
            f"no task '{escaped(self.name)}' here; known are {told}{more}; "
            "register it before the worker starts"
        )


class BadPayload(EmqError):
    """A job's payload is no call of a task, or its arguments do not fit the task."""


class EnqueueOptions(TypedDict, total=False):
    """What `Queue.enqueue` takes beside the payload."""

    job_id: str | bytes | None
    delay_ms: int | None
    run_at_ms: int | None
    dedup: str | None
    dedup_ttl_ms: int | None
    result_ttl_ms: int | None
    max_attempts: int | None
    backoff: Backoff | None
    time_limit_ms: int | None
    headers: Mapping[str, str] | None


_OPTIONS: Final = frozenset(EnqueueOptions.__annotations__)


class StrictJson:
    """JSON in UTF-8, without spaces; what JSON would change silently is refused."""

    def encode(self, value: Any) -> bytes:
        """Answer a value as JSON. A tuple becomes a list.

        Raises:
            TypeError, ValueError: JSON has no such value, or another one: a key of a dict that is
                not str would become one, NaN is not JSON.
        """
        try:
            data = json.dumps(
                value, separators=(",", ":"), ensure_ascii=False, allow_nan=False
            ).encode()
        except UnicodeEncodeError:
            pass  # it carries the whole text, so it must not be the context of what is raised
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        else:
            _check_keys(value)
            return data
        raise ValueError("a str has a lone surrogate")

    def decode(self, payload: bytes) -> Any:
        """Answer the value of a JSON text.

        Raises:
            ValueError: It is none.
        """
        try:
            return json.loads(payload.decode(), parse_constant=_no_number)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None


def _check_keys(value: Any) -> None:
    """Refuse keys that are not str. `value` was encoded, so it is a tree."""
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, dict):
            for key in each:
                if not isinstance(key, str):
                    raise TypeError(f"a dict has a key of type {type(key).__name__}, not str")
            todo += each.values()
        elif isinstance(each, list | tuple):
            todo += each


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no JSON")


class _Call(Generic[P]):
    """A function's jobs: what both kinds of task have."""

    def __init__(
        self,
        tasks: Tasks,
        name: str,
        function: Callable[..., Any],
        signature: inspect.Signature,
        options: EnqueueOptions,
    ) -> None:
        self._tasks = tasks
        self._signature = signature
        self._options = options
        self._told_of_result = False
        functools.update_wrapper(cast(Any, self), function)
        self.name = name
        self.function = function

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {escaped(self.name)}>"

    def enqueue(self, queue: Queue, /, *args: P.args, **kwargs: P.kwargs) -> Receipt:
        """Enqueue a call with these arguments, and answer what `Queue.enqueue` does.

        Raises:
            TypeError: The arguments do not fit the function's signature, or the codec cannot take
                one of them; nothing was sent.
            JobError, TransportError, ValueError: As `Queue.enqueue`.
        """
        if _enqueues(self.name, queue):
            raise TypeError(f"task {self.name}: use enqueue_async with an AsyncQueue")
        payload = self._payload(args, kwargs)
        telemetry = self._tasks.telemetry
        return telemetry.enqueue(queue, payload, job_name=self.name, **self._options)

    async def enqueue_async(
        self, queue: AsyncQueue, /, *args: P.args, **kwargs: P.kwargs
    ) -> Receipt:
        """Do what `enqueue` does, on an `AsyncQueue`."""
        if not _enqueues(self.name, queue):
            raise TypeError(f"task {self.name}: use enqueue with a Queue on threads")
        payload = self._payload(args, kwargs)
        telemetry = self._tasks.telemetry
        return await telemetry.enqueue_async(queue, payload, job_name=self.name, **self._options)

    def item(self, /, *args: P.args, **kwargs: P.kwargs) -> Item:
        """Answer a call with these arguments for `enqueue_many`.

        Raises:
            TypeError: As `enqueue`.
        """
        item = Item(self._payload(args, kwargs), **self._options)
        if carried := self._tasks.telemetry.headers():
            item = item._replace(headers={**carried, **(item.headers or {})})
        return item

    def _payload(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"task {self.name}: {error}") from None
        told: dict[str, Any] = {"task": self.name}
        if args:
            told["args"] = list(args)
        if kwargs:
            told["kwargs"] = dict(kwargs)
        try:
            return self._tasks.codec.encode(told)
        except Exception as error:
            # Not the error itself: it may quote the argument.
            blamed = self._blamed(bound, error)
        raise TypeError(f"task {self.name}: {blamed}; pass what its codec can carry")

    def _blamed(self, bound: inspect.BoundArguments, error: Exception) -> str:
        """Which argument the codec refused."""
        for name, value in bound.arguments.items():
            try:
                self._tasks.codec.encode(value)
            except Exception as own:
                reason = f" ({own})" if isinstance(self._tasks.codec, StrictJson) else ""
                return f"argument {name}, {type(value).__name__}, cannot be encoded{reason}"
        return f"the arguments cannot be encoded ({type(error).__name__})"

    def _with(self, options: Mapping[str, Any]) -> EnqueueOptions:
        if unknown := options.keys() - _OPTIONS:
            raise TypeError(
                f"task {self.name}: no option {', '.join(sorted(unknown))}; "
                f"there are {', '.join(sorted(_OPTIONS))}"
            )
        merged: EnqueueOptions = {**self._options, **options}  # type: ignore[typeddict-item]
        return merged

    def _run(self, job: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise BadPayload(f"task {escaped(self.name)}: {error}") from None
        value = self._called(job, args, kwargs)
        return self._awaited(value) if inspect.isawaitable(value) else self._result(value)

    def _called(self, job: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.function(*args, **kwargs)

    async def _awaited(self, value: Awaitable[Any]) -> Any:
        return self._result(await value)

    def _result(self, value: Any) -> Any:
        if value is None or isinstance(value, Signal):
            return value
        try:
            return self._tasks.codec.encode(value)
        except Exception as error:
            # The work is done: to fail for its result would have it done again.
            if not self._told_of_result:
                self._told_of_result = True
                _log.warning(
                    "task %s returned %s, which its codec cannot carry (%s); its results are "
                    "dropped, and this is not said again",
                    escaped(self.name),
                    type(value).__name__,
                    type(error).__name__,
                )
            return None


class Task(_Call[P], Generic[P, R]):
    """A function that can also be enqueued. Made by `Tasks.task`.

    Attributes:
        name: What jobs call it.
        function: The function itself.
    """

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now."""
        result: R = self.function(*args, **kwargs)
        return result

    def options(self, **options: Unpack[EnqueueOptions]) -> Task[P, R]:
        """Answer the task with other options for enqueuing; those not given stay.

        Raises:
            TypeError: There is no such option.
        """
        return Task(self._tasks, self.name, self.function, self._signature, self._with(options))


class JobTask(_Call[P], Generic[J, P, R]):
    """A task whose function also gets the job in hand, as its first argument.

    Made by `Tasks.job_task`; see `Task`.
    """

    def __call__(self, job: J, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function here and now, on a job or on what stands in for one."""
        result: R = self.function(job, *args, **kwargs)
        return result

    def options(self, **options: Unpack[EnqueueOptions]) -> JobTask[J, P, R]:
        """Answer the task with other options for enqueuing; those not given stay.

        Raises:
            TypeError: There is no such option.
        """
        return JobTask(self._tasks, self.name, self.function, self._signature, self._with(options))

    def _called(self, job: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        return self.function(job, *args, **kwargs)


class Tasks:
    """A registry of tasks, and the handler of their jobs for a `Consumer` or an `AsyncConsumer`.

    A consumer with tasks has no codec of its own: the registry reads payloads, and encodes results.
    A task may be a coroutine function: calling the registry with its job then answers a coroutine.

    Args:
        codec: "json", or an object with `encode(value) -> bytes` and `decode(payload)`, for all
            payloads and results of the registry. Producers and workers must have the same.
        telemetry: Told of each job enqueued, and gives it what it has to carry.

    Raises:
        TypeError: `codec` is neither.
    """

    def __init__(
        self, codec: Literal["json"] | Codec = "json", *, telemetry: Telemetry | None = None
    ) -> None:
        made = StrictJson() if codec == "json" else codec
        if isinstance(made, str) or not all(
            callable(getattr(made, verb, None)) for verb in ("encode", "decode")
        ):
            told = repr(made)[:60] if isinstance(made, str) else type(made).__name__
            raise TypeError(f'codec is "json" or has encode and decode, not {told}')
        self.codec: Codec = made
        self.telemetry = Telemetry() if telemetry is None else telemetry
        self._tasks: dict[str, _Call[Any]] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {', '.join(map(escaped, self.names))}>"

    @property
    def names(self) -> list[str]:
        """The names of the tasks, sorted."""
        return sorted(self._tasks)

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(
        self,
        /,
        *,
        name: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        time_limit_ms: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> Callable[[Callable[P, R]], Task[P, R]]: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        time_limit_ms: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> Any:
        """Register a function as a task; a decorator, with or without options.

        Args:
            function: What to run. It is called with the arguments that the producer gave.
            name: What jobs call it; None is the function's own name. Jobs outlive a program: one
                that is renamed leaves its old jobs without a task.
            max_attempts: A job that failed this often is dead; None leaves it to the worker.
            backoff: How long it waits between attempts; None leaves it to the worker.
            time_limit_ms: How long one attempt may take; None leaves it to the worker.
            result_ttl_ms: How long what it returns is kept for `Queue.wait`; None keeps none.

        Raises:
            TypeError: `function` is not callable, has a `yield` or no name, or there is no such
                option.
            ValueError: Another task has the name, or a number is out of range.
        """
        register = functools.partial(
            self._register,
            Task,
            name=name,
            max_attempts=max_attempts,
            backoff=backoff,
            time_limit_ms=time_limit_ms,
            result_ttl_ms=result_ttl_ms,
        )
        return register if function is None else register(function)

    @overload
    def job_task(self, function: Callable[Concatenate[J, P], R], /) -> JobTask[J, P, R]: ...

    @overload
    def job_task(
        self,
        /,
        *,
        name: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        time_limit_ms: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> Callable[[Callable[Concatenate[J, P], R]], JobTask[J, P, R]]: ...

    def job_task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        max_attempts: int | None = None,
        backoff: Backoff | None = None,
        time_limit_ms: int | None = None,
        result_ttl_ms: int | None = None,
    ) -> Any:
        """Register a function that also wants the job in hand, as its first argument.

            @tasks.job_task
            def export(job: HeldJob, table: str) -> None:
                job.progress("begun")

            export.enqueue(queue, "orders")

        Arguments and errors are those of `task`.
        """
        register = functools.partial(
            self._register,
            JobTask,
            name=name,
            max_attempts=max_attempts,
            backoff=backoff,
            time_limit_ms=time_limit_ms,
            result_ttl_ms=result_ttl_ms,
        )
        return register if function is None else register(function)

    def _register(
        self,
        kind: Callable[..., _Call[Any]],
        function: Callable[..., Any],
        *,
        name: str | None,
        max_attempts: int | None,
        backoff: Backoff | None,
        time_limit_ms: int | None,
        result_ttl_ms: int | None,
    ) -> _Call[Any]:
        if not callable(function):
            raise TypeError(f"a task is a function, not {type(function).__name__}")
        if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
            raise TypeError("the function has a yield, so a call runs none of it; return instead")
        if name is None:
            name = getattr(function, "__name__", None)
        if not isinstance(name, str) or not name:
            raise TypeError("the function has no name of its own; give the task one with name=")
        if name in self._tasks:
            raise ValueError(f"there is a task {name!r} already; give this one another name=")
        JobOptions(max_attempts, backoff, time_limit_ms).encode()  # checks them now, not at a call
        options: EnqueueOptions = {}
        if result_ttl_ms is not None:
            options["result_ttl_ms"] = whole("result_ttl_ms", result_ttl_ms, 1)
        if max_attempts is not None:
            options["max_attempts"] = max_attempts
        if backoff is not None:
            options["backoff"] = backoff
        if time_limit_ms is not None:
            options["time_limit_ms"] = time_limit_ms
        signature = inspect.signature(function)
        if kind is JobTask:
            signature = _without_job(name, signature)
        made = self._tasks[name] = kind(self, name, function, signature, options)
        return made

    def __call__(self, job: Any) -> Any:
        """Run a job's task, and answer its result, encoded; None where it has none.

        For a coroutine function, answers a coroutine that does so. A signal (`Retry`, `Discard`,
        `Delay`) is answered as it is.

        Raises:
            UnknownTask: No such task is registered.
            BadPayload: The payload is no call of a task, or its arguments do not fit.
        """
        name, args, kwargs = self._read(job.payload)
        task = self._tasks.get(name)
        if task is None:
            raise UnknownTask(name, self.names)
        return task._run(job, args, kwargs)

    async def on_loop(self, job: Any) -> Any:
        """Run a job's task on the event loop: a handler for an `AsyncConsumer`.

        The registry itself, as a handler, is called in a thread, for one of its functions may
        block; then a coroutine function's coroutine is awaited on the loop. With this method as the
        handler all of it happens on the loop, which is faster, and a function that blocks blocks
        everything.
        """
        value = self(job)
        return await value if inspect.isawaitable(value) else value

    def job_name(self, job: Any) -> str | None:
        """Answer which task a job calls, for telemetry; None where it is none of this registry."""
        try:
            name, _, _ = self._read(job.payload)
        except BadPayload:
            return None
        return name if name in self._tasks else None

    def result(self, data: bytes | None) -> Any:
        """Answer what a task returned, from an outcome's `result`."""
        return None if data is None else self.codec.decode(data)

    def _read(self, payload: bytes) -> tuple[str, list[Any], dict[str, Any]]:
        try:
            told = self.codec.decode(payload)
        except Exception as error:
            # Its type alone, and no context: the error may hold the payload.
            reason = f"the payload cannot be decoded ({type(error).__name__})"
        else:
            match told:
                case {"task": str(name)}:
                    args, kwargs = told.get("args", []), told.get("kwargs", {})
                    if isinstance(args, list | tuple) and _named(kwargs):
                        return name, list(args), kwargs
                    reason = "args is no list, or kwargs no mapping of names"
                case _:
                    reason = "it names no task"
        raise BadPayload(
            f'{reason}; a payload is {{"task": name, "args": [...], "kwargs": {{...}}}}'
        )


def _enqueues(name: str, queue: Any) -> bool:
    """Whether a queue's enqueue is awaited.

    Raises:
        TypeError: It is no queue, such as the call's first argument where the queue was left out.
    """
    enqueue = getattr(queue, "enqueue", None)
    if not callable(enqueue):
        raise TypeError(f"task {name}: the queue goes first, not {type(queue).__name__}")
    return inspect.iscoroutinefunction(enqueue)


def _named(kwargs: object) -> bool:
    return isinstance(kwargs, dict) and all(isinstance(key, str) for key in kwargs)


def _without_job(name: str, signature: inspect.Signature) -> inspect.Signature:
    """The signature that producers see."""
    parameters = list(signature.parameters.values())
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    if not parameters or parameters[0].kind not in positional:
        raise TypeError(f"task {name}: its first parameter takes the job, and it has none")
    return signature.replace(parameters=parameters[1:])


__all__ = [
    "BadPayload",
    "Codec",
    "EnqueueOptions",
    "JobTask",
    "StrictJson",
    "Task",
    "Tasks",
    "UnknownTask",
]

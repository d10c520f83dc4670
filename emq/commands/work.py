"""`emq work`: run a handler on the jobs of a queue."""

from __future__ import annotations

import argparse
import functools
import importlib
import logging
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final

from ..backoff import exponential, jitter
from ..queue import Queue
from ..telemetry import Telemetry
from ..units import about
from ..work import JsonCodec, check_handler
from . import link
from .arguments import count, delay, duration, explain, queue_name
from .render import note, printable

_BACKOFF_CAP_MS: Final = 300_000
_LEVELS: Final = ("debug", "info", "warning", "error")

_log: Final = logging.getLogger("emq.worker")


def configure(name: str, command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Run a handler on the jobs of a queue: a function of one job, or an emq.Tasks registry.\n"
        "What it returns completes the job, what it raises fails it. Coroutine functions run on\n"
        "one event loop, others on threads. Modules are looked for in the current folder first.\n\n"
        "SIGTERM or Ctrl-C stops claiming and lets running jobs finish; a second one gives them\n"
        "back at once. Exits 0 then.",
        "emq work shop.mails:send --queue mails --concurrency 8",
        "emq work shop.tasks:tasks -q work --concurrency 4 --time-limit 30s",
        "emq work shop.mails:send -q mails --burst",
        json=False,
    )
    command.add_argument(
        "handler", metavar="MODULE:HANDLER", help="where the handler is; dots go on after the colon"
    )
    command.add_argument(
        "-q", "--queue", metavar="QUEUE", type=queue_name, required=True, help="the queue's name"
    )
    command.add_argument(
        "--concurrency", type=count, default=1, metavar="N", help="jobs at a time (default: 1)"
    )
    command.add_argument(
        "--lease",
        type=duration,
        default=30_000,
        metavar="TIME",
        help="how long a crash delays a job; handlers may take longer (default: 30s)",
    )
    command.add_argument(
        "--max-attempts",
        type=count,
        default=10,
        metavar="N",
        help="a job that failed so often is dead (default: 10)",
    )
    command.add_argument(
        "--max-stalled",
        type=count,
        default=5,
        metavar="N",
        help="a job whose workers died so often is dead (default: 5)",
    )
    command.add_argument(
        "--backoff",
        type=delay,
        default=1000,
        metavar="TIME",
        help="how long a failed job waits at most, doubled by each further failure up to 5m "
        "(default: 1s)",
    )
    command.add_argument(
        "--time-limit", type=duration, metavar="TIME", help="how long an attempt may take"
    )
    command.add_argument(
        "--drain-timeout",
        type=delay,
        default=25_000,
        metavar="TIME",
        help="how long running jobs may take to finish when it stops (default: 25s)",
    )
    command.add_argument("--burst", action="store_true", help="end when nothing is left to do")
    command.add_argument(
        "--batch",
        type=count,
        default=1,
        metavar="N",
        help="claim and settle so many in one step (default: 1)",
    )
    command.add_argument(
        "--codec",
        choices=("json", "bytes"),
        default="bytes",
        help="what job.data and results are (default: bytes)",
    )
    command.add_argument(
        "--log-level",
        choices=_LEVELS,
        default="info",
        help="what is told on stderr; info tells of each job, debug shows what "
        "handlers raised with its traceback (default: info)",
    )
    command.set_defaults(run=work)


def work(options: argparse.Namespace) -> int:
    try:
        handler = _handler(options.handler)
    except _Failed:
        return 1
    logging.basicConfig(
        level=options.log_level.upper(),
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(message)s",
    )
    settings = {
        "concurrency": options.concurrency,
        "lease_ms": options.lease,
        "max_attempts": options.max_attempts,
        "max_stalled": options.max_stalled,
        "backoff": jitter(exponential(options.backoff, max(options.backoff, _BACKOFF_CAP_MS))),
        "time_limit_ms": options.time_limit,
        "drain_timeout": options.drain_timeout / 1000,
        "batch": options.batch,
        "codec": JsonCodec() if options.codec == "json" else None,
        "telemetry": _telemetry(handler),
    }
    if check_handler(handler):
        from .work_async import run
    else:
        run = _run
    stats = run(options, handler, settings)
    told = ", ".join(f"{stats[name]} {name}" for name in ("completed", "failed", "dead", "lost"))
    _log.info("queue %s: %s", options.queue, told)
    return 0


def _run(
    options: argparse.Namespace, handler: Callable[..., Any], settings: Mapping[str, Any]
) -> dict[str, int]:
    """Work on threads until stopped; the counters."""
    from ..consumer import Consumer  # threads, which no other command needs

    with link.to_write(options) as connector:
        consumer = made(Consumer, Queue(connector, options.queue), handler, settings)
        consumer.run(burst=options.burst)
        stats: dict[str, int] = consumer.stats()
        return stats


def made(
    kind: Callable[..., Any], queue: object, handler: object, settings: Mapping[str, Any]
) -> Any:
    """Make a consumer; what it refuses of its settings is wrong usage."""
    try:
        return kind(queue, handler, **settings)
    except (TypeError, ValueError) as error:
        raise argparse.ArgumentError(None, str(error)) from None


# The handler.


class _Failed(Exception):
    """The handler's module raised; its traceback was told."""


def _handler(named: str) -> Callable[..., Any]:
    """Import the handler.

    Raises:
        ArgumentError: There is none of that name.
        _Failed: Its module raised while it was imported.
    """
    module_name, _, path = named.partition(":")
    if not all(part.isidentifier() for part in [*module_name.split("."), *path.split(".")]):
        raise _wrong(f"{named!a} is no MODULE:HANDLER; write shop.mails:send")
    here = os.getcwd()
    if sys.path[:1] not in ([here], [""]):
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if missing != module_name and not module_name.startswith(f"{missing}."):
            raise _failed(module_name, error) from None
        raise _wrong(
            f"no module named {missing} here or in the Python path; "
            "start in the folder that holds it, or install it"
        ) from None
    except (Exception, SystemExit) as error:  # who exits there is no worker, and should say so
        raise _failed(module_name, error) from None
    owner = module_name
    for part in path.split("."):
        if not hasattr(found, part):
            raise _wrong(f"{owner} has no attribute {part}; check the name after the colon")
        found = getattr(found, part)
        owner = f"{owner}.{part}"
    if not callable(found):
        raise _wrong(
            f"{named} cannot be called, it is of type {type(found).__name__}; "
            "name a function of one job, or an emq.Tasks"
        )
    registry = sys.modules.get("emq.tasks")  # who has a task has imported it
    if registry is not None and isinstance(found, registry.Task | registry.JobTask):
        raise _wrong(f"{named} is one task; name the emq.Tasks that it is registered in")
    try:
        check_handler(found)
    except TypeError as error:
        raise _wrong(f"{named}: {error}") from None
    handler: Callable[..., Any] = found
    return handler


def _wrong(message: str) -> argparse.ArgumentError:
    return argparse.ArgumentError(None, message)


def _failed(module: str, error: BaseException) -> _Failed:
    """Tell of an error inside the module, from its first own frame on."""
    frames = error.__traceback__
    while frames is not None and _is_ours(frames.tb_frame.f_code.co_filename):
        frames = frames.tb_next
    if sys.stderr is not None:
        traceback.print_exception(error.with_traceback(frames))
    note(f"{module} cannot be imported; its own error is above")
    return _Failed()


def _is_ours(filename: str) -> bool:
    return filename in (__file__, importlib.__file__) or filename.startswith("<frozen importlib")


# What is told of jobs.


def _telemetry(handler: object) -> Telemetry | None:
    """Telemetry that logs jobs; None where nobody would read it, since it takes time."""
    if not _log.isEnabledFor(logging.INFO):
        return None
    telemetry = Telemetry()
    # Where there is but one function, its name says nothing.
    tasks = hasattr(getattr(handler, "__self__", handler), "job_name")
    telemetry.attach("emq.job", functools.partial(_tell, tasks))
    return telemetry


def _tell(
    tasks: bool, name: str, measurements: Mapping[str, Any], metadata: Mapping[str, Any]
) -> None:
    job = metadata.get("job_id")
    if tasks:
        job = f"{job} ({printable(str(metadata.get('job_name')), 60)})"
    took = about(measurements.get("duration", 0) / 1_000_000)
    match name.removeprefix("emq.job."):
        case "start":
            _log.debug("job %s: started", job)
        case "complete":
            _log.info("job %s: completed in %s", job, took)
        case "fail":  # the worker itself says where, and what comes of it
            _log.info("job %s: failed after %s", job, took)
        case "lost":
            _log.warning("job %s: its lease was lost after %s", job, took)


__all__ = ["configure", "made"]

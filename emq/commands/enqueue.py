"""`emq enqueue`: add a job, or many."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import BinaryIO, Final, Self

from ..errors import EmqError, JobGone
from ..job import Item, Receipt
from ..queue import Queue
from ..units import format_ms
from . import link
from .arguments import add_queue, count, date, dedup_id, delay, duration, explain, job_id
from .look import told
from .render import note, printable, say, say_json

_BULK: Final = 1000  # jobs that are sent in one flush, and known by their ids when it is answered
_RESULT_TTL_MS: Final = 300_000  # what --wait lets a job keep its outcome for, if nobody says


class InputError(EmqError):
    """A payload could not be read. Nothing was enqueued that was not told of."""


def configure(name: str, command: argparse.ArgumentParser) -> None:
    explain(
        command,
        "Add a job to a queue, and print its id. A job whose id, or whose deduplication key, is\n"
        "there already is not added; then the id printed is that job's.",
        'emq enqueue mails \'{"to": "ada@example.org"}\'',
        "emq enqueue mails --file mail.json --in 10m --max-attempts 3",
        "emq enqueue mails --lines - < addresses.txt",
        "emq enqueue reports 2026-11 --dedup report-2026-11 --wait=30s",
    )
    add_queue(command)
    command.add_argument(
        "payload", metavar="PAYLOAD", nargs="?", help="what the job carries; - reads it from stdin"
    )
    command.add_argument("--file", metavar="FILE", help="read it from a file")
    command.add_argument(
        "--lines",
        action="store_true",
        help="each line of the input is a job, without its line end; empty lines are passed over",
    )
    command.add_argument("--id", type=job_id, metavar="JOB", help="the job's id (default: minted)")
    due = command.add_mutually_exclusive_group()
    due.add_argument(
        "--in", dest="delay_ms", type=delay, metavar="TIME", help="run it after 5s, 2m"
    )
    due.add_argument(
        "--at",
        dest="run_at_ms",
        type=date,
        metavar="WHEN",
        help="run it at 2030-01-31T12:00:00Z, or at an instant in ms since 1970",
    )
    command.add_argument(
        "--dedup", type=dedup_id, metavar="KEY", help="only if no job that is not done has this key"
    )
    command.add_argument(
        "--dedup-ttl", type=duration, metavar="TIME", help="free the key after this time at latest"
    )
    command.add_argument(
        "--max-attempts", type=count, metavar="N", help="dead after so many failures"
    )
    command.add_argument(
        "--time-limit", type=duration, metavar="TIME", help="how long an attempt may take"
    )
    command.add_argument(
        "--result-ttl",
        type=duration,
        metavar="TIME",
        help="how long its outcome is kept (default: not at all, "
        f"or {format_ms(_RESULT_TTL_MS)} with --wait)",
    )
    command.add_argument(
        "--wait",
        nargs="?",
        type=duration,
        const=0,
        metavar="TIME",
        help="wait for the outcome and print it, for a time or for ever; "
        "exits 1 where the job died, or the time is up",
    )
    command.set_defaults(run=enqueue)


def enqueue(options: argparse.Namespace) -> int:
    if (options.payload is None) is (options.file is None):
        raise argparse.ArgumentError(None, "give PAYLOAD, or -, or --file, and one of them only")
    if options.dedup_ttl is not None and options.dedup is None:
        raise argparse.ArgumentError(None, "--dedup-ttl is the time of a --dedup key")
    if options.lines:
        for name in ("id", "dedup", "wait"):
            if getattr(options, name) is not None:
                raise argparse.ArgumentError(None, f"--{name} is for one job, --lines are many")
        if options.payload not in (None, "-"):
            raise argparse.ArgumentError(None, "--lines reads a --file or -, not PAYLOAD")
        return _lines(options)
    payload = _payload(options)
    keeps = options.result_ttl
    if options.wait is not None and keeps is None:
        keeps = _RESULT_TTL_MS
    with link.to_write(options) as connector:
        queue = Queue(connector, options.queue)
        receipt = queue.enqueue(
            payload,
            job_id=options.id,
            delay_ms=options.delay_ms,
            run_at_ms=options.run_at_ms,
            dedup=options.dedup,
            dedup_ttl_ms=options.dedup_ttl,
            result_ttl_ms=keeps,
            max_attempts=options.max_attempts,
            time_limit_ms=options.time_limit,
        )
        if not receipt.admitted:
            note(f"job {receipt.job_id} is there already; nothing was changed")
        if options.wait is None:
            _tell([receipt], options)
            return 0
        if not options.json:
            say(receipt.job_id)
        return _wait(queue, receipt, options)


def _wait(queue: Queue, receipt: Receipt, options: argparse.Namespace) -> int:
    timeout = options.wait / 1000 if options.wait else None
    try:
        outcome = queue.wait(receipt.job_id, timeout)
    except JobGone:
        outcome, gone = None, "it is gone, and kept no outcome"
    else:
        gone = f"no outcome after {format_ms(options.wait)}" if options.wait else "no outcome"
    if options.json:
        end = None if outcome is None else told(outcome)
        say_json({"job": receipt.job_id, "admitted": receipt.admitted, "outcome": end})
    if outcome is None:
        note(
            f"job {receipt.job_id}: {gone}; emq show {queue.name} {receipt.job_id} tells its state"
        )
        return 1
    if not options.json:
        end_text = outcome.result if outcome.state == "completed" else outcome.error
        say(f"{outcome.state}{'' if end_text is None else ': ' + printable(end_text, None)}")
    return 0 if outcome.state == "completed" else 1


def _lines(options: argparse.Namespace) -> int:
    with _Input(options) as source, link.to_write(options) as connector:
        queue = Queue(connector, options.queue)
        while bulk := source.lines(_BULK):
            receipts = queue.enqueue_many(
                [
                    Item(
                        payload,
                        delay_ms=options.delay_ms,
                        run_at_ms=options.run_at_ms,
                        result_ttl_ms=options.result_ttl,
                        max_attempts=options.max_attempts,
                        time_limit_ms=options.time_limit,
                    )
                    for payload in bulk
                ]
            )
            _tell(receipts, options)
    return 0


def _tell(receipts: list[Receipt], options: argparse.Namespace) -> None:
    if options.json:
        say_json(*({"job": each.job_id, "admitted": each.admitted} for each in receipts))
    else:
        say(*(each.job_id for each in receipts))


def _payload(options: argparse.Namespace) -> bytes:
    if options.file is None and options.payload != "-":
        return os.fsencode(options.payload)
    with _Input(options) as source:
        return source.whole()


class _Input:
    """What is read of a file or of stdin, whose failures are told in one line."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._name = options.file
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        if self._name is not None:
            with self._failing():
                self._file = open(self._name, "rb")
        elif sys.stdin is not None:
            self._file = sys.stdin.buffer
        else:
            raise InputError("stdin is closed; give the payload, or --file")
        return self

    def __exit__(self, *error: object) -> None:
        if self._name is not None and self._file is not None:
            self._file.close()

    def whole(self) -> bytes:
        """Answer all of it."""
        assert self._file is not None
        with self._failing():
            return self._file.read()

    def lines(self, most: int) -> list[bytes]:
        """Answer the next lines that are not empty; none at the end."""
        assert self._file is not None
        with self._failing():
            lines = (line.removesuffix(b"\n").removesuffix(b"\r") for line in self._file)
            return list(islice(filter(None, lines), most))

    @contextmanager
    def _failing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            name = "stdin" if self._name is None else ascii(self._name)
            raise InputError(
                f"{name} cannot be read: {error.strerror or error}; give another --file"
            ) from None


__all__ = ["InputError", "configure"]

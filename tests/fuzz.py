"""Fuzz a decoder for as long as you like.

    python -m tests.fuzz --minutes 10 [--seed N] [--decoder module:Class]

Every property of `tests.strategies` is tried with fresh examples, in rounds, until the time is up.
The first failure is shrunk, printed with what reproduces it, and ends the run with 1.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st

from resp.decode import Decoder
from tests.strategies import (
    Cut,
    Factory,
    Stream,
    check_cuts_agree,
    check_prefix,
    check_round_trip,
    check_same,
    cuts,
    garbage,
    plain,
    streams,
)

_EXAMPLES = 500  # a round of one property: a few seconds, so that the time given is kept to


def properties(factory: Factory) -> dict[str, Callable[[], None]]:
    """Answer the properties to try, by name."""

    @given(streams(), cuts())
    def round_trip(stream: Stream, cut: Cut) -> None:
        check_round_trip(factory, stream, cut)

    @given(streams(resp2=True), cuts())
    def round_trip_of_resp2(stream: Stream, cut: Cut) -> None:
        check_round_trip(factory, stream, cut)

    @given(streams(), st.floats(0, 1))
    def prefix(stream: Stream, at: float) -> None:
        check_prefix(factory, stream, at)

    @given(garbage(), cuts())
    def cuts_agree(wire: bytes, cut: Cut) -> None:
        check_cuts_agree(factory, wire, cut)

    tried: dict[str, Callable[[], None]] = {
        "round trip": round_trip,
        "round trip of RESP2": round_trip_of_resp2,
        "prefix": prefix,
        "cuts agree on garbage": cuts_agree,
    }
    if factory is Decoder:

        @given(garbage(), cuts())
        def paths_agree(wire: bytes, cut: Cut) -> None:
            check_same(Decoder, plain, wire, cut)

        @given(streams(), cuts())
        def paths_agree_on_streams(stream: Stream, cut: Cut) -> None:
            check_same(Decoder, plain, stream.wire, cut)

        tried["bursts agree on garbage"] = paths_agree
        tried["bursts agree"] = paths_agree_on_streams
    return tried


def load(name: str) -> Factory:
    """Import `module:Class`."""
    module, _, attribute = name.partition(":")
    factory: Any = getattr(importlib.import_module(module), attribute)
    return factory  # type: ignore[no-any-return]


def main(argv: list[str] | None = None) -> int:
    """Run the fuzz; answer the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.fuzz", description=__doc__.split("\n")[0]
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="how long; 1 unless given")
    parser.add_argument("--seed", type=int, help="the first round's seed; random unless given")
    parser.add_argument("--decoder", default="resp.decode:Decoder", help="module:Class")
    parser.add_argument("--examples", type=int, default=_EXAMPLES, help="examples a round")
    options = parser.parse_args(argv)

    factory = load(options.decoder)
    number = random.randrange(2**32) if options.seed is None else options.seed
    profile = settings(
        max_examples=options.examples,
        deadline=None,
        database=None,
        derandomize=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    until = time.monotonic() + 60 * options.minutes
    examples = 0
    while True:
        for name, check in properties(factory).items():
            try:
                seed(number)(profile(check))()
            except Exception as error:
                print(
                    f"\nFAILED: {name}, seed {number}, after {examples} examples", file=sys.stderr
                )
                traceback.print_exception(error)
                print(
                    f"reproduce: python -m tests.fuzz --minutes 0 --seed {number}"
                    f" --examples {options.examples} --decoder {options.decoder}",
                    file=sys.stderr,
                )
                return 1
            examples += options.examples
            left = until - time.monotonic()
            print(
                f"seed {number}: {name}: held; {examples} examples, {max(left, 0):.0f} s left",
                flush=True,
            )
            if left < 0 and options.minutes:
                print(f"no failure in {examples} examples")
                return 0
        if not options.minutes:
            return 0
        number += 1


if __name__ == "__main__":
    sys.exit(main())

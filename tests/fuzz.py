"""Fuzz a decoder for as long as you like.

    python -m tests.fuzz --minutes 10 [--seed N] [--decoder module:Class]

Every property of `tests.strategies` is tried with fresh examples, in turn, until the time is up,
and at least once however short it is. The first failure is shrunk, printed with what reproduces it,
and ends the run with 1.
"""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from typing import Any

from bench.ending import exit_code, needs_dev
from tests import numbers

try:
    from hypothesis import HealthCheck, given, seed, settings
    from hypothesis import strategies as st
except ImportError:
    raise needs_dev("tests.fuzz") from None

from resp.decode import Decoder
from tests.strategies import (
    BURST_LIMITS,
    Factory,
    check_cuts_agree,
    check_prefix,
    check_round_trip,
    check_same,
    check_ways_agree,
    cuts,
    garbage,
    plain,
    runs,
    streams,
)

_EXAMPLES = 500  # a round of one property: a few seconds, so that the time given is kept to


def properties(factory: Factory, counts: Counter[str]) -> dict[str, Callable[[], None]]:
    """Answer the properties to try, by name; each counts its examples under that name."""
    tried: dict[str, Callable[[], None]] = {}

    def add(name: str, check: Callable[..., None], *drawn: st.SearchStrategy[Any]) -> None:
        @given(st.tuples(*drawn))
        def hold(example: tuple[Any, ...]) -> None:
            counts[name] += 1
            check(*example)

        tried[name] = hold

    def round_trip(stream: Any, cut: Any) -> None:
        check_round_trip(factory, stream, cut)

    add("round trip", round_trip, streams(), cuts())
    add("round trip of RESP2", round_trip, streams(resp2=True), cuts())
    add(
        "prefix",
        lambda stream, at: check_prefix(factory, stream, at),
        streams(),
        st.floats(0, 1),
    )
    add(
        "cuts agree on garbage",
        lambda wire, cut: check_cuts_agree(factory, wire, cut),
        garbage(),
        cuts(),
    )
    add(
        "cuts agree on runs",
        lambda wire, cut: check_cuts_agree(factory, wire, cut),
        runs(),
        cuts(),
    )
    if factory is Decoder:
        add("all ways agree on runs", check_ways_agree, runs(), cuts())
        add(
            "all ways agree on runs within limits",
            lambda wire, cut, depth: check_ways_agree(wire, cut, **BURST_LIMITS, max_depth=depth),
            runs(),
            cuts(),
            st.integers(0, 3),
        )
        add(
            "bursts agree on garbage",
            lambda wire, cut: check_same(Decoder, plain, wire, cut),
            garbage(),
            cuts(),
        )
        add(
            "bursts agree",
            lambda stream, cut: check_same(Decoder, plain, stream.wire, cut),
            streams(),
            cuts(),
        )
    return tried


def load(name: str) -> Factory:
    """Import `module:Class`.

    Raises:
        ArgumentTypeError: There is no such thing.
    """
    module, _, attribute = name.partition(":")
    try:
        factory: Any = getattr(importlib.import_module(module), attribute)
    except Exception as error:  # the module's own, too
        raise argparse.ArgumentTypeError(f"is module:Class, not {name!r}: {error}") from None
    if not callable(factory):
        raise argparse.ArgumentTypeError(f"{name!r} cannot be called to make a decoder")
    return factory  # type: ignore[no-any-return]


def _examples(text: str) -> int:
    examples = int(text)
    if not 1 <= examples <= 1_000_000:
        raise argparse.ArgumentTypeError("must be 1 to 1,000,000")
    return examples


def main(argv: list[str] | None = None) -> int:
    """Run the fuzz; answer the exit code."""
    told = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=told)
    parser.add_argument(
        "--minutes",
        type=numbers.minutes,
        default=1.0,
        help="how long; 1 unless given; the first round is always whole",
    )
    parser.add_argument("--seed", type=int, help="the first round's seed; random unless given")
    parser.add_argument("--decoder", default="resp.decode:Decoder", help="module:Class")
    parser.add_argument("--examples", type=_examples, default=_EXAMPLES, help="examples a round")
    options = parser.parse_args(argv)
    try:
        factory = load(options.decoder)
    except argparse.ArgumentTypeError as error:
        print(f"python -m tests.fuzz: --decoder {error}", file=sys.stderr)
        return 2

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
    counts: Counter[str] = Counter()
    first_round = True
    while True:
        for name, check in properties(factory, counts).items():
            if not first_round and time.monotonic() >= until:
                break
            try:
                seed(number)(profile(check))()
            except Exception as error:
                print(
                    f"\nFAILED: {name}, seed {number}, after {counts.total()} examples",
                    file=sys.stderr,
                )
                traceback.print_exception(error)
                print(
                    f"reproduce: python -m tests.fuzz --minutes 0.01 --seed {number}"
                    f" --examples {options.examples} --decoder {options.decoder}",
                    file=sys.stderr,
                )
                return 1
            left = max(until - time.monotonic(), 0)
            print(
                f"seed {number}: {name}: held; {counts.total()} examples, {left:.0f} s left",
                flush=True,
            )
        if time.monotonic() >= until:
            each = ", ".join(f"{name} {counts[name]}" for name in counts)
            print(f"no failure in {counts.total()} examples: {each}")
            return 0
        first_round = False
        number += 1


if __name__ == "__main__":
    sys.exit(exit_code(main))

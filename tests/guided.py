"""Fuzz the decoder or the tap, led by coverage: what reaches a new line is varied further.

    python -m tests.guided decoder|tap [--minutes 10] [--seed N] [--corpus DIR] [--keep] [--json]

It proves what `tests.targets` says of the two, of bytes that nobody thought of. It starts from the
inputs in `tests/data/corpus` and from what real servers said, and needs atheris (libFuzzer) from
the `dev` extra, which there is for CPython on Linux. An input that breaks a promise is printed as a
line for `tests/data/corpus`, where it becomes a regression test under a name that says what it was,
and ends the run with 1. The seed decides what is tried, as far as time does not.

`--keep` ends a clean run by choosing again, from all inputs, the fewest that reach the same lines;
those that have a name of their own stay.
"""

from __future__ import annotations

import argparse
import ast
import base64
import hashlib
import importlib
import json
import random
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from bench.ending import exit_code
from tests.numbers import minutes

DATA: Final = Path(__file__).with_name("data")
DICTIONARY: Final = DATA / "resp.dict"
LONGEST: Final = 1024
"""Bytes of an input; with repetitions, some times that of a wire."""

_SLOWEST: Final = 20  # seconds for one input; none should take a tenth of one
_MOST: Final = 250  # inputs that a target keeps
_CHILD: Final = "from tests.guided import fuzz; fuzz()"
_STATUS: Final = re.compile(r"#(\d+)\s+[A-Z]\w* +cov: (\d+) ft: (\d+) (?:corp: (\d+)/\S+)?")
_NAMELESS: Final = re.compile(r"[0-9a-f]{12}")  # an input that is kept for what it reaches
_HEADER: Final = re.compile(rb"(?<=[$!=;])[0-9]+(?=\r\n)")
_NUMBER: Final = re.compile(rb"(?<=[$!=;*%~>|:])[0-9]+(?=\r\n)")


# Varying


def tokens() -> list[bytes]:
    """Answer the words of the dictionary."""
    lines = DICTIONARY.read_text().splitlines()
    return [ast.literal_eval(f"b{line}") for line in lines if line.startswith('"')]


class Mutator:
    """Varies an input: at random as libFuzzer does, or as a piece of RESP.

    Args:
        words: What is put in.
        usual: Varies anything, and keeps to a size.
    """

    def __init__(self, words: list[bytes], usual: Callable[[bytes, int], bytes]) -> None:
        self._words = words
        self._usual = usual

    def __call__(self, data: bytes, most: int, seed: int) -> bytes:
        """Answer another input, of at most `most` bytes; the seed decides which."""
        rng = random.Random(seed)
        head, wire = data[:2].ljust(2, b"\0"), data[2:]
        match rng.randrange(12):
            case 0:
                found = head + self._insert(rng, wire)
            case 1:
                found = head + self._move(rng, wire)
            case 2:
                found = head + _mend(wire)
            case 3:
                found = head + _count(rng, wire)
            case 4:
                found = head + self._insert(rng, _mend(_count(rng, wire)))
            case 5:
                found = bytes((rng.randrange(256), rng.randrange(256))) + wire
            case 6:
                found = head + _run(rng, wire)
            case _:
                found = self._usual(data, most)
        return found[:most]

    def _insert(self, rng: random.Random, wire: bytes) -> bytes:
        at = rng.choice(_boundaries(wire))
        return wire[:at] + rng.choice(self._words) + wire[at:]

    def _move(self, rng: random.Random, wire: bytes) -> bytes:
        """Drop some tokens, or copy them to another place."""
        places = _boundaries(wire)
        start, stop = sorted((rng.choice(places), rng.choice(places)))
        if rng.randrange(2):
            return wire[:start] + wire[stop:]
        at = rng.choice(places)
        return wire[:at] + wire[start:stop] + wire[at:]


def _boundaries(wire: bytes) -> list[int]:
    return [0, *(found.end() for found in re.finditer(rb"\r\n", wire)), len(wire)]


def _mend(wire: bytes) -> bytes:
    """Make each blob as long as its header says, by changing the header."""

    def length(found: re.Match[bytes]) -> bytes:
        stop = wire.find(b"\r\n", found.end() + 2)
        return b"%d" % (stop - found.end() - 2) if stop >= 0 else found[0]

    return _HEADER.sub(length, wire)


def _count(rng: random.Random, wire: bytes) -> bytes:
    """Change a number."""
    numbers = list(_NUMBER.finditer(wire))
    if not numbers:
        return wire
    start, stop = rng.choice(numbers).span()
    number = int(wire[start : min(stop, start + 20)])
    other = rng.choice([number + 1, max(number - 1, 0), 0, 1, 16, 17, 64, 65, 1023, 1024, 2**63])
    return wire[:start] + b"%d" % other + wire[stop:]


def _run(rng: random.Random, wire: bytes) -> bytes:
    """Put in equal replies, some of which are spoiled."""
    strategies = importlib.import_module("tests.strategies")  # only once it is instrumented
    at = rng.choice(_boundaries(wire))
    run: bytes = strategies.write_runs(rng)
    return wire[:at] + run + wire[at:]


# In the process that fuzzes


def fuzz() -> None:
    """Fuzz the target that the command line names first; libFuzzer reads the rest of it."""
    import atheris

    with atheris.instrument_imports(include=["resp"]):
        targets = importlib.import_module("tests.targets")
    name, *options = sys.argv[1:]
    # The name is bound anew by Fuzz().
    mutator = Mutator(tokens(), lambda data, most: atheris.Mutate(data, most))
    command = shlex.join([sys.executable, "-c", _CHILD, name])  # which -merge runs again
    atheris.Setup([command, *options], targets.TARGETS[name], custom_mutator=mutator)
    atheris.Fuzz()


# In the process that tells


class Fuzzing:
    """A run of libFuzzer.

    Attributes:
        executions, coverage, features, inputs: What it told last.
        told: The lines of its that are no status: of a failure, the traceback.
    """

    def __init__(self) -> None:
        self.executions = self.coverage = self.features = self.inputs = 0
        self.told: list[str] = []

    def run(self, target: str, options: list[str]) -> int:
        """Run it to its end; answer its exit code."""
        command = [sys.executable, "-u", "-c", _CHILD, target, *options]
        progress = sys.stderr.isatty()
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
        ) as process:
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    self._hear(line.rstrip("\n"))
                    if progress:
                        print(f"\r\x1b[K{self}", end="", file=sys.stderr, flush=True)
            except BaseException:
                process.kill()
                raise
        if progress:
            print("\r\x1b[K", end="", file=sys.stderr)
        return process.returncode

    def _hear(self, line: str) -> None:
        found = _STATUS.match(line)
        if not found:
            self.told.append(line)
            return
        self.executions, self.coverage, self.features = map(int, found.group(1, 2, 3))
        self.inputs = int(found[4] or self.inputs)

    def __str__(self) -> str:
        return (
            f"{self.executions} executions, coverage {self.coverage},"
            f" features {self.features}, corpus {self.inputs}"
        )

    def failure(self) -> str:
        """What went wrong, without libFuzzer's own words before it."""
        starts = [at for at, line in enumerate(self.told) if "Uncaught" in line or "ERROR" in line]
        return "\n".join(self.told[starts[0] if starts else -20 :])


def seeds(target: str) -> list[bytes]:
    """Answer what a run starts from: the target's corpus, and what real servers said."""
    from tests.targets import PART, corpus

    found = list(corpus(target).values())
    for text in (DATA / "captures.jsonl").read_text().splitlines():
        capture = json.loads(text)
        reply = base64.b64decode(capture["reply_b64"])
        if target == "decoder":
            found.append(b"\0\6" + reply)
            continue
        said = "".join(f"{command}\r\n" for command in capture["commands"]).encode()
        found += [b"\0\6" + reply, b"\1\6" + said, b"\2\6" + said + PART + reply]
    for case in json.loads((DATA / "resp_cases.json").read_text())["cases"]:
        found.append(b"\0\2" + bytes.fromhex(case.get("input", "")))
    return [data for data in found if len(data) <= LONGEST]


def minimise(target: str, grown: Path, scratch: Path) -> int:
    """Keep the fewest inputs that reach what all do, and the named ones; answer how many."""
    from tests.targets import corpus, keep

    chosen = scratch / "chosen"
    chosen.mkdir()
    merge = Fuzzing()
    # Lines alone, not how often each ran: a corpus for that would be ten times as large.
    code = merge.run(
        target,
        ["-merge=1", "-use_counters=0", f"-max_len={LONGEST}", str(chosen), str(grown)],
    )
    if code:
        raise SystemExit(f"python -m tests.guided: -merge ended with {code}\n{merge.failure()}")
    kept = {name: data for name, data in corpus(target).items() if not _NAMELESS.fullmatch(name)}
    found = sorted((path.read_bytes() for path in chosen.iterdir()), key=len)
    for data in found[: _MOST - len(kept)]:
        kept[hashlib.sha256(data).hexdigest()[:12]] = data
    keep(target, kept)
    return len(kept)


def _why_not() -> str:
    if find_spec("atheris") is not None:
        return ""
    if sys.platform != "linux" or sys.implementation.name != "cpython":
        return "needs atheris, which there is for CPython on Linux only; python -m tests.fuzz runs"
    return "needs atheris; pip install -e '.[dev]', or python -m tests.fuzz, which does without"


def main(argv: list[str] | None = None) -> int:
    """Run the fuzz; answer the exit code."""
    told = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m tests.guided", description=told)
    parser.add_argument("target", choices=["decoder", "tap"])
    parser.add_argument("--minutes", type=minutes, default=1.0, help="how long; 1 unless given")
    parser.add_argument("--seed", type=int, help="random unless given")
    parser.add_argument("--corpus", type=Path, metavar="DIR", help="read and grown, run by run")
    parser.add_argument("--keep", action="store_true", help="choose the inputs in the tree again")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    options = parser.parse_args(argv)
    why_not = _why_not()
    if why_not:
        print(f"python -m tests.guided: {why_not}", file=sys.stderr)
        return 2
    if options.corpus is not None:
        try:
            options.corpus.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            parser.error(f"--corpus {options.corpus}: {error.strerror}")
    number = random.randrange(1, 2**31) if options.seed is None else options.seed
    with tempfile.TemporaryDirectory() as directory:
        return _run_in(Path(directory), options, number)


def _run_in(scratch: Path, options: argparse.Namespace, number: int) -> int:
    grown = options.corpus or scratch / "grown"
    grown.mkdir(parents=True, exist_ok=True)
    for data in seeds(options.target):
        (grown / hashlib.sha1(data).hexdigest()).write_bytes(data)
    fuzzing = Fuzzing()
    code = fuzzing.run(
        options.target,
        [
            f"-max_total_time={max(1, round(60 * options.minutes))}",
            f"-seed={number}",
            f"-max_len={LONGEST}",
            f"-timeout={_SLOWEST}",
            f"-dict={DICTIONARY}",
            f"-artifact_prefix={scratch}/",
            str(grown),
        ],
    )
    if code:
        print(f"FAILED: {options.target}, seed {number}, {fuzzing}", file=sys.stderr)
        print(fuzzing.failure(), file=sys.stderr)
        for path in [*scratch.glob("crash-*"), *scratch.glob("timeout-*"), *scratch.glob("oom-*")]:
            entry = {"name": path.name, "input": path.read_bytes().decode("latin-1")}
            print(json.dumps(entry))
        return 1
    figures: dict[str, Any] = {
        "target": options.target,
        "seed": number,
        "minutes": options.minutes,
        "executions": fuzzing.executions,
        "coverage": fuzzing.coverage,
        "features": fuzzing.features,
        "inputs": fuzzing.inputs,
    }
    if options.keep:
        figures["kept"] = minimise(options.target, grown, scratch)
    if options.json:
        print(json.dumps(figures))
    else:
        kept = f"; {figures['kept']} inputs kept" if options.keep else ""
        print(f"{options.target}: no failure, seed {number}: {fuzzing}{kept}")
    return 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

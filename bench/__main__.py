"""`python -m bench NAME [options]`: run one benchmark."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Final

from .ending import exit_code, lost_connection

# One module a benchmark, imported when it is asked for: their peers are not all installed.
BENCHMARKS: Final = {
    "all": "all of these in turn, as tables, markdown, JSON, one HTML page, and for the README",
    "bytes": "EVAL every time against EVALSHA after one SCRIPT LOAD, to the byte",
    "codec": "encoding and decoding, beside hiredis and redis-py's parser",
    "grow": "how cost grows with the reply, the callers, and the length of a queue",
    "jobs": "jobs through a queue and its workers, beside other queues",
    "start": "what it costs to begin, and to wait",
    "tap": "what looking at the bytes costs, in a connector and through the proxy",
    "wire": "one caller, pipelines, threads and tasks, beside peers and a bare socket",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Hand the arguments to the benchmark they name; 2 where they name none."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in BENCHMARKS:
        try:
            code: int | None = importlib.import_module(f"bench.{words[0]}").main(words[1:])
        except BrokenPipeError:  # of stdout: whoever read it has gone
            raise
        except Exception as error:
            if (lost := lost_connection(error)) is None:
                raise
            print(f"bench {words[0]}: the server has gone: {lost}", file=sys.stderr)
            return 3
        return code or 0
    asked = words in (["-h"], ["--help"])
    out = sys.stdout if asked else sys.stderr
    print("usage: python -m bench NAME [options]; NAME --help says which\n", file=out)
    for name, what in BENCHMARKS.items():
        print(f"  {name:7} {what}", file=out)
    return 0 if asked else 2


if __name__ == "__main__":
    raise SystemExit(exit_code(main))

"""Break the product a little, many times, and see that the tests notice each time.

    python -m tests.mutants lua        the scripts of emq/lua
    python -m tests.mutants decoder    resp/decode.py
        --only NAME     mutants of this file, or of this name, alone; once a name
        --sample N      so many of them, drawn by --seed N
        --jobs N        mutants at once, each on a server of its own
        --tests PATH    the tests that may kill, once a path
        --slowest S     no test that takes longer
        --resume FILE   keep what was found in FILE, and go on from there
        --again         try those once more that survived
        --list          only say which mutants there are
        --json          a line a mutant

A mutant is one change of one place: a statement is dropped, a comparison becomes its negation or
its neighbour, `and` becomes `or`, a `not` goes, a number is one more, a word is another. It is
killed when a test fails, and it survives when all tests pass that run where it is.
`tests/data/survivors.json` has the survivors that are let be, each with the reason; another one
is a fault.

The tests are collected once. Each mutant is a forked child of that process, where the source is
replaced before anything has been read from it. Two runs over the tests come first. One notes the
lines of Lua, or the functions of Python, that each test runs. The other changes comments only: a
test that fails then looks at texts, and is left out.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import itertools
import json
import math
import os
import random
import re
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, Final, NamedTuple, Protocol, TypeAlias

from bench.ending import exit_code, needs_dev
from tests import numbers

try:
    import pytest
except ImportError:
    raise needs_dev("tests.mutants") from None

ROOT: Final = Path(__file__).parent.parent
SURVIVORS: Final = Path(__file__).parent / "data" / "survivors.json"
_CHANNEL: Final = "mutants"  # where instrumented scripts say which line they run
_OTHER_SHELLS: Final = re.compile(r"threads-resp2|aio-resp[23]")  # the scripts are the same
_GRACE_S: Final = 10.0  # a test that takes so much longer than it should is a loop without end
_UNKNOWN_S: Final = 30.0  # a test that takes longer is too slow to be one of many


class Mutant(NamedTuple):
    """One change of one file.

    Attributes:
        file: The file's name.
        kind: What is changed into what.
        text: The line, or the statement's first line, without what surrounds it.
        occurrence: Which of those that are alike, from 1.
        line: The line that must be run for it to matter; of Python, its function's first.
        source: The file as it becomes.
    """

    file: str
    kind: str
    text: str
    occurrence: int
    line: int
    source: str

    @property
    def key(self) -> str:
        """What it is called in the list of survivors; edits elsewhere do not change it."""
        nth = f" #{self.occurrence}" if self.occurrence > 1 else ""
        return f"{self.file}: {self.kind}: {self.text}{nth}"

    def is_one_of(self, names: Iterable[str]) -> bool:
        """Whether a name is its file's, or the beginning of its key."""
        return any(
            self.file in (name, f"{name}.lua", f"{name}.py")
            or self.key.startswith(name + ":")
            or self.key == name
            for name in names
        )


class Edit(NamedTuple):
    """A part of a source, what takes its place, and the line that runs it."""

    start: int
    end: int
    new: str
    kind: str
    line: int


def mutants_of(file: str, source: str, edits: Iterable[Edit]) -> Iterator[Mutant]:
    """Make each edit a mutant, and number those that are alike."""
    lines = source.split("\n")
    seen: Counter[tuple[str, str]] = Counter()
    for start, end, new, kind, line in sorted(edits):
        text = lines[source.count("\n", 0, start)].strip()
        seen[kind, text] += 1
        mutated = source[:start] + new + source[end:]
        yield Mutant(file, kind, text, seen[kind, text], line, mutated)


# Lua.

_NEGATIONS: Final = {
    "==": ("~=",),
    "~=": ("==",),
    "<": (">=", "<="),
    "<=": (">", "<"),
    ">": ("<=", ">="),
    ">=": ("<", ">"),
}
_SWAPS: Final = {"and": "or", "or": "and", "+": "-", "-": "+"}
_TOKEN: Final = re.compile(
    r"""(?P<space>\s+|--[^\n]*)
    |(?P<string>'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*")
    |(?P<number>\d+(?:\.\d+)?)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<sign>\.\.\.|\.\.|==|~=|<=|>=|[-+*/%^\#<>=(){}\[\];:,.])""",
    re.VERBOSE | re.DOTALL,
)
_CLOSERS: Final = frozenset({"end", "else", "elseif", "until"})
_LEADS: Final = frozenset({*"=,({[+-*/%^<>:.", "..", "==", "~=", "<=", ">=", "and", "or", "not"})
_TRAILS: Final = _LEADS - {"(", "{", "not"} | {")", "}", "]"}
_OPERATORS: Final = _LEADS | {"return", "then", "do", "if", "elseif", "while", "until", "in"}
_LOGIC: Final = frozenset({*_NEGATIONS, "and", "or", "not"})
_WORD: Final = re.compile(r"[A-Za-z][\w:. -]*")
_DIGITS: Final = re.compile(r"\d+")


class Token(NamedTuple):
    """A token of a Lua source; `first` says that it begins a line."""

    kind: str
    text: str
    start: int
    line: int
    first: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


class Statement(NamedTuple):
    """The tokens of a statement, `first` to `last`; whether others are inside it."""

    first: int
    last: int
    compound: bool


class Lua:
    """The statements of a Lua source, laid out as those of the house are: one begins its line."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.tokens: list[Token] = []
        self.statements: list[Statement] = []
        self.conditions: list[tuple[int, int]] = []
        at, line, first = 0, 1, True
        while at < len(source):
            found = _TOKEN.match(source, at)
            if found is None:
                raise ValueError(f"line {line}: not a token: {source[at : at + 20]!r}")
            kind, text = found.lastgroup or "", found[0]
            if kind == "space":
                first = first or "\n" in text
            else:
                self.tokens.append(Token(kind, text, at, line, first))
                first = False
            line += text.count("\n")
            at = found.end()
        if self._block(0) != len(self.tokens):
            raise ValueError("a block closes that was not opened")

    def _text(self, at: int) -> str:
        return self.tokens[at].text if at < len(self.tokens) else "end"

    def _block(self, at: int) -> int:
        while at < len(self.tokens) and self._text(at) not in _CLOSERS:
            at = self._statement(at)
        return at

    def _statement(self, first: int) -> int:
        word = self._text(first)
        place = len(self.statements)
        if word == "if":
            at = self._block(self._condition(first + 1, "then"))
            while self._text(at) == "elseif":
                at = self._block(self._condition(at + 1, "then"))
            if self._text(at) == "else":
                at = self._block(at + 1)
            at += 1
        elif word == "while":
            at = self._block(self._condition(first + 1, "do")) + 1
        elif word == "for":
            at = self._block(self._expression(first + 1, "do") + 1) + 1
        elif word == "do":
            at = self._block(first + 1) + 1
        elif word == "function" or (word == "local" and self._text(first + 1) == "function"):
            at = self._body(first + 1)
        else:
            at = self._expression(first + 1)
            self.statements.insert(place, Statement(first, at - 1, False))
            return at
        self.statements.insert(place, Statement(first, at - 1, True))
        return at

    def _condition(self, first: int, closer: str) -> int:
        at = self._expression(first, closer)
        self.conditions.append((first, at - 1))
        return at + 1

    def _body(self, at: int) -> int:
        """Pass a function from its parameters on; answer what follows its `end`."""
        while self._text(at) != ")":
            at += 1
        return self._block(at + 1) + 1

    def _expression(self, at: int, closer: str = "") -> int:
        """Pass tokens up to `closer`, or to where another statement begins or a block ends."""
        depth = 0
        while at < len(self.tokens):
            token = self.tokens[at]
            if token.text == "function":
                at = self._body(at + 1)
                continue
            if not depth and closer and token.text == closer:
                return at
            if not depth and not closer:
                if token.text in _CLOSERS:
                    return at
                goes_on = token.text in _TRAILS or self._text(at - 1) in _LEADS
                if token.first and not goes_on:
                    return at
            depth += (token.text in "([{") - (token.text in ")]}")
            at += 1
        return at

    def line_of(self, token: int) -> int:
        """The line of the innermost statement around a token, which runs if the token does."""
        around = [each for each in self.statements if each.first <= token <= each.last]
        return self.tokens[max(around).first].line

    def edits(self) -> Iterator[Edit]:
        """What may be changed."""
        for statement in self.statements:
            if not statement.compound:
                begin, end = self.tokens[statement.first], self.tokens[statement.last]
                yield Edit(begin.start, end.end, "", "drop", begin.line)
        for first, last in self.conditions:
            tokens = self.tokens[first : last + 1]
            if not any(token.text in _LOGIC for token in tokens):
                negated = f"not ({self.source[tokens[0].start : tokens[-1].end]})"
                line = self.line_of(first)
                yield Edit(tokens[0].start, tokens[-1].end, negated, "negate", line)
        for at, token in enumerate(self.tokens):
            before = self._text(at - 1) if at else "do"
            for new in self._instead(token, before, self._text(at - 2) if at > 1 else ""):
                kind = f"{token.text} -> {new or 'nothing'}"
                yield Edit(token.start, token.end, new, kind, self.line_of(at))

    @staticmethod
    def _instead(token: Token, before: str, above: str) -> tuple[str, ...]:
        text = token.text
        if text in _NEGATIONS:
            return _NEGATIONS[text]
        if text == "not":
            return ("",)
        if text in _SWAPS and before not in _OPERATORS:
            return (_SWAPS[text],)
        if token.kind == "number" and not (before == "[" and above in ("KEYS", "ARGV")):
            return (str(int(text) + 1),) if text.isdigit() else ()
        if token.kind == "string":
            inside = text[1:-1]
            if _DIGITS.fullmatch(inside):
                return (f"'{int(inside) + 1}'",)
            # A command that there is none of is no fault that anybody makes.
            command = inside.isupper() and before == "("
            if not command and _WORD.fullmatch(inside):
                return (f"'{inside}x'",)
        return ()

    def told(self, name: str) -> str:
        """The source with a message before each statement."""
        parts, at = [], 0
        for start, line in sorted(
            {
                (self.tokens[each.first].start, self.tokens[each.first].line)
                for each in self.statements
            }
        ):
            message = f"redis.call('PUBLISH', '{_CHANNEL}', '{name} {line}') "
            parts += [self.source[at:start], message]
            at = start
        return "".join([*parts, self.source[at:]])


# Python.

_PYTHON_NEGATIONS: Final[dict[type[ast.cmpop], tuple[str, ...]]] = {
    ast.Eq: ("!=",),
    ast.NotEq: ("==",),
    ast.Lt: (">=", "<="),
    ast.LtE: (">", "<"),
    ast.Gt: ("<=", ">="),
    ast.GtE: ("<", ">"),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_COMPARISON: Final = re.compile(r"==|!=|<=|>=|<|>|is\s+not|is|not\s+in|in")
_DROPPED: Final = (
    ast.Assign,
    ast.AugAssign,
    ast.AnnAssign,
    ast.Expr,
    ast.Return,
    ast.Raise,
    ast.Break,
    ast.Continue,
)


class Python:
    """What may be changed inside the functions of a Python source."""

    def __init__(self, source: str) -> None:
        self.source = source
        self._lines = [0]
        for line in source.splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._tree = ast.parse(source)

    def edits(self) -> Iterator[Edit]:
        """What may be changed."""
        for node in self._tree.body:
            inside = node.body if isinstance(node, ast.ClassDef) else [node]
            for each in inside:
                if isinstance(each, ast.FunctionDef):
                    first = min([each.lineno, *(head.lineno for head in each.decorator_list)])
                    for statement in each.body:
                        yield from self._within(statement, first)

    def _within(self, statement: ast.stmt, line: int) -> Iterator[Edit]:
        inner: list[ast.stmt] = []
        for name in ("body", "orelse", "finalbody"):
            inner += getattr(statement, name, [])
        for handler in getattr(statement, "handlers", []):
            inner += handler.body
        for each in inner:
            yield from self._within(each, line)
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            return
        text = self.source[self._start(statement) : self._end(statement)]
        # Code without its `super()` has no place for its class, and does not fit its function.
        if (
            isinstance(statement, _DROPPED)
            and "super()" not in text
            and not (isinstance(statement, ast.AnnAssign) and statement.value is None)
        ):
            yield Edit(self._start(statement), self._end(statement), "pass", "drop", line)
        skipped = {id(each) for each in inner}
        if isinstance(statement, ast.AnnAssign):
            skipped.add(id(statement.annotation))
        pending: list[ast.AST] = [statement]
        while pending:
            node = pending.pop()
            yield from self._changes(node, line)
            pending += [
                each
                for each in ast.iter_child_nodes(node)
                if id(each) not in skipped and not isinstance(each, ast.ExceptHandler)
            ]

    def _changes(self, node: ast.AST, line: int) -> Iterator[Edit]:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            for operator, left, right in zip(node.ops, operands, operands[1:], strict=False):
                found = _COMPARISON.search(self.source, self._end(left), self._start(right))
                assert found is not None
                for new in _PYTHON_NEGATIONS[type(operator)]:
                    yield self._edit(found.start(), found.end(), new, line)
        elif isinstance(node, ast.BoolOp):
            old = "and" if isinstance(node.op, ast.And) else "or"
            for left, right in zip(node.values, node.values[1:], strict=False):
                at = self.source.index(old, self._end(left), self._start(right))
                yield self._edit(at, at + len(old), _SWAPS[old], line)
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start = self._start(node)
            yield Edit(start, start + len("not"), "", "not -> nothing", line)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub):
            old = "+" if isinstance(node.op, ast.Add) else "-"
            at = self.source.index(old, self._end(node.left), self._start(node.right))
            yield self._edit(at, at + 1, _SWAPS[old], line)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add | ast.Sub):
            old = "+=" if isinstance(node.op, ast.Add) else "-="
            at = self.source.index(old, self._end(node.target), self._start(node.value))
            yield self._edit(at, at + 2, _SWAPS[old[0]] + "=", line)
        elif isinstance(node, ast.Constant):
            if type(node.value) is int:
                new = str(node.value + 1)
            elif type(node.value) is bool:
                new = str(not node.value)
            else:
                return
            yield self._edit(self._start(node), self._end(node), new, line)
        elif isinstance(node, ast.If | ast.While | ast.IfExp) and not isinstance(
            node.test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant
        ):
            start, end = self._start(node.test), self._end(node.test)
            yield Edit(start, end, f"not ({self.source[start:end]})", "negate", line)

    def _edit(self, start: int, end: int, new: str, line: int) -> Edit:
        return Edit(start, end, new, f"{self.source[start:end]} -> {new}", line)

    def _start(self, node: Any) -> int:
        return self._lines[int(node.lineno) - 1] + int(node.col_offset)

    def _end(self, node: Any) -> int:
        return self._lines[int(node.end_lineno) - 1] + int(node.end_col_offset)


# What is broken.


class Watch(Protocol):
    """A plugin of a child that notes lines; `take` answers those since it was last asked."""

    def take(self, item: pytest.Item) -> list[str]: ...


class Target(Protocol):
    """A set of files to break, and how to replace a source inside a child."""

    @property
    def tests(self) -> tuple[str, ...]:
        """Where the tests are that may kill."""

    def mutants(self) -> list[Mutant]:
        """All of them."""

    def skips(self, nodeid: str) -> bool:
        """Whether a test says no more than another one."""

    def breaks(self, mutant: Mutant) -> None:
        """Put a mutant in place."""

    def blank(self) -> None:
        """Change comments alone."""

    def watch(self) -> Watch:
        """Have the lines noted that run from now on."""


class Scripts:
    """The Lua files. They are read when a transition is first called."""

    tests = ("tests/emq",)

    def __init__(self) -> None:
        folder = ROOT / "emq" / "lua"
        self.sources = {path.stem: path.read_text() for path in sorted(folder.glob("*.lua"))}

    def mutants(self) -> list[Mutant]:
        """Those that the server's compiler takes: what is left of a script may be none."""
        import redis

        from emq.embedded import Embedded

        found = []
        with (
            Embedded(tcp=True) as server,
            redis.Redis(host=server.host, port=server.port) as admin,
        ):
            for name, source in self.sources.items():
                for mutant in mutants_of(f"{name}.lua", source, Lua(source).edits()):
                    with contextlib.suppress(redis.ResponseError):
                        admin.script_load(mutant.source)
                        found.append(mutant)
        return found

    def skips(self, nodeid: str) -> bool:
        return bool(_OTHER_SHELLS.search(nodeid))

    def breaks(self, mutant: Mutant) -> None:
        self._replace({mutant.file.removesuffix(".lua"): mutant.source})

    def blank(self) -> None:
        self._replace({name: source + "-- as it was\n" for name, source in self.sources.items()})

    def watch(self) -> Watch:
        self._replace({name: Lua(text).told(f"{name}.lua") for name, text in self.sources.items()})
        return _Listener()

    @staticmethod
    def _replace(sources: dict[str, str]) -> None:
        from emq import scripts

        read = scripts._read
        scripts._read = lambda name: sources.get(name) or read(name)
        for each in vars(scripts).values():
            if isinstance(each, scripts.Transition):
                for cached in ("script", "call", "header"):
                    vars(each).pop(cached, None)


class _Listener:
    """Hears what instrumented scripts say, on the server of the run."""

    def __init__(self) -> None:
        self._server: Any = None
        self._heard: Any = None

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        made = yield
        if fixturedef.argname == "server":
            self._server = made
            self._heard = made.admin.pubsub(ignore_subscribe_messages=True)
            self._heard.subscribe(_CHANNEL)
            self._heard.get_message(timeout=5)
        return made

    def take(self, item: pytest.Item) -> list[str]:
        if self._server is None:
            return []
        self._server.admin.publish(_CHANNEL, "end")
        said = set()
        for message in self._heard.listen():
            if message["data"] == b"end":
                break
            said.add(message["data"].decode())
        return sorted(said)


class Module:
    """A Python module, whose functions get the code that the mutated source gives them."""

    tests = tuple(
        str(path.relative_to(ROOT))
        for path in sorted((ROOT / "tests/resp").glob("test_decode*.py"))
    )

    def __init__(self) -> None:
        from resp import decode

        self.module = decode
        self.path = ROOT / "resp" / "decode.py"
        self.source = self.path.read_text()

    def mutants(self) -> list[Mutant]:
        return list(mutants_of(self.path.name, self.source, Python(self.source).edits()))

    def skips(self, nodeid: str) -> bool:
        return False

    def breaks(self, mutant: Mutant) -> None:
        self._replace(mutant.source)

    def blank(self) -> None:
        self._replace(self.source + "# as it was\n")

    def watch(self) -> Watch:
        return _Tracer(self.path)

    def _replace(self, source: str) -> None:
        codes = {code.co_qualname: code for code in _codes(compile(source, self.path, "exec"))}
        for function in _functions(self.module):
            function.__code__ = codes[function.__code__.co_qualname]


def _codes(code: CodeType) -> Iterator[CodeType]:
    """All code inside a module's code."""
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _functions(module: Any) -> Iterator[FunctionType]:
    """The functions and methods that a module defines."""
    for value in vars(module).values():
        inside = vars(value).values() if isinstance(value, type) else [value]
        for each in inside:
            function = getattr(each, "fget", getattr(each, "__wrapped__", each))
            function = getattr(function, "__func__", function)
            if isinstance(function, FunctionType) and function.__module__ == module.__name__:
                yield function


class _Tracer:
    """Notes which functions of one file are called, by their first lines.

    Lines would tell more, and would take minutes where tests decode megabytes.
    """

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._lines: set[int] = set()
        sys.settrace(self._call)

    def _call(self, frame: Any, event: str, value: Any) -> None:
        if frame.f_code.co_filename == self._path:
            self._lines.add(frame.f_code.co_firstlineno)

    def take(self, item: pytest.Item) -> list[str]:
        lines, self._lines = self._lines, set()
        sys.settrace(self._call)  # a test of tracing may have taken it away
        return [f"{Path(self._path).name} {line}" for line in sorted(lines)]


# The run: one process that has collected the tests, and a child a mutant.


@dataclass
class Test:
    """What is known of a test: how long it takes, and the lines that it runs."""

    seconds: float
    lines: list[str]


class _Child:
    """A plugin of a child: tells each test's outcome as it comes, and ends at the first failure."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], stops: bool, watch: Watch | None):
        self._tell = tell
        self._stops = stops
        self._watch = watch
        self._failed = False
        self._lines: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self._failed, self._lines = False, []
        self._started = time.monotonic()
        self._tell({"begins": nodeid})

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if self._watch is not None:
            self._lines = self._watch.take(item)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._failed = self._failed or report.failed
        if report.failed and self._stops:
            self._tell({"test": report.nodeid, "failed": True})
            os._exit(0)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = round(time.monotonic() - self._started, 4)
        told = {"test": nodeid, "failed": self._failed, "seconds": seconds, "lines": self._lines}
        self._tell(told)


@dataclass
class Work:
    """A child's work: what to put in place, and the tests to run.

    Attributes:
        prepare: Puts it in place; answers what notes lines, or None.
        tests: The ids of the tests, in order.
        stops: End at the first failure.
        done: Gets what the child told, and the test during which it was stopped, if any; answers
            what is to be done next, if anything.
    """

    prepare: Callable[[], Watch | None]
    tests: list[str]
    stops: bool
    done: Callable[[list[dict[str, Any]], str | None], Work | None]


class _Running:
    """A child that runs, seen from its parent."""

    def __init__(self, work: Work, items: dict[str, pytest.Item], limit: Callable[[str], float]):
        self.work = work
        self.told: list[dict[str, Any]] = []
        self.began = time.monotonic()
        self._limit = limit
        self._test: str | None = None
        self._late: str | None = None
        self._until = self.began + 60
        self._rest = b""
        self.pipe, writing = os.pipe()
        self._pid = os.fork()
        if not self._pid:
            try:
                self._be_child(writing, items)
            finally:
                os._exit(1)
        os.close(writing)

    def _be_child(self, writing: int, items: dict[str, pytest.Item]) -> None:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nowhere, descriptor)

        def tell(what: dict[str, Any]) -> None:
            os.write(writing, json.dumps(what).encode() + b"\n")

        watch = self.work.prepare()
        tests = [items[test] for test in self.work.tests]
        plugins = tests[0].config.pluginmanager
        plugins.register(_Child(tell, self.work.stops, watch))
        if watch is not None:
            plugins.register(watch)
        for item, following in zip(tests, [*tests[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)

    def read(self) -> bool:
        """Take what the child has told; whether it has ended."""
        chunk = os.read(self.pipe, 1 << 20)
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            told = json.loads(line)
            if "begins" in told:
                self._test = told["begins"]
                self._until = time.monotonic() + self._limit(told["begins"])
            else:
                self._test = None
                self.told.append(told)
        return not chunk

    def is_late(self) -> bool:
        if time.monotonic() > self._until:
            self._late = self._test or "before the first test"
        return self._late is not None

    def end(self) -> Work | None:
        """Stop what is left of it, and hand over what it told; answer what comes next."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
        os.close(self.pipe)
        return self.work.done(self.told, self._late)


class Session:
    """A plugin that has the tests collected and then runs children instead of them."""

    def __init__(self, run: Callable[[Session], None], jobs: int, limit: Callable[[str], float]):
        self._run = run
        self._jobs = jobs
        self._limit = limit
        self.items: dict[str, pytest.Item] = {}

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self) -> None:
        from hypothesis import HealthCheck, Phase, settings

        # Nobody reads a counterexample: it need not be shrunk, nor kept.
        settings.register_profile(
            "mutants",
            deadline=None,
            max_examples=50,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.explicit, Phase.generate],
        )
        settings.load_profile("mutants")

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        self.items = {item.nodeid: item for item in session.items}
        if session.testsfailed:
            raise session.Failed("some tests could not be collected")
        self._run(self)
        return True

    def go(self, works: Iterable[Work]) -> None:
        """Have all of it done by children, some at once."""
        pending: Iterator[Work] = iter(works)
        running: dict[int, _Running] = {}
        try:
            while True:
                while len(running) < self._jobs and (work := next(pending, None)) is not None:
                    child = _Running(work, self.items, self._limit)
                    running[child.pipe] = child
                if not running:
                    return
                ready, _, _ = select.select(list(running), [], [], 0.5)
                for pipe, child in list(running.items()):
                    if (pipe in ready and child.read()) or child.is_late():
                        del running[pipe]
                        if (following := child.end()) is not None:
                            pending = itertools.chain([following], pending)
        finally:
            for child in running.values():
                child.end()


@dataclass
class Verdicts:
    """What a run has found, kept in a file if there is one."""

    path: Path | None
    tests: dict[str, Test] = field(default_factory=dict)
    mutants: dict[str, dict[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None and self.path.exists():
            for line in self.path.read_text().splitlines():
                self._take(json.loads(line))

    def add(self, fact: dict[str, Any]) -> None:
        self._take(fact)
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(fact) + "\n")

    def forget_survivors(self) -> None:
        """Have those that survived tried once more."""
        killed = {key: fact for key, fact in self.mutants.items() if fact["verdict"] in KILLED}
        self.mutants = killed

    def _take(self, fact: dict[str, Any]) -> None:
        if "mutant" in fact:
            self.mutants[fact["mutant"]] = fact
        else:
            self.tests[fact["test"]] = Test(fact["seconds"], fact["lines"])


KILLED: Final = ("killed", "timeout")


Note: TypeAlias = Callable[[dict[str, Any]], None]


class Run:
    """Mutants, and the tests that may kill them."""

    def __init__(
        self,
        target: Target,
        chosen: list[Mutant],
        verdicts: Verdicts,
        slowest: float,
        progress: Callable[[str], None],
    ) -> None:
        self._target = target
        self._chosen = chosen
        self._verdicts = verdicts
        self._slowest = slowest
        self._progress = progress

    def go(self, tests: Iterable[str], jobs: int) -> None:
        """Run what is not known yet.

        Raises:
            RuntimeError: The tests could not be collected; says what pytest printed.
        """
        session = Session(self._loop, jobs, self._limit)
        said = io.StringIO()
        options = [
            "-q",
            "-s",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:randomly",
            "--rootdir",
            str(ROOT),
        ]
        with contextlib.redirect_stdout(said):
            os.environ.pop("PYTEST_ADDOPTS", None)  # what another run was told
            code = pytest.main([*options, *(str(ROOT / test) for test in tests)], plugins=[session])
        if code:
            raise RuntimeError(said.getvalue())

    def _limit(self, nodeid: str) -> float:
        known = self._verdicts.tests.get(nodeid)
        return _GRACE_S + 5 * known.seconds if known is not None else _UNKNOWN_S

    def _loop(self, session: Session) -> None:
        unknown = [
            test
            for test in session.items
            if test not in self._verdicts.tests and not self._target.skips(test)
        ]
        self._measure(session, unknown)
        running: dict[str, list[str]] = defaultdict(list)
        for name, test in sorted(self._verdicts.tests.items(), key=lambda each: each[1].seconds):
            if test.seconds <= self._slowest and name in session.items:
                for line in test.lines:
                    running[line].append(name)
        session.go(self._tries(running))

    def _measure(self, session: Session, tests: list[str]) -> None:
        """Two runs over the tests of a file: for the lines, and for the rest without them."""
        files: dict[str, list[str]] = defaultdict(list)
        for test in tests:
            files[test.partition("::")[0]].append(test)
        lines: dict[str, list[str]] = {}

        def look(inside: list[str], prepare: Callable[[], Watch | None], note: Note) -> Work:
            def done(told: list[dict[str, Any]], stopped: str | None) -> Work | None:
                for each in told:
                    note(each)
                rest = inside[len(told) + 1 :]  # without one that ends its process
                return look(rest, prepare, note) if rest else None

            return Work(prepare, inside, False, done)

        def note_lines(told: dict[str, Any]) -> None:
            if told["lines"]:
                lines[told["test"]] = told["lines"]

        def note_time(told: dict[str, Any]) -> None:
            # One that fails now would fail for any mutant.
            of = [] if told["failed"] else lines[told["test"]]
            self._verdicts.add({"test": told["test"], "seconds": told["seconds"], "lines": of})

        def first() -> Iterator[Work]:
            for file, inside in files.items():
                self._progress(f"lines: {file}")
                yield look(inside, self._target.watch, note_lines)

        def second() -> Iterator[Work]:
            for file, inside in files.items():
                self._progress(f"times: {file}")
                if those := [test for test in inside if test in lines]:
                    yield look(those, self._target.blank, note_time)

        session.go(first())
        session.go(second())
        for test in tests:
            if test not in self._verdicts.tests:
                self._verdicts.add({"test": test, "seconds": 0, "lines": []})

    def _tries(self, running: dict[str, list[str]]) -> Iterator[Work]:
        pending = [each for each in self._chosen if each.key not in self._verdicts.mutants]
        for number, mutant in enumerate(pending):
            self._progress(f"{number} of {len(pending)}: {mutant.key}")
            tests = running.get(f"{mutant.file} {mutant.line}", [])
            if tests:
                yield self._try(mutant, tests)
            else:
                self._verdicts.add({"mutant": mutant.key, "verdict": "not run"})

    def _try(self, mutant: Mutant, tests: list[str]) -> Work:
        def done(told: list[dict[str, Any]], stopped: str | None) -> None:
            verdict, by = "survived", None
            if told and told[-1]["failed"]:
                verdict, by = "killed", told[-1]["test"]
            elif stopped is not None:
                verdict, by = "timeout", stopped
            elif len(told) < len(tests):
                verdict = "died"  # the child did, not by a test: that tells nothing
            self._verdicts.add(
                {"mutant": mutant.key, "verdict": verdict, "by": by, "tests": len(told)}
            )

        return Work(lambda: self._target.breaks(mutant), tests, True, done)


TARGETS: Final[dict[str, Callable[[], Target]]] = {"lua": Scripts, "decoder": Module}


def let_be() -> dict[str, str]:
    """The survivors that are known, and why each is let be."""
    return json.loads(SURVIVORS.read_text())  # type: ignore[no-any-return]


def table(chosen: list[Mutant], verdicts: Verdicts) -> Iterator[str]:
    """How many were killed, by file."""
    yield f"{'file':<26}{'mutants':>8}{'killed':>8}{'let be':>8}{'others':>8}"
    known = let_be()
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for mutant in chosen:
        killed = verdicts.mutants[mutant.key]["verdict"] in KILLED
        what = "killed" if killed else "let be" if mutant.key in known else "others"
        for name in (mutant.file, "all"):
            rows[name].update(("mutants", what))
    all_files = rows.pop("all", Counter())
    for file, row in [*rows.items(), ("all", all_files)]:
        counts = (row[what] for what in ("mutants", "killed", "let be", "others"))
        yield f"{file:<26}" + "".join(f"{count:>8}" for count in counts)
    yield f"killed: {all_files['killed'] / max(1, len(chosen)):.1%}"


def _parser() -> argparse.ArgumentParser:
    told = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=told)
    parser.add_argument("target", choices=TARGETS, help="what is broken")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="a file or a mutant"
    )
    parser.add_argument(
        "--sample", type=numbers.count, metavar="N", help="so many, drawn at random"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="what draws them; 0")
    parser.add_argument("--jobs", type=numbers.count, default=1, metavar="N", help="at once; 1")
    parser.add_argument("--tests", action="append", metavar="PATH", help="the tests that may kill")
    parser.add_argument(
        "--slowest", type=float, default=math.inf, metavar="S", help="leave slower tests out"
    )
    parser.add_argument("--resume", type=Path, metavar="FILE", help="keep here what was found")
    parser.add_argument("--again", action="store_true", help="try once more what survived")
    parser.add_argument("--list", action="store_true", help="only say which there are")
    parser.add_argument("--json", action="store_true", help="a line a mutant")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the mutants; answer the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    target = TARGETS[options.target]()
    chosen = target.mutants()
    if options.only:
        chosen = [each for each in chosen if each.is_one_of(options.only)]
        if not chosen:
            parser.error(f"no mutants of {', '.join(options.only)}")
    if options.sample:
        draw = random.Random(options.seed)
        chosen = draw.sample(chosen, min(options.sample, len(chosen)))
    if options.list:
        for mutant in chosen:
            print(json.dumps({"mutant": mutant.key}) if options.json else mutant.key)
        return 0

    for path in options.tests or ():
        if not (ROOT / path.partition("::")[0]).exists():
            parser.error(f"--tests {path}: there is no such file")
    try:
        verdicts = Verdicts(options.resume)
        if options.resume:
            options.resume.open("a").close()
    except OSError as error:
        parser.error(f"--resume {options.resume}: {error.strerror}")
    except (ValueError, KeyError, TypeError):
        parser.error(f"--resume {options.resume}: holds something else than what was found")
    if options.again:
        verdicts.forget_survivors()

    def progress(what: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\x1b[K{what[:78]}", end="", file=sys.stderr, flush=True)

    run = Run(target, chosen, verdicts, options.slowest, progress)
    try:
        run.go(options.tests or target.tests, options.jobs)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    progress("")
    known = let_be()
    others = [
        verdicts.mutants[each.key]
        for each in chosen
        if verdicts.mutants[each.key]["verdict"] not in KILLED and each.key not in known
    ]
    if options.json:
        for mutant in chosen:
            print(json.dumps(verdicts.mutants[mutant.key]))
    else:
        print("\n".join(table(chosen, verdicts)))
        for each in others:
            print(f"{each['verdict']}: {each['mutant']}")
    return 1 if others else 0


if __name__ == "__main__":
    sys.exit(exit_code(main))

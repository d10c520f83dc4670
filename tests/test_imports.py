"""Imports point one way, input and output stay in the shells, and nothing third-party is loaded."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

_ROOT: Final = Path(__file__).parents[1]

# A module may import from a lower rank, and from nothing else of its package.
_RESP_RANKS: Final = {
    "errors": 0,
    "net": 0,
    "events": 1,
    "encode": 1,
    "decode": 1,
    "protocol": 2,
    "plan": 2,
    "script": 3,
    "tap.chunk": 3,
    "tap.scan": 3,
    "tap.frames": 3,
    "tap.secrets": 4,
    "tap.dialogue": 5,
    "tap.lens": 5,
    "tap.table": 6,
    "tap.meaning": 7,
    "tap.recording": 7,
    "tap.record": 8,
    "tap": 9,
    "address": 10,
    "pubsub": 10,
    "tls": 11,
    "transaction": 11,
    "threads": 12,
    "aio": 12,
    "__init__": 13,
    # What shows and counts is on top of the driver; nothing of the driver needs it.
    "tap.style": 14,
    "tap.views": 15,
    "tap.ledger": 15,
    "tap.filters": 15,
    "tap.page": 16,
    "tap.proxy": 16,
    "commands": 17,
    "commands.output": 18,
    "commands.words": 18,
    "commands.typed": 19,
    "commands.shell": 20,
    "commands.tap": 20,
    "commands.decode": 20,
    "cli": 21,
    "__main__": 22,
}
_SHELLS: Final = {
    "resp.commands.tap",
    "resp.tap.proxy",
    "resp.tap.record",
    "resp.threads",
    "resp.aio",
    "resp.net",
    "resp.tls",
    "emq.aio_conformance",
    "emq.aio_consumer",
    "emq.commands.work_async",
    "emq.consumer",
    "emq.waiting",
}
_INPUT_OUTPUT: Final = {"socket", "ssl", "select", "threading", "asyncio"}
_OF_A_CONNECTOR: Final = {"run", "subscribe", "sibling", "stats", "close"}


class Import(NamedTuple):
    """One imported module, with the names taken from it (none for `import module`)."""

    module: str
    names: tuple[str, ...]


def _modules(package: str) -> dict[str, Path]:
    return {
        ".".join(path.relative_to(_ROOT).with_suffix("").parts): path
        for path in sorted((_ROOT / package).rglob("*.py"))
    }


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """Every node but those under `if TYPE_CHECKING:`, which no run imports."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.If)
            and isinstance(child.test, ast.Name)
            and child.test.id == "TYPE_CHECKING"
        ):
            for other in child.orelse:
                yield other
                yield from _walk(other)
            continue
        yield child
        yield from _walk(child)


def imports(module: str, source: str) -> Iterator[Import]:
    """What `source`, the text of `module`, imports at run time, relative names made absolute."""
    for node in _walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names = tuple(alias.name for alias in node.names)
            base = ".".join(module.split(".")[: -node.level]) if node.level else ""
            target = ".".join(filter(None, (base, node.module)))
            if node.level and node.module is None:  # from . import a, b
                yield from (Import(f"{target}.{name}", ()) for name in names)
            else:
                yield Import(target, names)


_ALL: Final = {**_modules("resp"), **_modules("emq")}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import socket, os.path", [("socket", ()), ("os.path", ())]),
        ("from .errors import A, B", [("resp.errors", ("A", "B"))]),
        ("from . import plan", [("resp.plan", ())]),
        (
            "def f():\n    from ssl import create_default_context",
            [("ssl", ("create_default_context",))],
        ),
        ("if TYPE_CHECKING:\n    import ssl\nelse:\n    import select", [("select", ())]),
    ],
)
def test_the_reader_of_imports_sees_them(
    source: str, found: list[tuple[str, tuple[str, ...]]]
) -> None:
    assert list(imports("resp.script", source)) == found


@pytest.mark.parametrize("module", [name for name in _ALL if name.startswith("resp.")])
def test_resp_imports_point_one_way(module: str) -> None:
    own = module.removeprefix("resp.").removesuffix(".__init__")
    assert own in _RESP_RANKS, f"{module} has no place in the order of imports"
    for imported in imports(module, _ALL[module].read_text()):
        top, _, rest = imported.module.partition(".")
        assert top != "emq", f"{module} knows of queues: it imports {imported.module}"
        if top == "resp":
            # `from .. import connect` takes a name of the package, not a module.
            other = rest if rest in _RESP_RANKS else "__init__"
            assert _RESP_RANKS[other] < _RESP_RANKS[own], f"{module} imports {imported.module}"


@pytest.mark.parametrize("module", sorted(_ALL))
def test_only_the_shells_touch_sockets_threads_and_loops(module: str) -> None:
    if module in _SHELLS:
        return
    used = {
        imported.module.partition(".")[0] for imported in imports(module, _ALL[module].read_text())
    }
    assert not used & _INPUT_OUTPUT, f"{module} is no shell"


@pytest.mark.parametrize("module", [name for name in _ALL if name.startswith("emq.")])
def test_emq_uses_public_names_of_resp(module: str) -> None:
    for imported in imports(module, _ALL[module].read_text()):
        if imported.module.partition(".")[0] != "resp":
            continue
        public = getattr(importlib.import_module(imported.module), "__all__", ())
        private = set(imported.names) - set(public)
        assert not private, f"{module} imports what {imported.module} does not list: {private}"


@pytest.mark.parametrize("module", [name for name in _ALL if name.startswith("emq.")])
def test_emq_uses_five_methods_of_a_connector(module: str) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(_ALL[module].read_text()))
        if isinstance(node, ast.Attribute)
        and (
            (isinstance(node.value, ast.Name) and node.value.id in {"connector", "_connector"})
            or (isinstance(node.value, ast.Attribute) and node.value.attr == "_connector")
        )
    }
    assert used <= _OF_A_CONNECTOR, f"{module} asks more of a connector: {used - _OF_A_CONNECTOR}"


@pytest.mark.parametrize("package", ["resp", "emq"])
def test_import_loads_nothing_third_party(package: str) -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        f"import {package}\n"
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=_ROOT
    ).stdout.split()

    assert package in loaded
    assert set(loaded) - {"resp", "emq"} <= sys.stdlib_module_names


def test_nobody_who_does_not_look_loads_the_tap() -> None:
    code = (
        "import sys, resp, emq; emq.Queue, emq.connect, resp.connect\n"
        "print(*(name for name in sys.modules if name.startswith('resp.tap')))\n"
        "print(resp.tap.Tap is resp.Tap)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=_ROOT
    ).stdout
    assert told == "\nTrue\n"

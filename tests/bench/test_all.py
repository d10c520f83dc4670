"""`bench all` runs the suites in turn, and writes what it is asked for."""

from __future__ import annotations

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from bench import __main__ as bench
from bench import all as module
from bench import options
from bench.figures import Figure, Progress, Run, Size, Verdict
from bench.peers import OURS, REDIS
from emq.embedded import EmbeddedError

_README = "# Title\n\n<!-- figures -->\nold\n<!-- /figures -->\n\nThe end.\n"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Size, int]]:
    """Suites that measure nothing: what each was asked, and on how many cores."""
    found: list[tuple[str, Size, int]] = []
    for name in module.SUITES:

        def suite(size: Size, progress: Progress, name: str = name) -> Run:
            cores = len(os.sched_getaffinity(0)) if options.CAN_PIN else 0
            found.append((name, size, cores))
            progress("half of it", 0.5)
            return Run(
                [Figure(name, "one", "GET", OURS, "us", 1, 1, 1)],
                [Verdict(name, "GET", OURS, REDIS, "x", 2, True, 3.0)],
            )

        monkeypatch.setattr(importlib.import_module(f"bench.{name}"), "suite", suite)
    return found


def test_every_suite_has_what_is_run() -> None:
    for name in module.SUITES:
        found = importlib.import_module(f"bench.{name}")
        assert name == found.SUITE
        assert callable(found.suite)
        assert callable(found.main)
    assert set(bench.BENCHMARKS) == {*module.SUITES, "all"}
    assert set(module.PINNED) <= set(module.SUITES)


def test_it_writes_every_form(
    asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("json", "markdown", "html", "readme")}
    files["readme"].write_text(_README)
    words = [word for name, path in files.items() for word in (f"--{name}", str(path))]
    assert bench.main(["all", *words]) == 0
    assert capsys.readouterr().out == ""
    assert list(json.loads(files["json"].read_text())["suites"]) == list(module.SUITES)
    assert "## wire" in files["markdown"].read_text()
    assert files["html"].read_text().startswith("<!doctype html>")
    readme = files["readme"].read_text()
    assert readme.startswith("# Title\n\n<!-- figures -->\n| work |")
    assert readme.endswith(".\n<!-- /figures -->\n\nThe end.\n")
    assert "old" not in readme
    assert "| 3 / - |" in readme


def test_without_a_file_there_are_tables(
    asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main(["--only", "wire,codec", "--quick", "--rounds", "3"]) == 0
    assert [(name, size) for name, size, _ in asked] == [
        *(("codec", Size(True, 3)), ("wire", Size(True, 3)))
    ]
    out = capsys.readouterr().out
    assert out.index("== codec") < out.index("== wire")
    assert "cores" in out


@pytest.mark.skipif(not options.CAN_PIN, reason="needs Linux")
@pytest.mark.parametrize(("flag", "free"), [([], False), (["--pin"], False), (["--free"], True)])
def test_some_suites_run_on_one_core(
    flag: list[str], free: bool, asked: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    cores = len(os.sched_getaffinity(0))
    assert module.main(flag) == 0
    for name, _, used in asked:
        assert used == (1 if name in module.PINNED and not free else cores)
    assert len(os.sched_getaffinity(0)) == cores
    assert ("on whatever core" in capsys.readouterr().out) is free


def test_one_suite_that_fails_is_told_and_the_others_go_on(
    asked: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fails(size: Size, progress: Progress) -> Run:
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr("bench.wire.suite", fails)
    assert module.main(["--json", str(tmp_path / "json")]) == 1
    assert "bench all: wire: ZeroDivisionError: of nothing" in capsys.readouterr().err
    told = json.loads((tmp_path / "json").read_text())
    assert set(told["suites"]) == set(module.SUITES) - {"wire"}


def test_without_a_server_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(size: Size, progress: Progress) -> Run:
        raise EmbeddedError("install it")

    monkeypatch.setattr("bench.bytes.suite", fails)
    assert module.main([]) == 3
    assert "install it" in capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "markdown", "html"])
@pytest.mark.parametrize("where", [".", "nowhere/file"])
def test_file_that_cannot_be_written_is_refused_before_anything_is_measured(
    form: str, where: str, asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        module.main([f"--{form}", str(tmp_path / where)])
    assert refused.value.code == 2
    assert str(tmp_path / where) in capsys.readouterr().err
    assert not asked


def test_file_that_is_not_written_in_the_end_leaves_the_others(
    asked: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def breaks(size: Size, progress: Progress) -> Run:
        (tmp_path / "json").mkdir()
        return Run([], [])

    monkeypatch.setattr("bench.bytes.suite", breaks)
    words = ["--json", str(tmp_path / "json"), "--markdown", str(tmp_path / "markdown")]
    assert module.main(["--only", "bytes", *words]) == 1
    assert "json" in capsys.readouterr().err
    assert (tmp_path / "markdown").read_text().startswith("# Figures")


@pytest.mark.skipif(not options.CAN_PIN, reason="needs Linux")
def test_caption_tells_of_the_suites_that_ran_and_no_others(
    asked: list[Any], tmp_path: Path
) -> None:
    (tmp_path / "readme").write_text(_README)
    for form in ("json", "readme"):
        assert module.main(["--only", "wire,codec", f"--{form}", str(tmp_path / form)]) == 0
    assert json.loads((tmp_path / "json").read_text())["pinned"] == ["wire"]
    readme = (tmp_path / "readme").read_text()
    assert "wire with everything on one core" in readme
    assert "rounds ()" not in readme


@pytest.mark.parametrize(
    "text",
    [
        *("", "<!-- figures -->\n", "<!-- /figures -->\n<!-- figures -->\n"),
        *(_README + _README, _README + "<!-- figures -->\n"),
    ],
)
def test_readme_without_its_marks_is_refused_before_anything_is_measured(
    text: str, asked: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "R").write_text(text)
    with pytest.raises(SystemExit) as left:
        module.main(["--readme", str(tmp_path / "R")])
    assert left.value.code == 2
    assert "<!-- figures -->" in capsys.readouterr().err
    assert asked == []
    assert (tmp_path / "R").read_text() == text


@pytest.mark.parametrize(
    "argv", [["--only", "nothing"], ["--rounds", "0"], ["--pin", "--free"], ["--readme", "/none"]]
)
def test_wrong_usage_is_two(argv: list[str]) -> None:
    with pytest.raises(SystemExit) as left:
        module.main(argv)
    assert left.value.code == 2


def test_progress_is_told_on_a_terminal_alone(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert module.main(["--only", "codec,wire"]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert module.main(["--only", "codec,wire"]) == 0
    first, second, last = filter(None, capsys.readouterr().err.split("\r"))
    assert first.startswith("[###.................] codec: half of it")
    assert second.startswith("[#############.......] wire: half of it")
    assert last.isspace()

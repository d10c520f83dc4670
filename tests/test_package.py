"""The wheel installs alone, imports, and carries what it needs; the tree holds what it should."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from typing import Final

import pytest

_ROOT: Final = Path(__file__).parents[1]
_TOP_LEVEL: Final = {
    "pyproject.toml",
    "resp",
    "emq",
    "tests",
    "bench",
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
}


def _run(*command: str | Path, cwd: Path = _ROOT) -> str:
    """Run a command that cannot reach a package index, and answer what it printed."""
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PIP_NO_INDEX": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, _ROOT)
    [built] = out.glob("*.whl")
    return built


def _files(package: str, pattern: str) -> set[str]:
    return {path.relative_to(_ROOT).as_posix() for path in (_ROOT / package).rglob(pattern)}


def test_wheel_holds_every_module_every_script_and_the_type_markers(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}

    lua = _files("emq", "*.lua")
    assert lua, "the tree holds no Lua"
    page = {f"resp/tap/page.{kind}" for kind in ("html", "css", "js")}
    modules = _files("resp", "*.py") | _files("emq", "*.py")
    assert held == modules | lua | page | {"resp/py.typed", "emq/py.typed"}


def test_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    _run(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", wheel)

    code = (
        "import resp, emq, importlib.resources as resources\n"
        "lua = resources.files('emq') / 'lua'\n"
        "print(resp.__file__, emq.__file__)\n"
        "print(*sorted(f.name for f in lua.iterdir() if f.name.endswith('.lua')))"
    )
    where, scripts = _run(python, "-c", code, cwd=tmp_path).splitlines()
    assert all(str(environment) in path for path in where.split())
    assert set(scripts.split()) == {Path(name).name for name in _files("emq", "*.lua")}

    assert "demo" in _run(environment / "bin" / "emq", "--help", cwd=tmp_path)
    code = "import importlib.metadata as m; print('\\n'.join(m.requires('echomq')))"
    requirements = _run(python, "-c", code, cwd=tmp_path).splitlines()
    assert requirements
    assert [line for line in requirements if "extra ==" not in line] == []


def test_top_level_holds_nothing_else() -> None:
    try:
        listed = _run("git", "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    except (AssertionError, FileNotFoundError):  # not a clone
        listed = [path.name for path in _ROOT.iterdir() if path.name != "__pycache__"]
    found = {name.partition("/")[0] for name in listed}
    assert {name for name in found if not name.startswith(".")} == _TOP_LEVEL

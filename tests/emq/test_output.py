"""Stdout that is closed, full, or read by nobody."""

from __future__ import annotations

import errno
import io
import os
import sys
from pathlib import Path

import pytest

from emq import output
from emq.output import OutputError


class Failing(io.StringIO):
    """A stream that cannot be written."""

    def __init__(self, error: OSError) -> None:
        super().__init__()
        self.error = error

    def flush(self) -> None:
        raise self.error


def test_what_is_written_is_there_at_once(tmp_path: Path) -> None:
    with (tmp_path / "out").open("w") as out:
        output.write("a line\n", out)
        assert (tmp_path / "out").read_text() == "a line\n"


@pytest.mark.parametrize(
    ("error", "unread", "told"),
    [
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), True, "has gone"),
        (OSError(errno.ENOSPC, "No space left on device"), False, "No space left on device; make"),
        (OSError("odd"), False, "odd; make"),
    ],
)
def test_what_cannot_be_written_is_an_error(error: OSError, unread: bool, told: str) -> None:
    with pytest.raises(OutputError, match=told) as caught:
        output.write("text", Failing(error))
    assert caught.value.unread is unread


def test_a_closed_stdout_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    assert output.stdout() is sys.stdout
    monkeypatch.setattr(sys, "stdout", None)
    with pytest.raises(OutputError, match="closed; "):
        output.stdout()
    output.drop()


def test_what_is_dropped_goes_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").exists() else 0
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        out.write("held back")
        output.drop()
    assert (tmp_path / "out").read_text() == ""
    monkeypatch.setattr(sys, "stdout", io.StringIO())  # it has no descriptor
    output.drop()
    if before:
        assert len(os.listdir("/proc/self/fd")) == before

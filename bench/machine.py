"""What a run was measured on, for its caption."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import resp


def describe() -> str:
    """The processor, its cores, the system and Python."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    python = f"{platform.python_implementation()} {platform.python_version()}"
    system = f"{platform.system()} {platform.release()}"
    return f"{_processor()}, {cores} cores, {system} {platform.machine()}, {python}"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or "a processor that has no name"


def today() -> str:
    """The date, in UTC."""
    return datetime.now(UTC).date().isoformat()


def versions(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those packages that are installed."""
    found = {}
    for package in sorted(set(packages)):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def server(connector: resp.Connector) -> dict[str, str]:
    """The server's name and version."""
    info: Any = connector.command("INFO", "server")
    told = dict(line.split(":", 1) for line in bytes(info).decode().splitlines() if ":" in line)
    if "valkey_version" in told:
        return {"Valkey": told["valkey_version"]}
    return {"Redis": told["redis_version"]}

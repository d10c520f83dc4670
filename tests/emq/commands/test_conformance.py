"""`emq conformance`: it hands over to the module of that name."""

from __future__ import annotations

import argparse
import sys
from types import SimpleNamespace

import pytest

from tests.conftest import Server

from .conftest import Emq


def test_it_hands_over(run: Emq, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []

    def main(options: argparse.Namespace) -> int:
        seen.append(options)
        return 1

    module = SimpleNamespace(main=main)
    monkeypatch.setitem(sys.modules, "emq.conformance", module)

    run("conformance", "fence", "--json", "claim", code=1)

    [options] = seen
    assert (options.url, options.scenarios, options.json) == (server.url, ["fence", "claim"], True)

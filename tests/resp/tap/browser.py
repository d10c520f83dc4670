"""A real browser for tests of the page, and exchanges to show in it.

    python -m tests.resp.tap.browser PNG

records `emq`'s verbs on a private Valkey and takes the README's picture of the page.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from resp import encode_command
from resp.tap.dialogue import Dialogue, Exchange

_NAMES: Final = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_ARGUMENTS: Final = (
    "--no-sandbox",  # a browser does not run as root with one
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def missing() -> str:
    """Answer why there is no browser to test in, or `""`."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed"
    if executable() is None:
        return f"no Chromium: set CHROMIUM, or install one of {', '.join(_NAMES)}"
    return ""


def executable() -> str | None:
    """Answer where Chromium is: as the environment's CHROMIUM says, or on the path."""
    named = os.environ.get("CHROMIUM")
    if named:
        return named
    return next((found for name in _NAMES if (found := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """Run a headless browser with a profile of its own, for the time of the block."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(), headless=True, args=list(_ARGUMENTS)
        )
        try:
            yield browser
        finally:
            browser.close()


class Talk:
    """Exchanges made by hand: each takes a millisecond, and a reply half of one."""

    def __init__(self, connection: int = 1) -> None:
        self._dialogue = Dialogue(connection)
        self._now_ns = 1_000_000_000 + connection * 10_000
        self.exchanges: list[Exchange] = []

    def send(self, *words: str | bytes | int) -> None:
        """Send a command."""
        self.send_raw(encode_command(*words))

    def send_raw(self, data: bytes) -> None:
        """Send bytes."""
        self._now_ns += 1_000_000
        self.exchanges += self._dialogue.sent(data, self._now_ns)[1]

    def receive(self, data: bytes) -> None:
        """Receive bytes."""
        self.exchanges += self._dialogue.received(data, self._now_ns + 500_000)[1]

    def ask(self, *words: str | bytes | int, reply: bytes) -> None:
        """Send a command, and receive what answers it."""
        self.send(*words)
        self.receive(reply)

    def end(self) -> list[Exchange]:
        """End the connection. Answer all that was exchanged."""
        self.exchanges += self._dialogue.end(self._now_ns + 900_000)
        return self.exchanges


def many(exchanges: int) -> list[Exchange]:
    """Answer so many exchanges, on four connections, of many commands and sizes."""
    talks = [Talk(connection) for connection in range(1, 5)]
    for at in range(exchanges):
        talk = talks[at % 4]
        match at % 5:
            case 0:
                talk.ask("SET", f"user:{at}", b"x" * (at % 300), reply=b"+OK\r\n")
            case 1:
                talk.ask("GET", f"user:{at - 1}", reply=b"$5\r\nhello\r\n")
            case 2:
                talk.ask("HGETALL", f"row:{at}", reply=b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n:22\r\n")
            case 3:
                talk.ask("EVALSHA", "ab" * 20, 2, f"q:{at}", "base", "token", at, reply=b":1\r\n")
            case _:
                talk.ask("LRANGE", f"list:{at}", 0, -1, reply=b"*3\r\n" + b"$3\r\nabc\r\n" * 3)
    return [exchange for talk in talks for exchange in talk.end()]


def orders() -> list[Exchange]:
    """Record the life of some jobs on a private Valkey: a producer and two workers."""
    import emq
    from emq.embedded import Embedded
    from resp.tap import Tap

    tap = Tap()
    with Embedded() as server:
        connectors = [emq.connect(server.url, tap=tap) for _ in range(3)]
        producer, *workers = (emq.Queue(connector, "orders") for connector in connectors)
        for at in range(40):
            producer.enqueue(b'{"order": %d, "total": "19.90"}' % (1042 + at))
            if at % 10 == 0:
                producer.enqueue_many([b'{"order": %d}' % order for order in range(3)])
                producer.counts()
            for worker in workers:
                job = worker.claim()
                if job is None:
                    continue
                if at % 6 == 5:
                    worker.retry(job, delay_ms=1000, max_attempts=3, error="out of stock")
                else:
                    worker.complete(job)
        for connector in connectors:
            connector.close()
    return list(tap.exchanges())


def picture(target: Path) -> None:
    """Take the README's picture: the page with a recording of the bus, 1280 x 800."""
    from PIL import Image

    from emq.lens import lens
    from resp.tap import page

    exchanges = orders()
    chosen = next(
        exchange
        for exchange in exchanges
        if exchange.name == "EVALSHA"
        and exchange.request
        and exchange.request.words
        and b'"order": 1044' in exchange.request.words[-1]
    )
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        path = Path(folder) / "orders.html"
        page.write(path, exchanges, lenses=[lens], title="queue orders")
        tab = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="dark")
        tab.goto(f"{path.as_uri()}#{chosen.connection}.{chosen.number}")
        tab.wait_for_selector("html[data-ready]")
        tab.locator("#tree .node", has_text="payload").first.hover()
        tab.wait_for_timeout(200)
        tab.screenshot(path=target)
    # Text is drawn in hundreds of greys; a palette is a third of the bytes and looks the same.
    Image.open(target).convert("RGB").quantize(256, Image.Quantize.MAXCOVERAGE).save(
        target, optimize=True
    )


if __name__ == "__main__":
    picture(Path(sys.argv[1]))

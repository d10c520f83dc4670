"""The page in a real browser: looked at, clicked through, and attacked."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from resp.tap import page
from resp.tap.dialogue import Exchange

from .browser import Talk, chromium, many, missing

pytestmark = pytest.mark.skipif(bool(missing()), reason=missing() or "there is a browser")

_HOSTILE = (
    b"</script><script>window.ran=1</script>",
    b"<img src=x onerror=window.ran=2>",
    "abc\u202egnp.exe\u2066\u200b".encode(),
    b"\x1b[31mred\x1b]0;title\x07",
    b"nul\x00bell\x07",
    b"bad \xff\xfe \xc3( \xed\xa0\x80",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as running:
        yield running


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Open a page; in the end it must have complained of nothing and asked for nothing."""
    complaints: list[str] = []
    contexts: list[Any] = []

    def opened(exchanges: list[Exchange], at: str = "", **options: Any) -> Any:
        path = tmp_path / "page.html"
        page.write(path, exchanges, lenses=[])
        settings = {"viewport": {"width": 1280, "height": 800}, **options}
        context = browser.new_context(**settings)
        contexts.append(context)
        tab = context.new_page()
        tab.on("console", lambda message: complaints.append(message.text))
        tab.on("pageerror", lambda error: complaints.append(str(error)))

        def dismissed(dialog: Any) -> None:
            complaints.append("a dialog")
            dialog.dismiss()

        tab.on("dialog", dismissed)
        own = path.as_uri()
        tab.on(
            "request",
            lambda request: (
                complaints.append(request.url) if request.url.split("#")[0] != own else None
            ),
        )
        tab.goto(own + at)
        tab.wait_for_selector("html[data-ready]")
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert complaints == []


def talk() -> list[Exchange]:
    one = Talk(1)
    one.ask("SET", "user:1", b"hello", reply=b"+OK\r\n")
    one.ask("GET", "user:1", reply=b"$5\r\nhello\r\n")
    one.ask("EVALSHA", "ab" * 20, 1, "row:1", "arg", reply=b"-NOSCRIPT No matching script.\r\n")
    one.ask("LRANGE", "l", 0, -1, reply=b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n")
    one.receive(b">2\r\n$10\r\ninvalidate\r\n*1\r\n$6\r\nuser:1\r\n")
    one.ask("CLIENT", "REPLY", "OFF", reply=b"")
    one.send("SET", "quiet", "1")
    other = Talk(2)
    other.ask("PING", reply=b"+PONG\r\n")
    other.ask("GET", "broken", reply=b"$3\r\nabcXY")
    third = Talk(3)
    third.send("BLPOP", "never", 0)
    return one.end() + other.end() + third.end()


def until(tab: Any, condition: str) -> None:
    """Wait for an expression to hold. The page's policy forbids what would poll inside."""
    for _ in range(500):
        if tab.evaluate(condition):
            return
        tab.wait_for_timeout(10)
    raise AssertionError(f"never: {condition}")


def selected(tab: Any) -> str:
    return str(tab.locator(".row[aria-selected=true] .what").inner_text())


def rows(tab: Any) -> list[str]:
    return [text.strip() for text in tab.locator(".row:not([hidden]) .what").all_inner_texts()]


def search(tab: Any, query: str) -> None:
    tab.fill("#query", query)
    tab.press("#query", "Enter")


def test_a_click_on_a_row_shows_the_exchange(show: Callable[..., Any]) -> None:
    tab = show(talk())

    tab.locator(".row", has_text="LRANGE").click()
    assert tab.inner_text("#detail-title") == "LRANGE"
    tree = tab.locator("#tree .node .value").all_inner_texts()
    assert tree == [
        "*array of 4", '$"LRANGE"', '$"l"', '$"0"', '$"-1"',
        "*array of 2", '$"a"', "*array of 1", ":1",
    ]  # fmt: skip
    assert tab.evaluate("location.hash") == "#1.4"
    assert "exchange\n4 of connection 1" in tab.inner_text("#facts")


def test_the_bytes_are_those_of_the_wire(show: Callable[..., Any]) -> None:
    exchanges = talk()
    tab = show(exchanges, "#1.1")

    request = exchanges[0].request
    assert request is not None
    shown = "".join(tab.locator("#hex .h").all_inner_texts()).replace("\xa0", "")
    assert shown == (request.data + b"+OK\r\n").hex()


def test_hovering_marks_both_ways(show: Callable[..., Any]) -> None:
    tab = show(talk(), "#1.1")

    tab.locator("#tree .node", has_text='"user:1"').hover()
    lit = "".join(tab.locator("#hex .h.on").all_inner_texts())
    assert bytes.fromhex(lit) == b"$6\r\nuser:1\r\n"
    assert "".join(tab.locator("#hex .a.on").all_inner_texts()) == "$6··user:1··"

    tab.locator("#hex .a", has_text="h").hover()  # the first letter of hello
    assert tab.locator("#tree .node.on .value").inner_text() == '$"hello"'
    assert tab.locator("#hex .h.cur").inner_text() == "68"
    tab.locator("#hex .h", has_text="2b").hover()
    assert tab.locator("#tree .node.on .value").inner_text() == '+"OK"'

    crlf = b"*3\r\n$3\r\nSET\r\n$6\r\nuser:1\r\n".rindex(b"\r\n")  # framing has an owner, too
    tab.locator("#hex .h").nth(crlf).hover()
    assert tab.locator("#tree .node.on .value").inner_text() == '$"user:1"'

    tab.mouse.move(600, 60)
    assert tab.locator("#hex .on").count() == 0
    tab.locator("#tree .node", has_text='"SET"').click()
    tab.mouse.move(600, 60)
    assert bytes.fromhex("".join(tab.locator("#hex .h.on").all_inner_texts())) == b"$3\r\nSET\r\n"


def test_kinds_have_their_colours(show: Callable[..., Any]) -> None:
    tab = show(talk(), "#1.3")

    kinds = {
        kind: bytes.fromhex("".join(tab.locator(f"#hex .h.k-{kind}").all_inner_texts()))
        for kind in ("command", "digest", "key")
    }
    assert kinds == {"command": b"EVALSHA", "digest": b"ab" * 20, "key": b"row:1"}
    assert "digests40" in tab.inner_text("#legend").replace("\n", "").replace(" ", "")


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("hello", ["SET", "GET"]),
        ("command:get", ["GET", "GET"]),
        ("key:user:*", ["SET", "GET", "(push)"]),
        ("dir:push", ["(push)"]),
        ("dir:lost", ["BLPOP"]),
        ("conn:2,3", ["PING", "GET", "BLPOP"]),
        ("key:user:* !hello", ["(push)"]),
        ("rtt>1s", []),
        ("command:client:reply", ["CLIENT REPLY"]),
    ],
)
def test_search(show: Callable[..., Any], query: str, found: list[str]) -> None:
    tab = show(talk())
    search(tab, query)
    assert sorted(rows(tab)) == sorted(found)
    assert tab.locator("#none").is_visible() is (not found)


def test_columns_sort(show: Callable[..., Any]) -> None:
    tab = show(many(40))

    tab.click("[data-sort=up] button")
    column = [int(text or 0) for text in tab.locator(".row > :nth-child(7)").all_inner_texts()]
    order = tab.evaluate(
        "[...document.querySelectorAll('.row:not([hidden])')]"
        ".sort((a, b) => a.ariaRowIndex - b.ariaRowIndex).map((r) => +r.children[6].textContent)"
    )
    assert sorted(column) == sorted(order)
    assert order == sorted(order, reverse=True)
    assert tab.get_attribute("[data-sort=up]", "aria-sort") == "descending"
    tab.click("[data-sort=up] button")
    assert tab.get_attribute("[data-sort=up]", "aria-sort") == "ascending"


def test_the_ledger_filters_and_adds_up(show: Callable[..., Any]) -> None:
    exchanges = talk()
    tab = show(exchanges)

    label = tab.get_attribute('[data-facet=command][data-name="GET"]', "aria-label")
    sizes = [(one.up, one.down) for one in exchanges if one.name == "GET"]
    assert f"{sum(up for up, _ in sizes)} bytes up, {sum(down for _, down in sizes)} down" in label
    tab.click('[data-facet=command][data-name="GET"]')
    assert rows(tab) == ["GET", "GET"]
    tab.click('[data-facet=connection][data-name="1"]')
    assert rows(tab) == ["GET"]
    tab.locator("#filters button").first.click()
    assert len(rows(tab)) == 7
    tab.keyboard.press("Escape")
    assert len(rows(tab)) == len(exchanges)
    tab.click('[data-facet=kind][data-name="digests"]')
    assert rows(tab) == [f"EVALSHA {'ab' * 20}"]


def test_round_trips_are_the_ledgers(show: Callable[..., Any]) -> None:
    from resp.tap.ledger import Ledger

    exchanges = talk()
    one = Talk(9)
    for at in range(5):
        one.send("GET", f"p:{at}")
    one.receive(b"$-1\r\n" * 5)
    exchanges += one.end()
    ledger = Ledger()
    for exchange in exchanges:
        ledger.add(exchange)
    assert f" {ledger.total.round_trips} round trips" in show(exchanges).inner_text("#totals")


def test_keys(show: Callable[..., Any]) -> None:
    tab = show(talk())

    first = selected(tab)
    tab.keyboard.press("j")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("k")
    assert selected(tab) != first
    tab.keyboard.press("g")
    assert selected(tab) == first
    tab.keyboard.press("Shift+G")
    assert tab.locator(".row[aria-selected=true]").get_attribute("aria-rowindex") == "11"
    tab.keyboard.press("/")
    tab.keyboard.type("lrange")
    tab.keyboard.press("Enter")
    assert selected(tab) == "LRANGE"
    tab.keyboard.press("Enter")
    assert tab.evaluate("document.activeElement.id") == "tree"
    tab.keyboard.press("ArrowDown")
    assert tab.locator("#tree .node.pin .value").inner_text() == '$"LRANGE"'
    tab.keyboard.press("Escape")
    assert tab.evaluate("document.activeElement.id") == "grid"
    tab.keyboard.press("Escape")
    assert len(rows(tab)) == len(talk())
    tab.keyboard.press("?")
    assert tab.locator("#help").is_visible()
    tab.keyboard.press("Escape")
    assert not tab.locator("#help").is_visible()
    tab.keyboard.press("l")
    assert not tab.locator("#ledger").is_visible()


def test_themes(show: Callable[..., Any]) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = show(talk(), color_scheme="dark")
    light = show(talk(), color_scheme="light")
    was = dark.evaluate(ground), light.evaluate(ground)
    assert was[0] != was[1]
    light.keyboard.press("t")
    dark.click("#theme-button")
    assert (light.evaluate(ground), dark.evaluate(ground)) == was


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(show: Callable[..., Any], scheme: str) -> None:
    tab = show(talk(), color_scheme=scheme)
    ratios = tab.evaluate("""() => {
      const probe = document.body.appendChild(document.createElement("i"));
      const light = (name) => {
        probe.style.color = `var(--${name})`;
        const parts = getComputedStyle(probe).color.match(/[\\d.]+/g).slice(0, 3)
          .map((n) => n / 255)
          .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
        return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2];
      };
      const found = {};
      const fronts = "ink soft framing command digest key argument payload fault".split(" ");
      for (const front of fronts)
        for (const back of ["bg", "pane", "well", "hover", "chosen"]) {
          const [a, b] = [light(front), light(back)].sort((x, y) => y - x);
          found[`${front} on ${back}`] = (a + 0.05) / (b + 0.05);
        }
      return found;
    }""")
    assert {pair: ratio for pair, ratio in ratios.items() if ratio < 4.5} == {}


def test_the_time_line_zooms_pans_and_selects(show: Callable[..., Any]) -> None:
    tab = show(many(200))
    whole = tab.inner_text("#extent")
    box = tab.locator("#canvas").bounding_box()

    tab.mouse.move(box["x"] + 400, box["y"] + 30)
    tab.mouse.wheel(0, -300)
    until(tab, "document.querySelector('#extent').textContent.includes('of')")
    tab.click("#zoom-fit")
    until(tab, f"document.querySelector('#extent').textContent === {json.dumps(whole)}")
    for _ in range(6):
        tab.click("#zoom-in")
    before = tab.inner_text("#detail-title") + tab.evaluate("location.hash")
    hit = False
    for x in range(60, 1200, 12):  # a bar is somewhere along its lane
        tab.mouse.click(box["x"] + x, box["y"] + 18 + 7)
        if tab.inner_text("#detail-title") + tab.evaluate("location.hash") != before:
            hit = True
            break
    assert hit
    picture = tab.evaluate("document.querySelector('#canvas').toDataURL()")
    tab.mouse.move(box["x"] + 400, box["y"] + 60)
    tab.mouse.down()
    tab.mouse.move(box["x"] + 200, box["y"] + 60, steps=4)
    tab.mouse.up()
    until(tab, f"document.querySelector('#canvas').toDataURL() !== {json.dumps(picture)}")
    tab.click("#by-script")
    assert tab.get_attribute("#by-script", "aria-pressed") == "true"


def test_what_is_odd_is_shown_as_such(show: Callable[..., Any]) -> None:
    tab = show(talk())

    for query, state in (
        ("dir:malformed", "malformed"),
        ("dir:lost", "lost"),
        ("dir:silent", "silent"),
    ):
        search(tab, query)
        assert tab.inner_text("#detail-state") == state
    search(tab, "dir:malformed")
    assert "malformed: " in tab.inner_text("#fault")
    assert tab.locator("#tree .value.k-malformed").count() == 1
    assert tab.locator("#hex .h.k-malformed").count() >= 1


def test_a_frame_that_was_cut_says_so(show: Callable[..., Any]) -> None:
    one = Talk()
    one.ask("GET", "k", reply=b"$200000\r\n" + b"x" * 200_000 + b"\r\n")
    tab = show(one.end())

    way = tab.locator("#tree .way").nth(1).inner_text()
    assert "200,011 bytes" in way
    assert "the first 65,536 are kept" in way


def test_nothing_a_peer_says_runs_or_hides(show: Callable[..., Any]) -> None:
    one = Talk()
    for payload in _HOSTILE:
        one.ask("SET", payload, payload, reply=b"$%d\r\n%b\r\n" % (len(payload), payload))
        one.ask(payload, payload, reply=b"-" + payload.replace(b"\x00", b"") + b"\r\n")
    one.ask(
        "EVAL",
        b"-- <b>x</b>\n-- KEYS[1] <img/src/onerror=window.ran=3> hash\n",
        1,
        "k",
        reply=b":1\r\n",
    )
    exchanges = one.end()
    tab = show(exchanges)

    everything = ""
    for _ in exchanges:
        everything += tab.inner_text("body")
        tab.keyboard.press("j")
    tab.keyboard.press("c")
    search(tab, "<img src=x onerror=alert(1)>")
    assert tab.evaluate("window.ran") is None
    assert tab.locator("img, main script").count() == 0
    assert "<img src=x onerror=window.ran=2>" in everything
    assert "abc\\u{202e}gnp.exe\\u{2066}\\u{200b}" in everything
    assert "\\x1b[31mred\\x1b]0;title\\x07" in everything
    assert "nul\\x00bell" in everything
    assert "bad \\xff\\xfe \\xc3( \\xed\\xa0\\x80" in everything
    assert not [sign for sign in everything if sign in "\u202e\u2066\u200b\x1b\x00\x07\ufffd"]


def test_a_link_leads_to_its_exchange(show: Callable[..., Any]) -> None:
    tab = show(talk(), "#2.1")
    assert selected(tab) == "PING"
    tab.evaluate("location.hash = '#1.2'")
    until(tab, "document.querySelector('#detail-title').textContent === 'GET'")


def test_exec_links_to_what_it_answers(show: Callable[..., Any]) -> None:
    one = Talk()
    one.ask("MULTI", reply=b"+OK\r\n")
    one.ask("INCR", "n", reply=b"+QUEUED\r\n")
    one.ask("EXEC", reply=b"*1\r\n:1\r\n")
    tab = show(one.end(), "#1.3")

    tab.click("#facts a")
    until(tab, "document.querySelector('#detail-title').textContent === 'INCR'")


def test_copying(show: Callable[..., Any]) -> None:
    tab = show(talk(), "#1.2", permissions=["clipboard-read", "clipboard-write"])

    tab.click("#copy-hex")
    until(tab, "document.querySelector('#copy-hex').textContent === 'Copied'")
    assert bytes.fromhex(tab.evaluate("navigator.clipboard.readText()")) == (
        b"*2\r\n$3\r\nGET\r\n$6\r\nuser:1\r\n$5\r\nhello\r\n"
    )
    tab.click("#copy-resp")
    until(tab, "document.querySelector('#copy-resp').textContent === 'Copied'")
    assert tab.evaluate("navigator.clipboard.readText()").startswith(
        "*2\\r\\n\n$3\\r\\n\nGET\\r\\n"
    )


@pytest.mark.parametrize("width", [400, 1024])
def test_narrow_windows_need_no_scrolling_sideways(show: Callable[..., Any], width: int) -> None:
    tab = show(talk(), "#1.3", viewport={"width": width, "height": 800})

    assert tab.evaluate("document.documentElement.scrollWidth") <= width
    assert (
        tab.evaluate("(hex => hex.scrollWidth - hex.clientWidth)(document.querySelector('#hex'))")
        <= 0
    )
    tab.click("#ledger-button")
    assert tab.locator("#ledger").is_visible()


def test_an_empty_page(show: Callable[..., Any]) -> None:
    tab = show([])
    assert tab.inner_text("#found") == "0 exchanges"
    for key in ("j", "k", "Enter", "g", "c", "+", "0", "Escape"):
        tab.keyboard.press(key)


def test_ten_thousand_exchanges_stay_smooth(
    show: Callable[..., Any], record_property: Callable[[str, object], None]
) -> None:
    began = time.perf_counter()
    tab = show(many(10_000))
    opened_s = time.perf_counter() - began
    assert tab.inner_text("#found") == "10,000 exchanges"
    assert tab.locator(".row").count() < 100

    frames = tab.evaluate("""() => new Promise((done) => {
      const rows = document.querySelector("#rows"), times = [];
      let last = performance.now(), n = 0;
      const step = (now) => {
        times.push(now - last);
        last = now;
        rows.scrollTop += n++ < 100 ? 130 : 1700;
        n < 200 ? requestAnimationFrame(step) : done(times.slice(1));
      };
      requestAnimationFrame(step);
    })""")
    p95 = statistics.quantiles(frames, n=20)[-1]
    searched = tab.evaluate("""() => {
      const query = document.querySelector("#query"), began = performance.now();
      query.value = "user:77";
      query.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true }));
      return performance.now() - began;
    }""")
    size = Path(tab.evaluate("decodeURI(location.pathname)")).stat().st_size
    told = {
        "made and opened, s": opened_s,
        "frame p95, ms": p95,
        "search, ms": searched,
        "size": size,
    }
    record_property("page", json.dumps(told))
    print(told)
    assert p95 < 50, told
    assert searched < 1500, told
    assert size < 4_000_000, told

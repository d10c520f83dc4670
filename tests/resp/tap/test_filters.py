"""Filters: what each term lets through, and where a bad one is wrong."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resp import Script, encode_command
from resp.tap.dialogue import Dialogue, Exchange
from resp.tap.filters import FilterError, compile, is_error
from resp.tap.meaning import Scripts

CLAIM = Script("claim", "return redis.call('GET', KEYS[1])")


def exchange(
    *words: str | bytes, reply: bytes = b"+OK\r\n", rtt_ns: int = 1_000_000, connection: int = 1
) -> Exchange:
    dialogue = Dialogue(connection)
    dialogue.sent(encode_command(*words), 0)
    [done] = dialogue.received(reply, rtt_ns)[1]
    return done


def push() -> Exchange:
    [done] = Dialogue().received(b">2\r\n$10\r\ninvalidate\r\n*0\r\n", 5)[1]
    return done


GET = exchange("GET", "cart:1", reply=b"$5\r\nhello\r\n")
SET = exchange("set", "user:1", "x" * 2000, rtt_ns=7_000_000, connection=3)
SETINFO = exchange("CLIENT", "SETINFO", "LIB-NAME", "x")
CALL = exchange("EVALSHA", CLAIM.sha, "2", "cart:1", "cart:2", "a")
SOURCE = exchange("EVAL", CLAIM.source, "1", "cart:1")
LOADED = exchange("SCRIPT", "LOAD", CLAIM.source)
MISSED = exchange("EVALSHA", "0" * 40, "0", reply=b"-NOSCRIPT No matching script\r\n")
BLOB_ERROR = exchange("GET", "x", reply=b"!9\r\nERR wrong\r\n")
NOTED = exchange("GET", "x", reply=b"|1\r\n+a\r\n+b\r\n-ERR x\r\n")
MGET = exchange("MGET", "cart:1", "a b", reply=b"*0\r\n")
PUSH = push()
LOST = exchange("GET", "lost")._replace(kind="lost", replies=())
ALL = {
    "GET": GET, "SET": SET, "SETINFO": SETINFO, "CALL": CALL, "SOURCE": SOURCE, "LOADED": LOADED,
    "MISSED": MISSED, "BLOB_ERROR": BLOB_ERROR, "NOTED": NOTED, "MGET": MGET, "PUSH": PUSH,
    "LOST": LOST,
}  # fmt: skip
EVERYTHING = set(ALL)


def passed(*filters: str) -> set[str]:
    scripts = Scripts()
    scripts.add(CLAIM)
    test = compile(filters, scripts=scripts)
    return {name for name, one in ALL.items() if test(one)}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SET", {"SET"}),
        ("get", {"GET", "BLOB_ERROR", "NOTED", "LOST"}),
        ("*GET", {"GET", "BLOB_ERROR", "NOTED", "MGET", "LOST"}),
        ("[gm]?ET", {"MGET"}),
        ("CLIENT", {"SETINFO"}),
        ("CLIENT:SETINFO", {"SETINFO"}),
        ("CLIENT:SET*", {"SETINFO"}),
        ("CLIENT:INFO", set()),
        ("EVAL*", {"CALL", "SOURCE", "MISSED"}),
        ("*", EVERYTHING - {"PUSH"}),
        ("key:cart:1", {"GET", "CALL", "SOURCE", "MGET"}),
        ("key:cart:*", {"GET", "CALL", "SOURCE", "MGET"}),
        ("key:cart:2", {"CALL"}),
        ("key:CART:*", set()),
        ("key:user:[0-9]", {"SET"}),
        ("key:user:[^0-9]", set()),
        ("key:hello", set()),
        ('"key:a b"', {"MGET"}),
        ('!"key:a b" MGET', set()),
        ("script:claim", {"CALL", "SOURCE", "LOADED"}),
        ("script:cl*", {"CALL", "SOURCE", "LOADED"}),
        (f"script:{CLAIM.sha}", {"CALL", "SOURCE", "LOADED"}),
        (f"script:{CLAIM.sha[:6].upper()}", {"CALL", "SOURCE", "LOADED"}),
        ("script:0000", {"MISSED"}),
        ("script:other", set()),
        ("size>2k", set()),
        ("size>1.9k", {"SET"}),
        ("up>=2000", {"SET"}),
        ("up=0", {"PUSH"}),
        ("down=11 up>0", {"GET"}),
        ("down<6 SET", {"SET"}),
        ("rtt>5", {"SET"}),
        ("rtt>=7ms", {"SET"}),
        ("rtt<=1000us", EVERYTHING - {"SET", "PUSH", "LOST"}),
        ("rtt<1s", EVERYTHING - {"PUSH", "LOST"}),
        ("dir:push", {"PUSH"}),
        ("dir:lost", {"LOST"}),
        ("dir:push,lost", {"PUSH", "LOST"}),
        ("kind:reply", EVERYTHING - {"PUSH", "LOST"}),
        ("dir:up", EVERYTHING - {"PUSH"}),
        ("dir:down", EVERYTHING - {"LOST"}),
        ("conn:3", {"SET"}),
        ("conn:1,3", EVERYTHING),
        ("conn=3", {"SET"}),
        ("error", {"MISSED", "BLOB_ERROR", "NOTED"}),
        ("!error", EVERYTHING - {"MISSED", "BLOB_ERROR", "NOTED"}),
        ("GET error", {"BLOB_ERROR", "NOTED"}),
        ("GET !error key:cart:*", {"GET"}),
        ("  GET   !error   dir:reply ", {"GET"}),
    ],
)
def test_terms(text: str, names: set[str]) -> None:
    assert passed(text) == names


def test_several_filters_are_alternatives_and_none_is_no_filter() -> None:
    assert passed("SET", "dir:push", "GET key:cart:*") == {"SET", "PUSH", "GET"}
    assert passed() == EVERYTHING


def test_malformed_bytes_are_errors() -> None:
    dialogue = Dialogue()
    dialogue.sent(encode_command("GET", "a"), 0)
    [done] = dialogue.received(b"what", 1)[1] or dialogue.end(2)
    assert done.kind == "malformed"
    assert is_error(done)


@pytest.mark.parametrize(
    ("text", "at", "said"),
    [
        ("", 0, "no term"),
        ("   ", 0, "no term"),
        ("GET sise>3", 4, "'sise>3'"),
        ("size>", 0, "no amount"),
        ("GET  size>3x", 5, "no amount"),
        ("up>-1", 0, "no amount"),
        ("rtt>5k", 0, "us, ms or s"),
        ("size>5ms", 0, "k or M"),
        ("size>1e3", 0, "no amount"),
        ("dir:sideways", 0, "malformed"),
        ("dir:push,", 0, "none of"),
        ("conn:x", 0, "connection"),
        ("conn:0", 0, "begin at 1"),
        ("key:", 0, "nothing behind"),
        ("script:", 0, "nothing behind"),
        ("GET !!error", 4, "one is enough"),
        ("!", 0, "no term"),
        ('GET "key:a b', 4, "quote"),
        ("GET,SET", 0, "no term"),
        ("gr\u00fc\u00df", 0, "gr\\xfc\\xdf"),
    ],
)
def test_a_bad_filter_says_where(text: str, at: int, said: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile([text])
    assert caught.value.at == at
    assert f"at {at}: " in str(caught.value)
    assert said in str(caught.value)
    assert str(caught.value).isascii()


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        test = compile([text])
    except FilterError as error:
        refused = error
    else:
        for one in ALL.values():
            assert test(one) in (True, False)
        return
    assert 0 <= refused.at <= len(text)


@given(st.binary(max_size=20))
def test_a_key_is_found_by_its_escaped_self(key: bytes) -> None:
    """As in the server's KEYS, a backslash takes what follows as it is."""
    pattern = "".join(f"\\{chr(byte)}" if byte < 128 else "?" for byte in key)
    quoted = pattern.replace("\\", "\\\\").replace('"', '\\"')
    if pattern:
        assert compile([f'"key:{quoted}"'])(exchange("GET", key))


@pytest.mark.parametrize(
    ("pattern", "key", "found"),
    [
        ("h[a-c]llo", "hbllo", True),
        ("h[c-a]llo", "hbllo", True),
        ("h[^a]llo", "hallo", False),
        ("h[\\]]llo", "h]llo", True),
        ("h[\\d]llo", "h1llo", False),
        ("h[\\d]llo", "hdllo", True),
        ("h\\*llo", "h*llo", True),
        ("h\\*llo", "hxllo", False),
        ("h.llo", "hxllo", False),
        ("h*o", "h\n\r\no", True),
        ("h[", "h[", True),
        ("h\\", "h\\", True),
        ("[&&~|-]", "~", True),
        ("*ab*b", "aabab", True),
        ("a**b?", "abbc", True),
        ("*a*a*", "ba", False),
        ("*a" * 30 + "b", "a" * 3000, False),  # in a time that can be waited for
    ],
)
def test_globs(pattern: str, key: str, found: bool) -> None:
    assert compile([f"key:{pattern}"])(exchange("GET", key)) is found

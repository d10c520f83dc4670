"""Cancelling by consent."""

from __future__ import annotations

import pickle
import threading
from typing import Any

import pytest

from emq.cancel import Cancelled, CancelToken
from emq.errors import EmqError


def test_a_token_says_nothing_until_it_is_cancelled() -> None:
    token = CancelToken()
    token.check_or_raise()

    assert token.check() is None
    assert not token.cancelled
    assert "not cancelled" in repr(token)


def test_looking_does_not_use_it_up() -> None:
    token = CancelToken()
    token.cancel("shutting down")

    assert token.cancelled
    for _ in range(2):
        assert token.check() == "shutting down"
        with pytest.raises(Cancelled, match="cancelled: shutting down") as raised:
            token.check_or_raise()
        assert raised.value.reason == "shutting down"
    assert isinstance(raised.value, EmqError)
    assert "shutting down" in repr(token)


def test_the_first_reason_stays() -> None:
    token = CancelToken()
    token.cancel()
    token.cancel("too late")

    assert token.check() == "cancelled"


def test_one_of_many_threads_wins() -> None:
    token = CancelToken()
    seen: list[str | None] = []
    gate = threading.Barrier(8)

    def cancel(reason: str) -> None:
        gate.wait()
        token.cancel(reason)
        seen.append(token.check())

    threads = [threading.Thread(target=cancel, args=(f"reason {n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(seen) == 8
    assert set(seen) == {token.check()}


@pytest.mark.parametrize(("reason", "error"), [("", ValueError), (None, TypeError), (3, TypeError)])
def test_a_reason_that_could_be_taken_for_none_is_refused(
    reason: Any, error: type[Exception]
) -> None:
    token = CancelToken()
    with pytest.raises(error, match="reason is"):
        token.cancel(reason)
    assert token.check() is None


def test_the_exception_survives_pickling() -> None:
    copied = pickle.loads(pickle.dumps(Cancelled("why")))
    assert (type(copied), copied.reason) == (Cancelled, "why")

"""The tree of errors, and how a refusal finds its place in it."""

from __future__ import annotations

import copy
import pickle

import pytest

from emq.errors import (
    AtCeiling,
    ContractError,
    EmqError,
    FenceError,
    FlowError,
    InvalidId,
    JobError,
    JobGone,
    JobLocked,
    LaneError,
    StaleToken,
    WrongKind,
    WrongState,
    refusal,
)

JOB = "JOB0EEMl9I7KXg"

# Every class word that the bus contract lists, and the texts of its fine print.
REFUSALS = [
    ("EMQKIND job id must be JOB-namespaced", WrongKind),
    ("EMQSTALE complete token mismatch", StaleToken),
    ("EMQSTALE job gone", JobGone),
    ("EMQSTALE retry token mismatch", StaleToken),
    ("EMQSTALE delay token mismatch", StaleToken),
    ("EMQSTALE extend token mismatch", StaleToken),
    ("EMQSTALE complete state moved on", StaleToken),
    ("EMQLOCK job is locked", JobLocked),
    ("EMQSTATE not dead", WrongState),
    ("EMQSTATE not paused", WrongState),
    ("EMQSTATE active jobs present", WrongState),
    ("EMQRATE at concurrency ceiling", AtCeiling),
]


@pytest.mark.parametrize(("text", "kind"), REFUSALS)
def test_a_class_word_names_the_exception(text: str, kind: type[JobError]) -> None:
    error = refusal(text, JOB)

    assert type(error) is kind
    assert error.job_id == JOB
    assert error.detail == text
    assert JOB in str(error)
    assert text in str(error)


@pytest.mark.parametrize(
    "text",
    ["", "ERR unknown", "EMQ stale", "EMQOTHER x", "EMQSTALER x", "emqstale x", " EMQSTALE x"],
)
def test_any_other_word_is_no_refusal(text: str) -> None:
    assert refusal(text, JOB) is None


def test_a_refusal_about_the_queue_names_no_job() -> None:
    error = refusal("EMQSTATE not paused", None)

    assert isinstance(error, WrongState)
    assert error.job_id is None
    assert str(error).startswith("not in the state")


def test_the_tree() -> None:
    for leaf in (WrongKind, InvalidId, StaleToken, JobGone, JobLocked, WrongState, AtCeiling):
        assert leaf.__mro__[1] is JobError
    for branch in (JobError, FlowError, LaneError, FenceError, ContractError):
        assert branch.__mro__[1] is EmqError
    assert issubclass(InvalidId, ValueError)
    assert not issubclass(WrongKind, ValueError)


ERRORS: list[EmqError] = [
    *(kind(JOB, "EMQX y") for kind in (JobError, WrongKind, StaleToken, JobGone, JobLocked)),
    WrongState(None, "EMQSTATE not paused"),
    AtCeiling(),
    InvalidId("no id"),
    FlowError("the flow is 9 levels deep, at most 8 are; split it", JOB),
    LaneError("the lane is full; wait", "PRT0EEMl9I7KXg"),
    FenceError(b"echomq:2.4.2", "echomq:3.0.0"),
    FenceError(None, "echomq:3.0.0"),
    ContractError("complete", 7),
    ContractError("claim", [b"JOB0EEMl9I7KXg", b"card 4111-1111"]),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_messages(error: EmqError) -> None:
    told = str(error)

    assert ";" in told, "a fact, and the next step"
    assert told.isascii()
    assert told.isprintable()
    assert told[0] not in "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
    assert "4111" not in told


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_errors_copy_and_pickle(error: EmqError) -> None:
    for twin in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert type(twin) is type(error)
        assert str(twin) == str(error)
        assert vars(twin) == vars(error)


def test_bytes_from_a_peer_are_escaped() -> None:
    fence = FenceError(b"\x1b[31m\xff'\n", "echomq:3.0.0")

    assert r"\x1b[31m\xff\'\n" in str(fence)
    assert fence.found == b"\x1b[31m\xff'\n"
    assert str(FenceError(b"x" * 5000, "e")).count("x") <= 100
    assert "\n" not in str(StaleToken(JOB, "EMQSTALE a\nb"))
    assert "\n" not in str(InvalidId("a\nb"))


def test_a_contract_error_names_the_script_and_shows_numbers_only() -> None:
    assert "script complete answered int 7" in str(ContractError("complete", 7))
    error = ContractError("claim", b"secret")
    assert "bytes" in str(error)
    assert "secret" not in str(error)
    assert error.reply == b"secret"
    assert error.script == "claim"

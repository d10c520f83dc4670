"""What the bus can refuse, and what a caller should do next.

EmqError
  JobError         a verb was refused; nothing was written; `job_id`, `detail`
    WrongKind      the id is well formed but not a job's
    InvalidId      not a branded id at all (also a ValueError); nothing was sent
    StaleToken     the job has moved on since the token was given
    JobGone        the job's row does not exist
    JobLocked      somebody holds a lock on the row
    WrongState     the job, or its queue, is not in the state that the verb needs
    AtCeiling      the queue's concurrency ceiling is reached
  FlowError        a flow that cannot be added
  LaneError        a lane that cannot do what was asked
  FenceError       another wire version owns this server; `found`, `expected`
  ContractError    a reply that the script's header does not declare; `script`, `reply`, `detail`

A script refuses with an error reply whose first word is its class; `refusal` turns such a reply
into the exception. Facts are attributes; no message carries a payload. Failures of the connection
are the `resp` package's own errors and pass through unchanged.
"""

from __future__ import annotations

from typing import ClassVar, Final


class EmqError(Exception):
    """Anything this package raises on purpose."""


class JobError(EmqError):
    """A verb was refused, and nothing was written.

    Attributes:
        job_id: The job it was about, or None where it was about the queue.
        detail: The server's own words, class word first, or `""` where none were needed.
    """

    fact: ClassVar[str] = "the verb was refused"
    advice: ClassVar[str] = "nothing was written"

    def __init__(self, job_id: str | None = None, detail: str = "") -> None:
        # The arguments stay in `args` as they came, so that pickling and copying rebuild the error.
        super().__init__(job_id, detail)
        self.job_id = job_id
        self.detail = detail

    def __str__(self) -> str:
        subject = "" if self.job_id is None else f"job {escaped(self.job_id)}: "
        detail = f" ({escaped(self.detail)})" if self.detail else ""
        return f"{subject}{self.fact}{detail}; {self.advice}"


class WrongKind(JobError):
    """The id is well formed, but its namespace is not a job's."""

    fact = "the id is of another kind"
    advice = "pass an id in the JOB namespace"


class InvalidId(JobError, ValueError):
    """Not a branded id. Nothing was sent."""

    fact = "not a branded id"
    advice = "pass three capital letters and eleven base62 digits, as a mint makes them"

    def __str__(self) -> str:
        told = "" if self.job_id is None else f"'{escaped(self.job_id)}': "
        return f"{told}{self.fact}; {self.advice}"


class StaleToken(JobError):
    """The job has moved on since this token was given: it was settled, or claimed again."""

    fact = "the token is stale"
    advice = "drop this attempt's outcome, whoever holds the job now will settle it"


class JobGone(JobError):
    """The job's row does not exist: it was completed, removed or drained."""

    fact = "no such job"
    advice = (
        "drop this attempt's outcome, or check the id and the queue's name; "
        "only a job with result_ttl_ms leaves an outcome when it ends"
    )


class JobLocked(JobError):
    """Somebody holds a lock on the job."""

    fact = "the job is locked"
    advice = "wait for its holder to settle it, or for the lock to run out"


class WrongState(JobError):
    """The job, or its queue, is not in the state that the verb needs."""

    fact = "not in the state that the verb needs"
    advice = "read the state and choose the verb that fits it"


class AtCeiling(JobError):
    """The queue's concurrency ceiling is reached."""

    fact = "at the concurrency ceiling"
    advice = "try again when a job has been settled, or raise the ceiling"


class FlowError(EmqError):
    """A flow that cannot be added: too deep, or an id that occurs in it twice.

    Attributes:
        job_id: The id of the flow's node that is at fault, where there is one.
    """

    def __init__(self, message: str, job_id: str | None = None) -> None:
        super().__init__(message, job_id)
        self.job_id = job_id

    def __str__(self) -> str:
        return str(self.args[0])


class LaneError(EmqError):
    """A lane that cannot do what was asked.

    Attributes:
        group: The lane's group id.
    """

    def __init__(self, message: str, group: str | None = None) -> None:
        super().__init__(message, group)
        self.group = group

    def __str__(self) -> str:
        return str(self.args[0])


class FenceError(EmqError):
    """Another wire version owns this server. Nothing but the fence itself was sent.

    Attributes:
        found: What the server's version key holds; None if it vanished while it was being claimed.
        expected: The wire version of this client.
    """

    def __init__(self, found: bytes | None, expected: str) -> None:
        super().__init__(found, expected)
        self.found = found
        self.expected = expected

    def __str__(self) -> str:
        held = "nothing" if self.found is None else f"'{escaped(self.found)}'"
        return (
            f"the server's wire version is {held}, this client's is '{escaped(self.expected)}'; "
            "connect with the wire_version that the server's other clients use"
        )


class ContractError(EmqError):
    """A script answered something that its header does not declare.

    Attributes:
        script: The script's name.
        reply: The whole reply. Neither message nor repr shows more of it than cannot be a payload.
        detail: What about it is wrong, or `""` where its type says it all.
    """

    def __init__(self, script: str, reply: object, detail: str = "") -> None:
        super().__init__(script, reply, detail)
        self.script = script
        self.reply = reply
        self.detail = detail

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.script!r}, <{type(self.reply).__name__}>)"

    def __str__(self) -> str:
        told = self.detail or type(self.reply).__name__
        if isinstance(self.reply, int) and not self.detail:
            told = f"{told} {self.reply}"
        return (
            f"script {self.script} answered {told}, which its header does not declare; "
            "check that no other program writes this queue's keys"
        )


_REFUSALS: Final[dict[str, type[JobError]]] = {
    "EMQKIND": WrongKind,
    "EMQSTALE": StaleToken,
    "EMQLOCK": JobLocked,
    "EMQSTATE": WrongState,
    "EMQRATE": AtCeiling,
}


def refusal(message: str, job_id: str | None) -> JobError | None:
    """Answer the exception for an error reply's text, or None if its first word is no class word.

    The caller raises what it gets: a class word that is not in the table is an error of the server.
    """
    kind = _REFUSALS.get(message.partition(" ")[0])
    if kind is None:
        return None
    if kind is StaleToken and message.startswith("EMQSTALE job gone"):
        kind = JobGone
    return kind(job_id, message)


def escaped(value: str | bytes, limit: int = 80) -> str:
    """Answer a peer's or a caller's text as printable ASCII, cut to `limit` characters."""
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    cut = text[:limit].encode("unicode_escape").decode("ascii").replace("'", "\\'")
    return cut if len(text) <= limit else f"{cut}..."

"""Cancelling by consent: whoever works looks at a token, whoever wants it to end marks the token.

Nothing is interrupted and nothing is sent: it works within a process, between any of its threads
and tasks.
"""

from __future__ import annotations

from .errors import EmqError


class Cancelled(EmqError):
    """The work was cancelled, and whoever did it found out.

    Attributes:
        reason: Why, as `CancelToken.cancel` was told.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"cancelled: {self.reason}"


class CancelToken:
    """A mark that says whether a piece of work should end, and why.

    Looking does not use it up: once cancelled, it stays so for everybody who holds it.
    """

    __slots__ = ("_marks",)

    def __init__(self) -> None:
        # One entry at most. `setdefault` is one step: of threads that cancel at once, one wins.
        self._marks: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._marks.get('reason', 'not cancelled')!a}>"

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled."""
        return bool(self._marks)

    def cancel(self, reason: str = "cancelled") -> None:
        """Ask for the work to end. The first reason stays.

        Raises:
            TypeError: `reason` is no str.
            ValueError: It is empty: `check` could not be told from None in a condition.
        """
        if not isinstance(reason, str):
            raise TypeError(f"reason is str, not {type(reason).__name__}")
        if not reason:
            raise ValueError("reason is empty; say why, or leave it out")
        self._marks.setdefault("reason", reason)

    def check(self) -> str | None:
        """Answer why the work should end; None while it should not."""
        return self._marks.get("reason")

    def check_or_raise(self) -> None:
        """Go on if the work should.

        Raises:
            Cancelled: It should end.
        """
        if (reason := self.check()) is not None:
            raise Cancelled(reason)


__all__ = ["CancelToken", "Cancelled"]

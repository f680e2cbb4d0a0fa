"""An underreplication task: which bookies of a ledger lack copies, why, and how its repair has gone so far.

Law: a mark is merged into the task. It never takes a bookie out, and it always makes another version of the task. So a repair
that is at work meanwhile can't close a task over something that it did not see: a replica that is reported damaged during its
repair is repaired again. A failed attempt keeps the task with the reason, and puts it off.

Source: BookKeeper's ``UnderreplicatedLedgerFormat``, which names the bookies only, and leaves the task as it is when a bookie is
marked twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

_TEXT_MAX = 500
"""Longer texts are cut, because a task is a small record."""


_MISSED_MAX = 200
"""A task names at most this many ranges of entries."""


class Missed(NamedTuple):
    """The entries ``first..last``, which the last attempt could not copy."""

    first: int
    last: int
    lost: bool
    """Every bookie was reached, and none gives them. False: some bookie could not be asked, or did not take the copy."""
    unreached: tuple[str, ...]
    """The bookies that may have them and could not be asked."""
    answers: Mapping[str, str]
    """What each bookie answered, in words."""

    def __str__(self) -> str:
        ids = f"entry {self.first}" if self.first == self.last else f"entries {self.first}..{self.last}"
        return f"{ids} ({', '.join(f'{bookie}: {answer}' for bookie, answer in self.answers.items())})"


class Reason(Enum):
    """Why a bookie of a ledger needs a repair."""

    LOST = "lost"
    """The bookie is believed to be gone: others take over its entries. Once it is registered again, it is asked what it lacks."""
    LACKS = "lacks"
    """The bookie serves, but lacks entries that are assigned to it: they are copied to it."""
    MISPLACED = "misplaced"
    """The bookie serves, but the placement policy wants another: others take over the fragments that get no more entries."""


class Mark(NamedTuple):
    """What an auditor found about one ledger."""

    ledger_id: int
    bookies: Mapping[str, Reason]
    detail: str = ""
    """The finding in words."""


@dataclass(frozen=True, slots=True)
class Task:
    """One version of a ledger's task. Times are the wall clock of whoever wrote them, in milliseconds."""

    ledger_id: int
    bookies: Mapping[str, Reason]
    detail: str = ""
    marked_at_ms: int = 0
    """When the ledger was marked first."""
    marks: int = 1
    """How often the ledger was marked."""
    attempts: int = 0
    """How many attempts have failed."""
    error: str = ""
    """Why the last attempt failed."""
    not_before_ms: int = 0
    """The next attempt is not made before this time."""
    missed: tuple[Missed, ...] = ()
    """The entries that the last attempt could not copy: the first two hundred ranges."""

    def of(self, reason: Reason) -> tuple[str, ...]:
        """The bookies that need this repair."""
        return tuple(bookie for bookie, why in self.bookies.items() if why is reason)

    def due(self, now_ms: int) -> bool:
        """May it be tried now?"""
        return now_ms >= self.not_before_ms

    def marked(self, mark: Mark) -> Task:
        """The task after another mark. If the mark says anything new, the task is due at once.

        Raises ValueError for a mark of another ledger.
        """
        if mark.ledger_id != self.ledger_id:
            raise ValueError(f"a mark of ledger {mark.ledger_id} is no mark of ledger {self.ledger_id}")
        news = any(self.bookies.get(bookie) is not reason for bookie, reason in mark.bookies.items())
        return replace(
            self,
            bookies={**self.bookies, **mark.bookies},
            detail=mark.detail[:_TEXT_MAX] or self.detail,
            marks=self.marks + 1,
            not_before_ms=0 if news else self.not_before_ms,
            missed=() if news else self.missed,
        )

    def failed(self, error: str, not_before_ms: int, missed: Sequence[Missed] = ()) -> Task:
        """The task after an attempt that failed. ``missed``: what it could not copy."""
        return replace(
            self,
            attempts=self.attempts + 1,
            error=error[:_TEXT_MAX],
            not_before_ms=not_before_ms,
            missed=tuple(missed[:_MISSED_MAX]),
        )


def new_task(mark: Mark, now_ms: int) -> Task:
    """The task of a ledger that had none."""
    return Task(mark.ledger_id, dict(mark.bookies), mark.detail[:_TEXT_MAX], now_ms)

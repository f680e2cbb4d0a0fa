"""An underreplication task: which bookies of a ledger lack copies, why, and how its repair has gone so far.

Law: marking is merging. A mark never takes a bookie out, and it always makes another version of the task, so that a repair that
at work meanwhile cannot close a task over what it did not see: a replica reported damaged during its repair is repaired
again. A failed attempt keeps the task with the reason, and puts it off.

Source: BookKeeper's ``UnderreplicatedLedgerFormat``, which names the bookies only, and leaves the task as it is when a bookie is
marked twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

_TEXT_MAX = 500
"""Longer words are cut: a task is a small record."""


class Reason(Enum):
    """Why a bookie of a ledger needs a repair."""

    LOST = "lost"
    """It is believed to be gone: others take over its entries. Once it is registered again, it is asked what it lacks."""
    LACKS = "lacks"
    """It serves, without entries that are assigned to it: they are copied to it."""
    MISPLACED = "misplaced"
    """It serves, where the placement policy does not want it: others take over what is not written to any more."""


class Mark(NamedTuple):
    """What an auditor found of one ledger."""

    ledger_id: int
    bookies: Mapping[str, Reason]
    detail: str = ""
    """In words, for people."""


@dataclass(frozen=True, slots=True)
class Task:
    """One version of a ledger's task. Times are the wall clock of whoever wrote them, in milliseconds."""

    ledger_id: int
    bookies: Mapping[str, Reason]
    detail: str = ""
    marked_at_ms: int = 0
    """When it was marked first."""
    marks: int = 1
    attempts: int = 0
    """How many failed since it was marked first."""
    error: str = ""
    """Why the last of them failed."""
    not_before_ms: int = 0

    def of(self, reason: Reason) -> tuple[str, ...]:
        """The bookies that need this repair."""
        return tuple(bookie for bookie, why in self.bookies.items() if why is reason)

    def due(self, now_ms: int) -> bool:
        """May it be tried (again)?"""
        return now_ms >= self.not_before_ms

    def marked(self, mark: Mark) -> Task:
        """The task after another mark. It is tried at once if the mark says anything new.

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
        )

    def failed(self, error: str, not_before_ms: int) -> Task:
        """The task after an attempt that failed."""
        return replace(self, attempts=self.attempts + 1, error=error[:_TEXT_MAX], not_before_ms=not_before_ms)


def new_task(mark: Mark, now_ms: int) -> Task:
    """The task of a ledger that had none."""
    return Task(mark.ledger_id, dict(mark.bookies), mark.detail[:_TEXT_MAX], now_ms)

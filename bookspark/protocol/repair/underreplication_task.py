"""An underreplication task: a ledger's bookies that lack copies, the reasons, and the attempts so far.

Law: a mark is merged into the task. It never takes a bookie out, and it always makes another version of the task. So a repair at
work can't close a task over a mark that it did not see: a replica reported as damaged during its repair is repaired again. A
failed attempt keeps the task with the reason, and puts it off.

Source: BookKeeper's ``UnderreplicatedLedgerFormat``, which names the bookies only, and leaves the task as it is when a bookie is
marked twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from bookspark.protocol.kept_times import is_over

_TEXT_MAX = 500
"""Longer texts are cut, because a task is a small record."""


_MISSED_MAX = 200
"""Most ranges of entries in a task."""

NO_OTHER = "no other bookie is in the write set"


class Missed(NamedTuple):
    """Entries that the last attempt could not copy."""

    first: int
    last: int
    lost: bool
    """Every bookie was reached, and none returns them. False: a bookie could not be asked, or a target refused the copy."""
    unreached: tuple[str, ...]
    """Bookies that may have them and could not be asked."""
    answers: Mapping[str, str]
    """Each bookie's answer, in words."""

    def __str__(self) -> str:
        ids = f"entry {self.first}" if self.first == self.last else f"entries {self.first}..{self.last}"
        answers = ", ".join(f"{bookie}: {answer}" for bookie, answer in self.answers.items())
        return f"{ids} ({answers or NO_OTHER})"


class Reason(Enum):
    LOST = "lost"
    """Believed to be gone: others take over its entries. Once registered again, it is asked for its lacking entries."""
    LACKS = "lacks"
    """Lacks assigned entries: they are copied to it."""
    MISPLACED = "misplaced"
    """The placement policy wants another: others take over the fragments that get no more entries."""


class Mark(NamedTuple):
    """An auditor's verdict on one ledger."""

    ledger_id: int
    bookies: Mapping[str, Reason]
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One version of a ledger's task. Times are the metadata store's, in ms since 1970."""

    ledger_id: int
    bookies: Mapping[str, Reason]
    detail: str = ""
    marked_at_ms: int = 0
    """Time of the first mark."""
    marks: int = 1
    attempts: int = 0
    """Failed attempts."""
    error: str = ""
    not_before_ms: int = 0
    """Earliest time of the next attempt."""
    wait_ms: int = 0
    """Time from the failed attempt to ``not_before_ms``."""
    missed: tuple[Missed, ...] = ()
    """The first ``_MISSED_MAX`` ranges that the last attempt could not copy."""

    def of(self, reason: Reason) -> tuple[str, ...]:
        return tuple(bookie for bookie, why in self.bookies.items() if why is reason)

    def due(self, now_ms: int) -> bool:
        return is_over(self.not_before_ms - self.wait_ms, self.wait_ms, now_ms)

    def marked(self, mark: Mark) -> Task:
        """The task after another mark, due at once if the mark says anything new.

        Raises ValueError for a mark of another ledger.
        """
        if mark.ledger_id != self.ledger_id:
            raise ValueError(f"a mark of ledger {mark.ledger_id} is no mark of ledger {self.ledger_id}")
        news = any(self.bookies.get(bookie) is not reason for bookie, reason in mark.bookies.items())
        # Back again, a lost bookie is asked for its lacking entries anyway.
        lost = {
            b: Reason.LOST for b, reason in mark.bookies.items() if reason is Reason.LACKS and b in self.of(Reason.LOST)
        }
        return replace(
            self,
            bookies={**self.bookies, **mark.bookies, **lost},
            detail=mark.detail[:_TEXT_MAX] or self.detail,
            marks=self.marks + 1,
            not_before_ms=0 if news else self.not_before_ms,
            wait_ms=0 if news else self.wait_ms,
            missed=() if news else self.missed,
        )

    def failed(self, error: str, now_ms: int, wait_ms: int, missed: Sequence[Missed] = ()) -> Task:
        """The task after an attempt that failed now; the next one comes ``wait_ms`` later. ``missed``: the entries not copied."""
        return replace(
            self,
            attempts=self.attempts + 1,
            error=error[:_TEXT_MAX],
            not_before_ms=now_ms + wait_ms,
            wait_ms=wait_ms,
            missed=tuple(missed[:_MISSED_MAX]),
        )


def new_task(mark: Mark, now_ms: int) -> Task:
    return Task(mark.ledger_id, dict(mark.bookies), mark.detail[:_TEXT_MAX], now_ms)

"""What a machine has asked of bookies so far, so that it can tell an answer that comes late from one that can't be.

Law: it only grows. An answer about entries that were never asked for, or from a bookie that was never asked, is a defect of the
driver. Whether an answer is still wanted is the machine's concern.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from bookspark.protocol.ledger.actions import (
    AddAnswered,
    HeldAnswered,
    LacAnswered,
    ReadAnswered,
    SendAdd,
    SendListHeld,
    SendRead,
    SendReadLac,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.transitions import IllegalEventError


class Asked:
    """The bookies that were asked for a LAC, for entries, to write and what they hold, and how far the entries went."""

    __slots__ = ("for_lac", "listed_from", "read_to", "to_list", "to_read", "to_write", "written_to")

    def __init__(self) -> None:
        self.for_lac: frozenset[str] = frozenset()
        self.to_read: frozenset[str] = frozenset()
        self.read_to = NO_ENTRY
        """The highest first id of a read."""
        self.to_write: frozenset[str] = frozenset()
        self.written_to = NO_ENTRY
        """The highest id that was sent to be written."""
        self.to_list: frozenset[str] = frozenset()
        self.listed_from = NO_ENTRY
        """The highest first id of a question for what is held."""

    def note(self, actions: Iterable[object]) -> None:
        """These actions are carried out."""
        for action in actions:
            match action:
                case SendReadLac():
                    self.for_lac |= {action.bookie}
                case SendRead():
                    self.to_read |= {action.bookie}
                    self.read_to = max(self.read_to, action.first)
                case SendAdd():
                    self.to_write |= set(action.bookies)
                    self.written_to = max(self.written_to, action.last)
                case SendListHeld():
                    self.to_list |= {action.bookie}
                    self.listed_from = max(self.listed_from, action.first)

    def check(self, phase: Enum, event: object) -> None:
        """Raise IllegalEventError if ``event`` is a bookie's answer to a question that was never asked."""
        match event:
            case LacAnswered():
                known = event.bookie in self.for_lac
            case ReadAnswered():
                known = (
                    event.bookie in self.to_read and 0 <= event.first <= self.read_to and event.last >= event.first - 1
                )
            case AddAnswered():
                known = event.bookie in self.to_write and 0 <= event.first <= event.last <= self.written_to
            case HeldAnswered():
                known = (
                    event.bookie in self.to_list
                    and 0 <= event.first <= self.listed_from
                    and event.last >= event.first - 1
                )
            case _:
                known = True
        if not known:
            raise IllegalEventError(phase, event, "it was never asked for")

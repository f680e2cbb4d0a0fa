"""One round of questions during a recovery that may accept a loss: does any bookie hold an entry behind one that is not known?

Law: where an entry can't be known, a later one may have been confirmed all the same, and be whole on a bookie that never had the
earlier one. Every bookie of the last ensemble is asked, and each has answered, or counts as lost (``loss_notes``), before the
ledger may end there. A bookie in limbo is asked, too: it says "unknown" of what it lacks, and still holds what it holds.

Decision: what a bookie holds, durably, is asked, and not what it answers to a read, because a read ends at the first entry that a
bookie in limbo does not have. One entry is enough to know that the ledger goes on, so a bookie need not tell them all.

Source: docs/decisions/without-the-journal.md; BookKeeper has no such question, because its recovery accepts no loss.
"""

from __future__ import annotations

from bookspark.protocol.ledger.actions import Action, HeldAnswered, SendListHeld
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response


class LaterEntries:
    """The entries from ``first`` on. ``last`` is the highest id that any bookie told; ``first − 1`` if none did."""

    __slots__ = ("_ensemble", "answers", "first", "last")

    def __init__(self, metadata: LedgerMetadata, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.answers: dict[str, Response] = {}
        """What each bookie says of entries from ``first`` on: Negative if it holds none."""
        self._ensemble = metadata.last_fragment.ensemble

    def start(self) -> list[Action]:
        return [SendListHeld(bookie, self.first) for bookie in self._ensemble]

    def concerns(self, event: HeldAnswered) -> bool:
        """Is it an answer to this question, of a bookie that was asked?"""
        return event.first == self.first and event.bookie in self._ensemble

    def heard(self, event: HeldAnswered) -> None:
        """Take an answer in that concerns this round."""
        answer = event.response
        if isinstance(answer, Positive):
            self.last = max(self.last, event.last)
            if event.last < self.first:
                answer = Negative(NegativeReason.NO_SUCH_ENTRY)
        self.answers[event.bookie] = answer

    @property
    def all_answered(self) -> bool:
        return len(self.answers) == len(self._ensemble)

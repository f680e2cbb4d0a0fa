"""One round of fencing: every bookie of the last ensemble is asked for its LAC, with the fence flag.

Law: fencing is done once the bookies that answered cover every ack quorum. From then on no entry can reach an ack quorum by the
old writer's adds, so no higher LAC (last add confirmed) than the highest that was heard is ever told to it.

Source: ``FencingPhase`` of bookkeeper-tlaplus.
"""

from __future__ import annotations

from collections.abc import Collection

from bookspark.protocol.ledger.actions import Action, LacAnswered, SendReadLac
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.quorum import Verdict, fencing_verdict
from bookspark.protocol.ledger.responses import Positive, Response


class Fencing:
    """The answers of one round. ``last_add_confirmed`` and ``last_add_fully_replicated`` are the highest that were heard."""

    __slots__ = ("_metadata", "answers", "last_add_confirmed", "last_add_fully_replicated")

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.answers: dict[str, Response] = {}
        self.last_add_confirmed = NO_ENTRY
        self.last_add_fully_replicated = NO_ENTRY
        self._metadata = metadata

    def start(self) -> list[Action]:
        return [SendReadLac(bookie, fence=True) for bookie in self._ensemble]

    def concerns(self, event: LacAnswered) -> bool:
        """Is the bookie one of the last ensemble?"""
        return event.bookie in self._ensemble

    def heard(self, event: LacAnswered) -> None:
        """Take an answer in that concerns this round."""
        self.answers[event.bookie] = event.response
        if isinstance(event.response, Positive):
            self.last_add_confirmed = max(self.last_add_confirmed, event.last_add_confirmed)
            self.last_add_fully_replicated = max(self.last_add_fully_replicated, event.last_add_fully_replicated)

    def verdict(self, lost: Collection[str] = ()) -> Verdict:
        """PRESENT: fenced. UNKNOWN: no further answer can make it so. PENDING: more answers can decide it. ``lost``: bookies that
        can't acknowledge anything any more, fenced or not."""
        m = self._metadata
        positives = [i for i, b in enumerate(self._ensemble) if b in lost or isinstance(self.answers.get(b), Positive)]
        others = [i for i, b in enumerate(self._ensemble) if b in self.answers and i not in positives]
        return fencing_verdict(m.ensemble_size, m.write_quorum, m.ack_quorum, positives, others)

    @property
    def all_answered(self) -> bool:
        return len(self.answers) == self._metadata.ensemble_size

    @property
    def _ensemble(self) -> tuple[str, ...]:
        return self._metadata.last_fragment.ensemble

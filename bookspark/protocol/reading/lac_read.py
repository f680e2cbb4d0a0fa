"""Read of the LAC (last add confirmed) of a ledger that is not closed, without a fence.

Law: the returned LAC is a confirmed one. The read is finished as soon as the answers cover every ack quorum: no add acknowledged
before carried a higher LAC. When all bookies have answered, or the others are late (``ReadIsLate``), one LAC is enough, though
perhaps not the newest. With an ack quorum of 1, only all answers are a coverage, so a hanging bookie costs that delay. ::

    NEW ──Start──► ASKING ──covered, or no more answers are waited for──► DONE

Sources: bookkeeper-overview, "Reading"; ``ReadLastConfirmedOp`` of BookKeeper.
"""

from __future__ import annotations

from enum import Enum, auto

from bookspark.errors import ReadError
from bookspark.protocol.ledger.actions import (
    Action,
    DeadlinePassed,
    Fail,
    Finish,
    LacAnswered,
    ReadIsLate,
    SendReadLac,
    Start,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata
from bookspark.protocol.ledger.quorum import Verdict, fencing_verdict
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of, row
from bookspark.protocol.reading.answers import in_words


class LacReadPhase(Enum):
    NEW = auto()
    ASKING = auto()
    DONE = auto()


LacReadEvent = LacAnswered | ReadIsLate | DeadlinePassed

TRANSITIONS = {
    LacReadPhase.NEW: row(taken=(Start,)),
    LacReadPhase.ASKING: row(taken=(LacAnswered, ReadIsLate, DeadlinePassed)),
    LacReadPhase.DONE: row(late=(LacAnswered, ReadIsLate, DeadlinePassed)),
}


class LacRead:
    """``last_add_confirmed``: the highest in the answers of the last ensemble."""

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.phase = LacReadPhase.NEW
        self.last_add_confirmed = max(NO_ENTRY, metadata.last_fragment.first_entry_id - 1)
        self._metadata = metadata
        self._answers: dict[str, Response] = {}
        self._late = False

    def start(self) -> list[Action]:
        return self.step(Start())

    def step(self, event: Start | LacReadEvent) -> list[Action]:
        """Raises IllegalEventError, and changes nothing, for an answer to a question never asked.

        A Negative counts as a LAC of −1: the bookie never saw the ledger. At the deadline, bookies without an answer have failed.
        """
        if cell_of(TRANSITIONS, self.phase, event) is LATE:
            return []
        ensemble = self._metadata.last_fragment.ensemble
        match event:
            case Start():
                self.phase = LacReadPhase.ASKING
                return [SendReadLac(bookie) for bookie in ensemble]
            case DeadlinePassed():
                late = Unknown(UnknownReason.TIMEOUT)
                self._answers = {b: self._answers.get(b, late) for b in ensemble}
            case ReadIsLate():
                self._late = True
            case LacAnswered():
                if event.bookie not in ensemble:
                    raise IllegalEventError(self.phase, event, "the bookie was not asked")
                self._answers[event.bookie] = event.response
                self.last_add_confirmed = max(self.last_add_confirmed, event.last_add_confirmed)
        return self._decide()

    def _decide(self) -> list[Action]:
        m, ensemble = self._metadata, self._metadata.last_fragment.ensemble
        told = [i for i, b in enumerate(ensemble) if isinstance(self._answers.get(b), Positive | Negative)]
        failed = [i for i, b in enumerate(ensemble) if isinstance(self._answers.get(b), Unknown)]
        all_answered = len(self._answers) == m.ensemble_size
        verdict = fencing_verdict(m.ensemble_size, m.write_quorum, m.ack_quorum, told, failed)
        if verdict is Verdict.PRESENT or (told and (self._late or all_answered)):
            self.phase = LacReadPhase.DONE
            return [Finish(m)]
        if not all_answered:
            return []
        self.phase = LacReadPhase.DONE
        return [Fail(ReadError(f"ledger {m.ledger_id}: no bookie told its LAC ({in_words(self._answers)}); try again"))]

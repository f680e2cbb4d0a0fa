"""What a recovery that may accept a loss could not find out, noted for the ledger's record.

Law: only an operator accepts a loss (``accepted_loss``). Each thing that was not known is noted with the answers of that moment,
as far as a record has room for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Response
from bookspark.protocol.reading.answers import in_words

_NOTES_MAX = 100


class LossNotes:
    """``accepted``: who accepts the loss; None if nobody does."""

    __slots__ = ("_accepted", "_not_known")

    def __init__(self, accepted: AcceptedLoss | None) -> None:
        self._accepted = accepted
        self._not_known: tuple[str, ...] = ()

    def accept(self, what: str, answers: Mapping[str, Response]) -> bool:
        """Note that ``what`` is not known. False if nobody accepts that."""
        if self._accepted is None:
            return False
        if len(self._not_known) < _NOTES_MAX:
            self._not_known += (f"{what} ({in_words(answers)})",)
        return True

    @property
    def may_accept(self) -> bool:
        return self._accepted is not None

    def forget(self) -> None:
        """Recovery begins anew."""
        self._not_known = ()

    def noted_in(self, closed: LedgerMetadata) -> LedgerMetadata:
        """The record of the closed ledger, with the notes if there are any."""
        if self._accepted is None or not self._not_known:
            return closed
        return replace(self._accepted, not_known=self._not_known).noted_in(closed)

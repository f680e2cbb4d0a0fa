"""What a recovery that may accept a loss could not find out, noted for the ledger's record.

Law: only an operator accepts a loss (``accepted_loss``), and an answer counts as lost only if the bookie says itself that it lost
what it had, or if the operator named the bookie. A bookie that could not be reached may have everything, so recovery stops, and
the error tells which bookies to bring back or to name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from bookspark.protocol.ledger.accepted_loss import LOSSES_MAX, AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.reading.answers import in_words

_NOTES_MAX = 100
_SAY_THAT_THEY_LOST_IT = frozenset((UnknownReason.LIMBO, UnknownReason.LOST))


class LossNotes:
    """``accepted``: who accepts the loss, and which bookies they name; None if nobody does."""

    __slots__ = ("_accepted", "_losses", "_not_known")

    def __init__(self, accepted: AcceptedLoss | None) -> None:
        self._accepted = accepted
        self._losses: tuple[Loss, ...] = ()
        self._not_known: tuple[str, ...] = ()

    @property
    def may_accept(self) -> bool:
        return self._accepted is not None

    def lost(self, answers: Mapping[str, Response]) -> tuple[str, ...]:
        """The bookies whose answer counts as lost."""
        if self._accepted is None:
            return ()
        named = self._accepted.named
        return tuple(
            bookie
            for bookie, answer in answers.items()
            if isinstance(answer, Unknown) and (bookie in named or answer.reason in _SAY_THAT_THEY_LOST_IT)
        )

    def accept_fence(self, what: str, answers: Mapping[str, Response]) -> None:
        """Note that the bookies whose answer counts as lost are not known to be fenced."""
        bookies = tuple(sorted(self.lost(answers)))
        self._note(Loss(LossKind.FENCE, -1, -1, bookies), what, answers)

    def accept(self, kind: LossKind, entry_id: int, what: str, answers: Mapping[str, Response]) -> bool:
        """Note that ``what``, which is about an entry, is not known. False if nobody accepts that, or a bookie may know it."""
        if self._accepted is None or self.may_know(answers):
            return False
        bookies = answers if kind is LossKind.ENTRIES else self.lost(answers)
        self._note(Loss(kind, entry_id, entry_id, tuple(sorted(bookies))), what, answers)
        return True

    def may_know(self, answers: Mapping[str, Response]) -> list[str]:
        """The bookies that did not deny the entry, and whose answer does not count as lost."""
        lost = self.lost(answers)
        return [bookie for bookie, answer in answers.items() if not isinstance(answer, Negative) and bookie not in lost]

    def advice(self, ledger_id: int, answers: Mapping[str, Response]) -> str:
        """What an operator can do who wanted to accept a loss, and could not."""
        away = [bookie for bookie in self.may_know(answers) if not isinstance(answers[bookie], Positive)]
        if self._accepted is None or not away:
            return "try again when more of its bookies are up"
        named = " ".join((*self._accepted.named, *away))
        return (
            f"{', '.join(away)} did not say that it is lost, and may have it. If they are only stopped or cut off, bring them "
            f"back and recover the ledger again. If they are gone for good, name them: bookspark ledger recover {ledger_id} "
            f"--accept-loss {named}"
        )

    def forget(self) -> None:
        """Recovery begins anew."""
        self._losses = self._not_known = ()

    @property
    def too_many(self) -> bool:
        """Are there more losses than a record has room for?"""
        return len(self._losses) > LOSSES_MAX

    def noted_in(self, closed: LedgerMetadata) -> LedgerMetadata:
        """The record of the closed ledger, with the notes if there are any."""
        if self._accepted is None or not self._losses:
            return closed
        losses = tuple(one for loss in self._losses for one in _by_fragment(loss, closed))
        return replace(closed, accepted_loss=replace(self._accepted, losses=losses, not_known=self._not_known))

    def _note(self, loss: Loss, what: str, answers: Mapping[str, Response]) -> None:
        if len(self._not_known) < _NOTES_MAX:
            self._not_known += (f"{what} ({in_words(answers)})",)
        if not self._losses:
            self._losses = (loss,)
            return
        last = self._losses[-1]
        if last.kind is loss.kind and last.bookies == loss.bookies and loss.first <= last.last + 1:
            self._losses = (*self._losses[:-1], last._replace(last=max(last.last, loss.last)))
        else:
            self._losses += (loss,)


def _by_fragment(loss: Loss, closed: LedgerMetadata) -> Iterator[Loss]:
    """The loss, as the closed record has it: a bookie that recovery put in place of another lacks what that one lost."""
    if loss.kind is not LossKind.ENTRIES:
        yield loss
        return
    for fragment, last in closed.fragment_ranges():
        first, end = max(loss.first, fragment.first_entry_id), min(loss.last, -1 if last is None else last)
        if first <= end:
            yield Loss(loss.kind, first, end, tuple(sorted(closed.write_set_of(first))))

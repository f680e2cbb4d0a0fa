"""An accepted loss: an operator's declaration, kept in the ledger's metadata, that unknown entries of a ledger are lost.

Law: only a bookie's own answer, or an operator who names the bookie, makes a loss: a bookie merely away may have everything. The
record is written with the close that rests on it, and stays for good. It lists ids and bookies exactly, so repair passes over
these only. A ledger closed without a loss has no such record.

Bytes: the field ``acceptedLoss`` of the ledger's record (docs/formats.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from bookspark.errors import ConfigurationError

MILLISECONDS_MAX = 253_402_300_799_999
"""The latest time of a record, in ms since 1970: the end of the year 9999."""
LOSSES_MAX = 4000
"""Most losses in one record: the record has to fit into a node of ZooKeeper (1 MB)."""


class LossKind(Enum):
    FENCE = "fence"
    """Unknown fences of these bookies, and unknown confirmed entries. No ids."""
    ENTRIES = "entries"
    """Confirmed entries that no bookie returned. They stay in the ledger, unreadable."""
    END = "end"
    """Unknown existence of entry ``first``: the ledger was closed before it."""


class Loss(NamedTuple):
    """``first..last``: inclusive ids; −1 of a FENCE. ``bookies``: of ENTRIES the write set, each of which lost the entries,
    denied them or was named; otherwise the bookies that lost their state or were named."""

    kind: LossKind
    first: int
    last: int
    bookies: tuple[str, ...]

    def follows(self, before: Loss) -> bool:
        """Are both ENTRIES of the same bookies, with this one starting right after ``before``?"""
        same = (self.kind, self.bookies) == (before.kind, before.bookies)
        return same and self.kind is LossKind.ENTRIES and self.first == before.last + 1


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """``by``: the operator. ``at_ms``: the time, in ms since 1970. ``named``: bookies that the operator declared lost for good.
    ``losses``: in the order of discovery. ``not_known``: the first loss in words, with the answers of that moment.

    Raises ConfigurationError for impossible losses.
    """

    by: str
    at_ms: int
    named: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    not_known: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for kind, first, last, bookies in self.losses:
            ids_fit = (first, last) == (-1, -1) if kind is LossKind.FENCE else 0 <= first <= last
            if not ids_fit or not bookies or len(set(bookies)) < len(bookies):
                raise ConfigurationError(f"no loss of {kind.value} {first}..{last} on {bookies} can be accepted")

    def lost_on(self, bookie: str) -> Iterator[tuple[int, int]]:
        """Ascending ranges that don't overlap."""
        return (
            (loss.first, loss.last) for loss in self.losses if loss.kind is LossKind.ENTRIES and bookie in loss.bookies
        )

    def taken_over(self, first: int, last: int, swap: Mapping[str, str]) -> AcceptedLoss:
        """The loss after the bookies in ``swap`` took over the entries ``first..last``, with the losses of the old ones."""
        losses: list[Loss] = []
        for loss in (part for each in self.losses for part in _parts(each, first, last)):
            if loss.kind is LossKind.ENTRIES and first <= loss.first <= last:
                loss = loss._replace(bookies=tuple(swap.get(bookie, bookie) for bookie in loss.bookies))
            before = losses[-1] if losses else None
            if before is not None and loss.follows(before):
                losses[-1] = before._replace(last=loss.last)
            else:
                losses.append(loss)
        return replace(self, losses=tuple(losses))


def _parts(loss: Loss, first: int, last: int) -> Iterator[Loss]:
    """The loss, cut where ``first..last`` begins and ends."""
    cuts = [first, last + 1] if loss.kind is LossKind.ENTRIES else []
    starts = [loss.first, *(cut for cut in cuts if loss.first < cut <= loss.last)]
    for start, end in zip(starts, [*(cut - 1 for cut in starts[1:]), loss.last], strict=True):
        yield loss._replace(first=start, last=end)

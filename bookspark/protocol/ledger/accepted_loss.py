"""An accepted loss: an operator declared lost what can't be known of a ledger. The ledger's metadata keeps that.

Law: only what a bookie says itself, or what an operator says of a bookie by its name, counts as lost: a bookie that is merely
away may have everything. The record is written together with the close that rests on it, and stays for good. It says exactly
which ids and which bookies it is about, so repair passes over these and over nothing else. A ledger that could be closed without
it has none.

Bytes: the field ``acceptedLoss`` of the ledger's record (docs/formats.md). Earlier versions wrote a label of the custom metadata,
without ids; it is told to people and decides nothing, because anybody can write such a label.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from bookspark.errors import ConfigurationError

MILLISECONDS_MAX = 253_402_300_799_999
"""The latest time of a record, in ms since 1970: the end of the year 9999."""
EARLIER_LABEL = "bookspark.accepted_loss"
LOSSES_MAX = 4000
"""The most losses in one record, which has to fit into a node of ZooKeeper (1 MB)."""


class LossKind(Enum):
    """What a loss is about."""

    FENCE = "fence"
    """Whether these bookies are fenced, and which entries they know to be confirmed. No ids."""
    ENTRIES = "entries"
    """Confirmed entries that no bookie returned. They stay in the ledger, unreadable."""
    END = "end"
    """Whether there was an entry ``first``: the ledger was closed before it."""


class Loss(NamedTuple):
    """``first..last``: inclusive ids; −1 of a FENCE. ``bookies``: of ENTRIES the write set, each of which lost them, denied them
    or was named; otherwise those that lost what they knew or were named."""

    kind: LossKind
    first: int
    last: int
    bookies: tuple[str, ...]

    def follows(self, before: Loss) -> bool:
        """Are both about entries of the same bookies, one right after the other?"""
        same = (self.kind, self.bookies) == (before.kind, before.bookies)
        return same and self.kind is LossKind.ENTRIES and self.first == before.last + 1


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """``by``: who accepted it. ``at_ms``: when, in milliseconds since 1970. ``named``: the bookies that they declared lost for
    good. ``losses``: what was not known, in the order in which it was met. ``not_known``: the first of it in words, with the
    answers of that moment.

    Raises ConfigurationError for losses that can't be.
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
        """The entries of the ledger that are accepted as lost on ``bookie``, as ascending ranges that don't overlap."""
        return (
            (loss.first, loss.last) for loss in self.losses if loss.kind is LossKind.ENTRIES and bookie in loss.bookies
        )

    def taken_over(self, first: int, last: int, swap: Mapping[str, str]) -> AcceptedLoss:
        """The same, once other bookies (``swap``) have taken over the entries ``first..last``: what the old ones lost, they don't
        have either."""
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


def noted_by_earlier_version(custom_metadata: Mapping[str, bytes]) -> AcceptedLoss | None:
    """What an earlier version noted as a label, for people; None if there is no such label, or it is a user's own."""
    try:
        found = json.loads(custom_metadata[EARLIER_LABEL])
        by, at_ms, not_known = found["by"], found["at_ms"], found["not_known"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    if not (
        isinstance(by, str) and type(at_ms) is int and 0 <= at_ms <= MILLISECONDS_MAX and isinstance(not_known, list)
    ):
        return None
    return AcceptedLoss(by, at_ms, not_known=tuple(map(str, not_known)))

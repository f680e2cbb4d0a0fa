"""Dangers to a ledger if bookies were stopped: the decision behind ``bookspark bookie safe-to-stop``.

Law: the decision is that of the audit query ``safe_to_stop``, without the indexes of the bookies. Stopping is dangerous if

* an entry on a stopped bookie would have fewer copies than its ack quorum on bookies that are up; or
* the ledger is not closed, and a write set of its last fragment would have an ack quorum of bookies that can't be asked: stopped,
  down, or with the ledger in limbo.

A bookie holds its assigned entries, unless it is known to lack them. In the last fragment of a ledger that is not closed an entry
may lie on any write set. Source: BP-46, "A note on Quorums"; docs/decisions/three-valued-answers.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.ledger.quorum import write_sets

TOO_FEW_COPIES = "too few copies would be left"
NOT_RECOVERABLE = "it is not closed, and too few bookies would be left to recover it"


class Danger(NamedTuple):
    """``first_entry_id``, ``last_entry_id``, ``copies_left``: None if ``why`` concerns no entries; a last one of None is the
    ledger's open end."""

    ledger_id: int
    first_entry_id: int | None
    last_entry_id: int | None
    copies_left: int | None
    ack_quorum: int
    why: str


@dataclass(frozen=True, slots=True)
class Known:
    """Known faults of one ledger's bookies."""

    down: Collection[str] = ()
    """Not registered, or without an answer."""
    lacking: Mapping[str, Sequence[tuple[int, int]]] = field(default_factory=dict)
    """Missing entries: inclusive ranges by bookie."""
    limbo: Collection[str] = ()


def dangers_of(metadata: LedgerMetadata, stopped: Collection[str], known: Known) -> Iterator[Danger]:
    """Yields nothing if the ledger allows a stop of the bookies ``stopped``."""
    gone = set(known.down) | set(stopped)
    for fragment, last in metadata.fragment_ranges():
        if set(fragment.ensemble).isdisjoint(stopped):
            continue
        yield from _too_few(metadata, fragment, last, stopped, gone, known)
        if last is None and _unrecoverable(metadata, fragment, stopped, gone | set(known.limbo)):
            yield Danger(metadata.ledger_id, None, None, None, metadata.ack_quorum, NOT_RECOVERABLE)


def fewest_left(
    ensemble: Sequence[str],
    write_quorum: int,
    ack_quorum: int,
    is_open: bool,
    stopped: Collection[str],
    doubted: Collection[str],
) -> int | None:
    """A bound without a look at entries: fewest copies left of an entry without ``stopped`` and ``doubted``. None: ``dangers_of``
    yields nothing, provided that all bookies down, lacking entries or in limbo are in ``doubted`` and no loss was accepted."""
    gone = set(stopped) | set(doubted)
    fewest: int | None = None
    for positions in write_sets(len(ensemble), write_quorum):
        members = {ensemble[position] for position in positions}
        left = len(members - gone)
        few = left < ack_quorum or (is_open and write_quorum - left >= ack_quorum)
        if few and not members.isdisjoint(stopped):
            fewest = left if fewest is None else min(fewest, left)
    return fewest


def _too_few(
    metadata: LedgerMetadata,
    fragment: Fragment,
    last: int | None,
    stopped: Collection[str],
    gone: Collection[str],
    known: Known,
) -> Iterator[Danger]:
    for first, end in _pieces(metadata, fragment, last, known):
        worst: int | None = None
        for members in _members(metadata, fragment, first, end):
            held = [bookie for bookie in members if not _lacks(metadata, bookie, first, known)]
            left = len([bookie for bookie in held if bookie not in gone])
            if left < metadata.ack_quorum and not set(held).isdisjoint(stopped):
                worst = left if worst is None else min(worst, left)
        if worst is not None:
            yield Danger(metadata.ledger_id, first, end, worst, metadata.ack_quorum, TOO_FEW_COPIES)


def _unrecoverable(
    metadata: LedgerMetadata, fragment: Fragment, stopped: Collection[str], silent: Collection[str]
) -> bool:
    return any(
        not set(members).isdisjoint(stopped) and len(set(members) & set(silent)) >= metadata.ack_quorum
        for members in _windows(metadata, fragment)
    )


def _windows(metadata: LedgerMetadata, fragment: Fragment) -> Iterator[tuple[str, ...]]:
    for positions in write_sets(metadata.ensemble_size, metadata.write_quorum):
        yield tuple(fragment.ensemble[position] for position in positions)


def _members(metadata: LedgerMetadata, fragment: Fragment, first: int, last: int | None) -> Iterator[tuple[str, ...]]:
    """The write sets of ``first..last``, each once."""
    size = metadata.ensemble_size
    if last is None or size == metadata.write_quorum or last - first + 1 >= size:
        yield from _windows(metadata, fragment)
        return
    for entry_id in range(first, last + 1):
        yield metadata.write_set_of(entry_id)


def _pieces(
    metadata: LedgerMetadata, fragment: Fragment, last: int | None, known: Known
) -> Iterator[tuple[int, int | None]]:
    """The fragment's entries, cut at the ends of missing ranges. A closed fragment without entries has no piece."""
    first = fragment.first_entry_id
    if last is not None and last < first:
        return
    ends = [
        end for bookie in fragment.ensemble for low, high in _lost(metadata, bookie, known) for end in (low, high + 1)
    ]
    cuts = sorted({first, *(end for end in ends if end > first and (last is None or end <= last))})
    for low, following in pairwise(cuts):
        yield low, following - 1
    yield cuts[-1], last


def _lost(metadata: LedgerMetadata, bookie: str, known: Known) -> Iterator[tuple[int, int]]:
    yield from known.lacking.get(bookie, ())
    if metadata.accepted_loss is not None:
        yield from metadata.accepted_loss.lost_on(bookie)


def _lacks(metadata: LedgerMetadata, bookie: str, entry_id: int, known: Known) -> bool:
    return any(low <= entry_id <= high for low, high in _lost(metadata, bookie, known))

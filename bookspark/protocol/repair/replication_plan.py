"""Autorecovery's plan: under-replicated fragments, planned copies, and permission to fence a ledger that is not closed.

Law: the metadata names a copy only after it is whole and synced, and a copy replaces a bookie only in a fragment that gets no
more entries. The last fragment of a ledger that is not closed belongs to its writer (or to a recoverer at work), which replaces
bookies by itself. If its bookies stay lost beyond a grace time without a sign of the writer, or beyond a longer time with signs,
ledger recovery closes the ledger first. Entries of such a
fragment are judged up to the LAC (last add confirmed) only: later ones may be under way. Nothing is ever deleted here.

Two questions use the same arithmetic:

* the **auditor** knows the lost bookies: ``repairs`` gives the fragments, ``copies`` the entries, ``repaired`` the record;
* a **bookie** (after a lossy boot, or now and then) and the **integrity check** know the held entries: ``lacks`` gives the
  missing ones. They are copied to the bookie, and the metadata stays as it is.

Sources: bookkeeper-overview, "Recovering/Repair"; ``LedgerFragmentReplicator`` and ``ReplicationWorker`` of BookKeeper
(its ``openLedgerRereplicationGracePeriod`` is the grace time); BP-46, "The Full Boot-Up Sequence", phase two;
docs/decisions/delta-snapshots.md.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, Fragment, LedgerMetadata, LedgerState

Ranges = Iterable[tuple[int, int]]
"""Inclusive ranges of entry ids, ascending, that don't overlap."""


NOBODY = "(a bookie to be chosen)"
"""The place of a copy that a ledger never had, as if a bookie of this name were lost."""


class Repair(NamedTuple):
    """A fragment, closed to more entries, with ``lost`` bookies. A ledger closed empty has no entries, but its record has to name
    present bookies all the same."""

    first: int
    last: int
    ensemble: tuple[str, ...]
    lost: tuple[str, ...]


class Copy(NamedTuple):
    """Read ``first..last`` from the ledger's other bookies and write them to ``target``, synced, as a recoverer does."""

    first: int
    last: int
    target: str


class Piece(NamedTuple):
    """The entries ``first..last`` for all of ``targets``."""

    first: int
    last: int
    targets: tuple[str, ...]


class Unreadable(NamedTuple):
    """Entries whose whole write set is lost: nothing can be copied until one of its bookies is back."""

    first: int
    last: int
    bookies: tuple[str, ...]


# -- the auditor


def repairs(metadata: LedgerMetadata, lost: Collection[str]) -> Iterator[Repair]:
    """Fragments that have lost a bookie and get no more entries."""
    for fragment, last in metadata.fragment_ranges():
        gone = tuple(bookie for bookie in fragment.ensemble if bookie in lost)
        if gone and last is not None:
            yield Repair(fragment.first_entry_id, last, fragment.ensemble, gone)


def waits_for_close(metadata: LedgerMetadata, lost: Collection[str]) -> bool:
    """Has the ledger lost a bookie that only its writer or ledger recovery may replace?"""
    return not metadata.closed and any(bookie in lost for bookie in metadata.last_fragment.ensemble)


class Patience(NamedTuple):
    """Times that an open ledger's writer has to replace a lost bookie, in seconds."""

    grace_seconds: float
    """Without a sign of life."""
    grace_seconds_max: float
    """In all. A writer that lives may be stuck."""


def is_unchanged(noticed: LedgerMetadata, now: LedgerMetadata, lost: Collection[str]) -> bool:
    """Does the last fragment of ``noticed`` still name a lost bookie? A writer at work would have replaced the bookie, a
    recoverer would have closed the ledger."""
    return (
        waits_for_close(now, lost)
        and now.last_fragment == noticed.last_fragment
        and not (noticed.state is LedgerState.OPEN and now.state is LedgerState.IN_RECOVERY)
    )


def may_fence(patience: Patience, waited_seconds: float, silent_seconds: float) -> bool:
    """May autorecovery recover an unchanged ledger, and so fence its writer? ``silent_seconds``: without a sign of the
    writer's life, of all ``waited_seconds``."""
    return is_silent(patience, silent_seconds) or waited_seconds >= patience.grace_seconds_max


def is_silent(patience: Patience, silent_seconds: float) -> bool:
    """Was there no sign of the writer's life for the grace time? A sign just now counts, also with a grace time of 0."""
    return silent_seconds >= patience.grace_seconds and silent_seconds > 0.0


def copies(metadata: LedgerMetadata, repair: Repair, chosen: Mapping[str, str]) -> Iterator[Copy]:
    """Copies to make before the record may name ``chosen`` (lost bookie → its replacement from outside the ensemble)."""
    assert chosen.keys() <= set(repair.lost) and not set(chosen.values()) & set(repair.ensemble)
    for bookie, target in chosen.items():
        position = repair.ensemble.index(bookie)
        for first, last in _but_lost(metadata, bookie, stripe(metadata, position, repair.first, repair.last)):
            yield Copy(first, last, target)


def pieces(copies: Iterable[Copy]) -> list[Piece]:
    """The same copies, ascending by id: an entry for several targets is in one piece."""
    begins: dict[int, list[str]] = {}
    ends: dict[int, list[str]] = {}
    for first, last, target in copies:
        begins.setdefault(first, []).append(target)
        ends.setdefault(last + 1, []).append(target)
    found: list[Piece] = []
    targets: list[str] = []
    start = 0
    for entry_id in sorted(begins.keys() | ends.keys()):
        if targets:
            found.append(Piece(start, entry_id - 1, tuple(targets)))
        for target in ends.get(entry_id, ()):
            targets.remove(target)
        targets += begins.get(entry_id, ())
        start = entry_id
    return found


def runs_of(ids: Iterable[int]) -> list[tuple[int, int]]:
    """Ascending ids as runs of consecutive ones."""
    found: list[tuple[int, int]] = []
    for entry_id in ids:
        if found and found[-1][1] == entry_id - 1:
            found[-1] = found[-1][0], entry_id
        else:
            found.append((entry_id, entry_id))
    return found


def unreadable(metadata: LedgerMetadata, repair: Repair) -> Iterator[Unreadable]:
    """The entries of the fragment that can't be copied."""
    size = metadata.ensemble_size
    ids = range(repair.first, repair.last + 1)
    for start in range(size if size > metadata.write_quorum else 1):
        members = metadata.write_set_of(ids[0] + start) if start < len(ids) else ()
        if members and set(members) <= set(repair.lost):
            if size == metadata.write_quorum:
                yield Unreadable(repair.first, repair.last, members)
                continue
            for entry_id in ids[start::size]:
                yield Unreadable(entry_id, entry_id, members)


def repaired(
    now: LedgerMetadata, repair: Repair, chosen: Mapping[str, str], without: Sequence[Piece] = ()
) -> LedgerMetadata | None:
    """The record ``now`` with the copies named in it; None if the fragment was changed meanwhile.

    ``without``: entries that some chosen bookies did not get, in ascending pieces that don't overlap. These keep the lost
    bookies, in fragments of their own."""
    fragment = Fragment(repair.first, repair.ensemble)
    if fragment not in now.fragments or (not now.closed and fragment == now.last_fragment):
        return None
    missed = {piece.first: piece.targets for piece in without}
    starts = [first for piece in without for first in (piece.first, piece.last + 1)]
    swaps: list[tuple[int, dict[str, str]]] = []
    for first in dict.fromkeys((repair.first, *(at for at in starts if repair.first < at <= repair.last))):
        copied = {bookie: target for bookie, target in chosen.items() if target not in missed.get(first, ())}
        if not swaps or swaps[-1][1] != copied:
            # Neighbours with the same bookies stay one fragment.
            swaps.append((first, copied))
    at = now.fragments.index(fragment)
    split = tuple(Fragment(first, repair.ensemble) for first, _ in swaps)
    record = replace(now, fragments=(*now.fragments[:at], *split, *now.fragments[at + 1 :]))
    for first, copied in swaps:
        record = record.re_replicated(first, copied)
    return record


def few(found: Sequence[Piece], count_max: int) -> list[Piece]:
    """The pieces, joined over their smallest gaps to at most ``count_max``: each is a fragment of the record, which has to stay
    small."""
    gaps = sorted(range(1, len(found)), key=lambda at: found[at - 1].last - found[at].first)
    kept = {0, *gaps[: count_max - 1]}
    result: list[Piece] = []
    for at, piece in enumerate(found):
        if at in kept:
            result.append(piece)
        else:
            targets = dict.fromkeys((*result[-1].targets, *piece.targets))
            result[-1] = Piece(result[-1].first, piece.last, tuple(targets))
    return result


# -- integrity


def stripe(metadata: LedgerMetadata, position: int, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The ids of ``first..last`` on an ensemble position, as runs of consecutive ids."""
    size, write_quorum = metadata.ensemble_size, metadata.write_quorum
    if size == write_quorum:
        if first <= last:
            yield first, last
        return
    # Position p holds WQ ids in a row out of each E: those from p − WQ + 1 to p, modulo E.
    start = first - (first - (position - write_quorum + 1)) % size
    for low in range(start, last + 1, size):
        run = max(low, first), min(low + write_quorum - 1, last)
        if run[0] <= run[1]:
            yield run


def assigned(metadata: LedgerMetadata, bookie: str, last_add_confirmed: int = NO_ENTRY) -> Iterator[tuple[int, int]]:
    """The ids assigned to ``bookie``, as ascending ranges; in a fragment that still gets entries, up to
    ``last_add_confirmed``."""
    for fragment, last in metadata.fragment_ranges():
        if bookie in fragment.ensemble:
            end = last_add_confirmed if last is None else last
            yield from stripe(metadata, fragment.ensemble.index(bookie), fragment.first_entry_id, end)


def lacks(metadata: LedgerMetadata, bookie: str, held: Ranges, last_add_confirmed: int = NO_ENTRY) -> Iterator[Copy]:
    """Assigned entries of ``bookie`` missing in ``held``, as copies to it; without losses accepted by an operator."""
    wanted = _but_lost(metadata, bookie, assigned(metadata, bookie, last_add_confirmed))
    for first, last in missing(wanted, held):
        yield Copy(first, last, bookie)


def _but_lost(metadata: LedgerMetadata, bookie: str, wanted: Ranges) -> Ranges:
    loss = metadata.accepted_loss
    return wanted if loss is None else missing(wanted, loss.lost_on(bookie))


def missing(wanted: Ranges, held: Ranges) -> Iterator[tuple[int, int]]:
    """The ids of ``wanted`` without those of ``held``, in one pass over both."""
    rest = iter(held)
    low, high = next(rest, (NO_ENTRY, NO_ENTRY))
    exhausted = high == NO_ENTRY
    for first, last in wanted:
        start = first
        while start <= last:
            while not exhausted and high < start:
                low, high = next(rest, (NO_ENTRY, NO_ENTRY))
                exhausted = high == NO_ENTRY
            if exhausted or low > last:
                yield start, last
                break
            if low > start:
                yield start, low - 1
            start = high + 1

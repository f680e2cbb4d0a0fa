"""Ensemble changes of a writer: failed bookies, the time of their replacement, and the change of the record.

Law: one change is under way at a time, and one metadata write replaces all bookies that have failed by then. The write is a
compare-and-set against an OPEN record. If another client changed only older fragments (re-replication), the change is written
again on top; otherwise the writer is fenced. The old ensemble stays until the write has succeeded. Then ``Cursors.replace``
(``writer.Cursors``) takes back the acks of the replaced bookies::

    (none) ──failed──► CHOOSING ──BookiesChosen──► WRITING ──MetadataWritten──► (none), acks of the replaced taken back
                        ▲    │ NoBookies               │ conflict: ReadMetadata, merge, WRITING again, or fenced
                        │    ▼                         │
                        └─ put off until BookiesChanged, or given up (policy), also on ``RecordFull``

A failed bookie may stay, if there was no replacement or the change is delayed. It counts as failed until the client is connected
to it again, or until it takes adds again and no entry that it missed is awaited. A bookie much slower than the others
(``HeldUp``) counts as failed too, as long as an ack quorum exists without it, but is not replaced by a failed one. A silent
metadata store says nothing about bookies: the writer asks for new bookies again until it answers (``MetadataFailed``).

``AT_ONCE`` replaces a bookie at its first failure. ``DELAYED`` waits until the working bookies can't complete some write set, or
until a bookie reports that it is read-only, or is lost, which does not pass. ``OFF`` is for a driver that can't choose bookies.

Source: bookkeeper-overview, "Writing" point 5; BookKeeper's ``LedgerHandle.ensembleChangeLoop`` and
``delayEnsembleChange``; its ``PendingAddOp.writeComplete`` for a read-only bookie; docs/decisions/traps.md, trap 3.
"""

from __future__ import annotations

from enum import Enum

from bookspark.protocol.ledger.actions import ChooseBookies, EnsembleChanged, MetadataRead, WriteMetadata
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.quorum import write_sets

NOBODY: frozenset[str] = frozenset()
"""No bookies. A new empty set takes 216 bytes, and an idle writer has many."""


class ChangeMode(Enum):
    OFF = "off"
    AT_ONCE = "at once"
    DELAYED = "delayed"


class EnsembleChanges:
    """A writer's failed bookies and the change under way."""

    __slots__ = ("_missed", "away", "failed", "mode", "outdated", "put_off", "refusing", "replaced", "slow", "target")

    def __init__(self, mode: ChangeMode) -> None:
        self.mode = mode
        self.failed: frozenset[str] = NOBODY
        self._missed: dict[str, int] = {}
        """The last known missed entry of each of ``failed``."""
        self.away: frozenset[str] = NOBODY
        """Failed bookies that are read-only or lost."""
        self.slow: frozenset[str] = NOBODY
        """Failed bookies that only held the writer up."""
        self.put_off: frozenset[str] = NOBODY
        """Failed bookies without a replacement."""
        self.refusing: frozenset[str] = NOBODY
        """Bookies that refused the ledger's password."""
        self.replaced: frozenset[str] = NOBODY
        """Bookies that leave with the change under way; empty if there is none."""
        self.outdated = False
        """Bookies came or went during the choice, so a ``NoBookies`` may be out of date."""
        self.target: LedgerMetadata | None = None
        """The record being written; None while bookies are being chosen."""

    @property
    def under_way(self) -> bool:
        return bool(self.replaced)

    @property
    def unusable(self) -> frozenset[str]:
        """``failed`` without the slow ones: the writer can't go on without an ack quorum of other bookies."""
        return self.failed - self.slow if self.slow else self.failed

    def fail(self, bookie: str, last: int, *, stays_away: bool = False) -> None:
        """The bookie refused, or did not answer, a request ending with entry ``last``. ``stays_away``: it is read-only, or
        lost, which does not pass."""
        if self.mode is not ChangeMode.OFF:
            self.failed |= {bookie}
            self.slow -= {bookie}
            self.away |= {bookie} if stays_away else NOBODY
            self._missed[bookie] = max(last, self._missed.get(bookie, NO_ENTRY))

    def refuse(self, metadata: LedgerMetadata, bookie: str) -> bool:
        """The bookie refused the ledger's password. False if so many did that the password is wrong: a write quorum, and at
        least two where others may take their places. (A bookie that a stranger asked first may have another key until it read
        the record.)"""
        self.refusing |= {bookie}
        if self.mode is ChangeMode.OFF:
            return not quorum_lost(metadata, self.refusing, metadata.ack_quorum)
        return len(self.refusing) < max(2, metadata.write_quorum)

    def held_up(self, metadata: LedgerMetadata, bookies: tuple[str, ...], last: int) -> None:
        """Appends up to ``last`` waited too long for ``bookies``, the worst first. A bookie fails if each write set keeps an ack
        quorum without it and the other failed ones; the rest are slow, and better than none."""
        for bookie in bookies:
            missing = self.failed | {bookie}
            if bookie in metadata.last_fragment.ensemble and not quorum_lost(metadata, missing, metadata.ack_quorum):
                slow = self.slow if bookie in self.failed else self.slow | {bookie}
                self.fail(bookie, last)
                self.slow = slow & self.failed

    def took(self, bookie: str, released: int) -> None:
        """The bookie took an add. No copy of an entry up to ``released`` is awaited."""
        missed = self._missed.get(bookie)
        stays = bookie in self.put_off or self.mode is ChangeMode.DELAYED
        if missed is not None and stays and missed <= released:
            self._forgive(bookie)

    def back(self, bookie: str) -> bool:
        """The bookie is reachable again. False if it gets nothing now, because it may still leave. Without a replacement it stays
        and counts as working."""
        if bookie in self.replaced:
            if self.target is None:
                self._forgive(bookie)
            return False
        self._forgive(bookie)
        return True

    def _forgive(self, *bookies: str) -> None:
        self.failed = self.failed.difference(bookies)
        self.away = self.away.difference(bookies)
        self.slow = self.slow.difference(bookies)
        for bookie in bookies:
            self._missed.pop(bookie, None)

    def due(self, metadata: LedgerMetadata, copies: int, gives_up: bool) -> frozenset[str]:
        """Bookies to replace now, without those already leaving. Bookies in ``put_off`` wait for the end of a change."""
        if not self.failed:
            return self.failed
        waits = self.mode is ChangeMode.DELAYED and not self.away
        if waits and not quorum_lost(metadata, self.failed, copies):
            return frozenset()
        if self.failed <= self.put_off and not (gives_up and quorum_lost(metadata, self.unusable, copies)):
            return frozenset()
        return self.failed - self.replaced - self.put_off if self.replaced else self.failed

    def news(self) -> None:
        """Bookies missing before may exist by now."""
        self.put_off = frozenset()
        self.outdated = self.under_way and self.target is None

    def choose(self, metadata: LedgerMetadata, replaced: frozenset[str]) -> ChooseBookies:
        """Begin a change, or widen the one whose bookies are being chosen."""
        self.replaced = replaced
        self.outdated = False
        ensemble = metadata.last_fragment.ensemble
        return ChooseBookies(
            ensemble,
            tuple(b for b in ensemble if b in replaced),
            sound_only=replaced <= self.slow,
            refusing=tuple(sorted(self.refusing)),
        )

    def misfit(self, metadata: LedgerMetadata, chosen: tuple[str, ...]) -> str | None:
        """The reason why ``chosen`` can't be the answer, or None."""
        if len(chosen) != len(self.replaced) or len(set(chosen)) != len(chosen):
            return f"{len(self.replaced)} different bookies were wanted"
        if not set(chosen).isdisjoint(metadata.last_fragment.ensemble):
            return "bookies outside the ensemble were wanted"
        return None

    def write(self, metadata: LedgerMetadata, version: int, first: int, chosen: tuple[str, ...]) -> WriteMetadata:
        """The new fragment starts at ``first``."""
        left = iter(chosen)
        ensemble = tuple(next(left) if b in self.replaced else b for b in metadata.last_fragment.ensemble)
        self.target = metadata.with_ensemble(first, ensemble)
        return WriteMetadata(self.target, version)

    def written(self, version: int) -> EnsembleChanged:
        assert self.target is not None
        return EnsembleChanged(self.target, version)

    def merge(self, ours: LedgerMetadata, event: MetadataRead) -> WriteMetadata | EnsembleChanged | None:
        """The write lost, or its outcome is unknown. Returns the next write, on top of the present record, or the change, if the
        record has it already; None if the ledger belongs to another client."""
        assert self.target is not None
        found, wanted = event.metadata, self.target.last_fragment
        if found.state is not LedgerState.OPEN:
            return None
        if found.last_fragment == wanted:
            return EnsembleChanged(found, event.version)
        if found.last_fragment != ours.last_fragment:
            return None
        self.target = found.with_ensemble(wanted.first_entry_id, wanted.ensemble)
        return WriteMetadata(self.target, event.version)

    def finish(self) -> frozenset[str]:
        """The change is made. Returns the bookies that left."""
        left = self.replaced
        self._forgive(*left)
        self.replaced, self.put_off, self.target = NOBODY, NOBODY, None
        return left

    def keep_slow(self) -> frozenset[str]:
        """Too few bookies are free for the change. Keeps the slow bookies, so that the failed ones can be replaced, and returns
        them; none if all are slow."""
        slow = self.replaced & self.slow
        if slow == self.replaced:
            return NOBODY
        self.put_off |= slow
        return slow

    def abandon(self) -> frozenset[str]:
        """No bookies for the change, or no room in the record. Returns those that therefore stay."""
        self.put_off, stay, self.target = self.failed, self.replaced, None
        self.replaced = frozenset()
        return stay


def quorum_lost(metadata: LedgerMetadata, failed: frozenset[str], copies: int) -> bool:
    """Has some write set of the last ensemble fewer than ``copies`` bookies without a failure?"""
    ensemble = metadata.last_fragment.ensemble
    return any(
        sum(ensemble[i] not in failed for i in positions) < copies
        for positions in write_sets(metadata.ensemble_size, metadata.write_quorum)
    )

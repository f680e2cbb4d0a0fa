"""Lossy boots: what a bookie has lost, as far as it knows, and how much is back.

Law: as in ``protocol.bookie.bookie_boot`` and ``protocol.repair.bookie_healing``. The unclean markers stand until phase one of
the lossy boot is durable, and ledgers stay in limbo until they are healed, however often the storage is opened meanwhile.

Phase one (fence what may be lost) is done before the storage is started, phase two (copy back what was lost) while it serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted, PhaseOne, first_mark
from bookspark.protocol.bookie.bookie_ledger import EntriesLost
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.control_state import Record
from bookspark.store.bookie.holdings.boot import note_in_each
from bookspark.store.bookie.holdings.disks import Disks
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.wire.header import Status


class LossyBoots:
    """The lossy boots of one bookie. Owned by the loop; phase one comes before there is a loop."""

    def __init__(self, holdings: Holdings, records: ControlRecords, disks: Disks) -> None:
        self._holdings = holdings
        self._disks = disks
        self._state = holdings.control
        self._live = holdings.live
        self._records = records

    @property
    def unreadable(self) -> Sequence[str]:
        """Directories that could not be read at the boot."""
        return self._holdings.unreadable

    @property
    def unclean(self) -> list[str]:
        """Directories in which a crash may have lost entries that were acknowledged."""
        return [directory.path for directory in self._live if directory.unclean]

    @property
    def losses(self) -> list[str]:
        """What was found to be lost that may have been acknowledged, for people."""
        return [why for directory in self._live for why in directory.losses]

    @property
    def fences_lost(self) -> bool:
        """May any ledger have had a fence that is lost?"""
        return self._state.fences_lost or bool(self.unreadable)

    # -- phase one, before the storage is started

    def note_lossy_boot(self, found: PhaseOne, *, fences_lost: bool = False) -> None:
        """Make the lossy-boot mark durable, and with it what is fenced and in limbo. ``fences_lost``: and that the fence of each
        other ledger that the directories know is unsure. A directory that fails is used no more, one without room takes nothing.
        Raises StorageError if no directory took it."""
        noted: list[Record] = [found.mark, *found.records]
        if fences_lost:
            self._state.replay(noted)
            self._state.lose_fences()
            # Ten million ledgers are some thousand records here.
            noted += (record for part in self._state.records() for record in part)
        self._note(noted)

    def note_first_mark(self, highest_ledger_id: int) -> None:
        """At the first boot: make the mark durable (``bookie_boot.first_mark``). Raises StorageError if no directory took it."""
        mark = first_mark(highest_ledger_id, self._state.mark)
        if mark is not None:
            self._note([mark])

    def _note(self, noted: Sequence[Record]) -> None:
        note_in_each(self._live, self._state, noted)
        for directory in self._holdings.directories:
            directory.retired = directory not in self._live
        self._disks.sort()
        self._state.replay(noted)

    def phase_one_is_over(self) -> None:
        """Phase one is durable, so no entry that was acknowledged can be denied any more, and the control log says so: remove the
        unclean markers."""
        self._state.fences_lost = False
        for directory in self._live:
            directory.marker.settled()
            directory.marker.clear()
            directory.unclean = False
            directory.losses.clear()

    # -- phase two

    @property
    def mark(self) -> LossyBootNoted:
        """The mark of the last lossy boot."""
        return self._state.mark

    @property
    def healed_boot(self) -> int:
        """The number of the last lossy boot of which everything is back."""
        return self._state.healed.boot

    def limbo(self, start: int, count: int) -> list[tuple[int, int]]:
        """The ledgers in limbo from id ``start`` on, ascending, at most ``count``; each with the lossy boot that it is in limbo
        for."""
        return self._state.limbo(start, count)

    @property
    def limbo_count(self) -> int:
        """How many ledgers are in limbo."""
        return self._state.limbo_count

    def clear_limbo(self, ledger_id: int, boot: int, done: Done) -> None:
        """The entries of the ledger that lossy boot number ``boot`` had lost are back and synced. ``done``: OK once that is noted
        durably, or IO_ERROR."""
        ledger = self._state.ledgers.get(ledger_id)
        if ledger is None:
            done(Status.OK)
        else:
            records = ledger.clear_limbo(boot).records
            self._state.look_at_limbo(ledger)
            self._records.write(records, done)

    def note_lost(self, ledger_id: int, ranges: Iterable[tuple[int, int]], done: Done) -> None:
        """No bookie gives these entries (inclusive ranges), which belong here: from now on their absence is unknown. ``done``: OK
        once that is noted durably, or IO_ERROR."""
        self._state.of(ledger_id)
        records = [EntriesLost(ledger_id, first, last) for first, last in ranges]
        self._state.replay(records)
        self._records.write(records, done)

    def note_healed(self, boot: int, done: Done) -> None:
        """Everything that lossy boot number ``boot`` had lost is back. ``done``: OK once that is noted durably, or IO_ERROR."""
        record = HealedNoted(boot)
        self._state.replay([record])
        self._records.write([record], done)

"""Lossy boots: what a bookie has lost, as far as it knows, and how much is back.

Law: as in ``protocol.bookie.bookie_boot`` and ``protocol.repair.bookie_healing``. The unclean markers stand until phase one of
the lossy boot is durable, and ledgers stay in limbo until they are healed, however often the storage is opened meanwhile.

Phase one (fence what may be lost) is done before the storage is started, phase two (copy back what was lost) while it serves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from bookspark.bookie.commit.completions import Done
from bookspark.bookie.disk.control_log import encode_records
from bookspark.bookie.disk.control_state import Record
from bookspark.bookie.holdings.boot import in_each
from bookspark.bookie.holdings.disks import Disks
from bookspark.bookie.holdings.holdings import Holdings
from bookspark.bookie.ledgers.control_records import ControlRecords
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted, PhaseOne
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, EntriesLost
from bookspark.wire.header import Status


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

    # -- phase one, before the storage is started

    @property
    def known_ledgers(self) -> Collection[BookieLedger]:
        """The ledgers that the readable directories know."""
        return self._state.ledgers.values()

    def note_lossy_boot(self, found: PhaseOne) -> None:
        """Make the lossy-boot mark durable, and with it what is fenced and in limbo. A directory that can't take it is used no
        more. Raises StorageError if no directory took it."""
        noted: list[Record] = [found.mark, *found.records]
        content = encode_records(noted)
        in_each(self._live, lambda directory: directory.control.append(content))
        for directory in self._holdings.directories:
            directory.retired = directory not in self._live
        self._disks.sort()
        self._state.replay(noted)

    def phase_one_is_over(self) -> None:
        """Phase one is durable, so no entry that was acknowledged can be denied any more: remove the unclean markers."""
        for directory in self._live:
            directory.marker.settled()
            directory.marker.clear()
            directory.unclean = False

    # -- phase two

    @property
    def mark(self) -> LossyBootNoted:
        """The mark of the last lossy boot."""
        return self._state.mark

    @property
    def healed_boot(self) -> int:
        """The number of the last lossy boot of which everything is back."""
        return self._state.healed.boot

    def limbo(self) -> dict[int, int]:
        """The ledgers in limbo, and the lossy boot that each is in limbo for."""
        return self._state.limbo()

    def clear_limbo(self, ledger_id: int, boot: int, done: Done) -> None:
        """The entries of the ledger that lossy boot number ``boot`` had lost are back and synced. ``done``: OK once that is noted
        durably, or IO_ERROR."""
        ledger = self._state.ledgers.get(ledger_id)
        if ledger is None:
            done(Status.OK)
        else:
            self._records.write(ledger.clear_limbo(boot).records, done)

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

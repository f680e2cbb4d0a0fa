"""Lossy boots: a bookie's known losses, and their healing.

Law: as in ``protocol.bookie.bookie_boot`` and ``protocol.repair.bookie_healing``. The unclean markers stand until phase one of
the lossy boot is durable, and ledgers stay in limbo until they are healed, however often the storage is opened meanwhile.

Phase one (fence ledgers with possible losses) precedes the start of the storage. Phase two (restore lost entries) runs while it
serves.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import (
    HealedNoted,
    LossyBootNoted,
    PhaseOne,
    absence_over,
    first_mark,
    only_absent,
)
from bookspark.protocol.bookie.bookie_ledger import EntriesLost, LimboCleared, MasterKeyNoted
from bookspark.protocol.ledger.entry_ranges import EntryRanges, without_ranges
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.control_state import LossAccepted, Record
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.holdings.boot import note_in_each
from bookspark.store.bookie.holdings.disks import Disks
from bookspark.store.bookie.holdings.holdings import Holdings, decided_anew
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.wire.header import Status

log = logging.getLogger(__name__)


class LossyBoots:
    """The lossy boots of one bookie. Owned by the loop; phase one comes before there is a loop."""

    def __init__(self, holdings: Holdings, records: ControlRecords, disks: Disks) -> None:
        self._holdings = holdings
        self._disks = disks
        self._state = holdings.control
        self._live = holdings.live
        self._records = records
        self._keeps_unread = self._noted_lost = False

    @property
    def unreadable(self) -> Sequence[str]:
        """Directories that could not be read at the boot."""
        return self._holdings.unreadable

    @property
    def unread(self) -> list[str]:
        """Paths of logs that could not be read as a whole at the boot."""
        return [entry_log.path for directory in self._live for entry_log in directory.unread]

    @property
    def unclean(self) -> list[str]:
        """Directories in which a crash may have lost acknowledged entries."""
        return [directory.path for directory in self._live if directory.unclean]

    @property
    def losses(self) -> list[str]:
        """Messages about losses that may concern acknowledged entries."""
        return [why for directory in self._live for why in directory.losses]

    @property
    def fences_lost(self) -> bool:
        """May a fence of any ledger be lost?"""
        return self._state.fences_lost or bool(self.unreadable)

    def only_absent(self, emptied: Sequence[str]) -> int:
        """``absent`` of the mark of this lossy boot. ``emptied``: directories that lost their data."""
        other_causes = bool(emptied or self.unclean or self.losses)
        return only_absent(
            self._holdings.absent_directories,
            other_causes=other_causes,
            before=self._state.mark,
            healed=self._state.healed,
        )

    # -- phase one, before the storage is started

    def end_absence(self) -> None:
        """At a boot that is not lossy: if all directories are back whose absence made the last boot lossy, end that, durably.
        Raises StorageError."""
        mark = self._state.mark
        if not absence_over(mark, self._state.healed, self._holdings.absent_directories):
            return
        records: list[Record] = [LimboCleared(ledger_id, mark.boot) for ledger_id in self._state.all_in_limbo()]
        log.warning("all directories are back, and nothing is lost: %d ledgers leave limbo", len(records))
        self._note([*records, HealedNoted(mark.boot)])

    def note_lossy_boot(self, found: PhaseOne, *, fences_lost: bool = False) -> None:
        """Make the lossy-boot mark durable, with its fences and ledgers in limbo. ``fences_lost``: also note all other fences as
        unsure. A failing directory leaves use, a full one takes nothing. Raises StorageError if no directory took the records."""
        noted: list[Record] = [found.mark]
        for record in found.records:
            kept = self._state.ledgers.look(record.ledger_id)
            if isinstance(record, MasterKeyNoted) and kept is not None and kept.keys_meet(record.master_key):
                # The kept entries are not the ledger's (``protocol.bookie.key_meeting``).
                noted += decided_anew(self._holdings, record.ledger_id, record.master_key).control_records()
            else:
                noted.append(record)
        if fences_lost:
            self._state.replay(noted)
            self._state.lose_fences()
            # Ten million ledgers are some thousand records here.
            noted += (record for part in self._state.records() for record in part)
        self._note(noted)

    def note_first_mark(self, highest_ledger_id: int) -> None:
        """At the first boot: make the mark durable (``bookie_boot.first_mark``). A bookie that can't write now takes no adds, and
        notes it with the control logs that it writes before it does."""
        mark = first_mark(highest_ledger_id, self._state.mark)
        if mark is not None:
            try:
                self._note([mark])
            except StorageError as error:
                log.warning("%s", error)
                self._disks.sort()
                self._state.replay([mark])

    def _note(self, noted: Sequence[Record]) -> None:
        note_in_each(self._live, self._state, noted)
        for directory in self._holdings.directories:
            directory.retired = directory not in self._live
        self._disks.sort()
        self._state.replay(noted)

    def phase_one_is_over(self) -> None:
        """Remove the unclean markers: the control log now holds phase one, so no acknowledged entry can be denied any more."""
        self._state.fences_lost = False
        for directory in self._live:
            directory.marker.settled()
            directory.marker.clear()
            directory.unclean = False
            directory.losses.clear()

    def accept_losses(self, by: str) -> tuple[list[str], dict[EntryLog, EntryRanges]]:
        """Note durably, before the storage is started, that operator ``by`` accepts the losses of this boot: of control logs, in
        words, and of bytes (first, last) of logs that could not be read. Returns both. Raises StorageError, also for an
        unreadable directory."""
        if self.unreadable:
            raise StorageError(
                f"{', '.join(self.unreadable)} can't be read, so nobody knows its losses: check its disk and its rights; if the "
                "disk is dead, put an empty directory in its place and allow that by bookspark cookie fix"
            )
        unread = {entry_log: ranges for directory in self._live for entry_log, ranges in directory.unread.items()}
        if unread:
            self._note([LossAccepted(entry_log.number, by, ranges) for entry_log, ranges in unread.items()])
        return self.losses if self._state.accepted.get(0) == LossAccepted(0, by, []) else [], unread

    # -- phase two

    @property
    def mark(self) -> LossyBootNoted:
        return self._state.mark

    @property
    def healed_boot(self) -> int:
        """Number of the last fully healed lossy boot."""
        return self._state.healed.boot

    def limbo(self, start: int, count: int) -> list[tuple[int, int]]:
        """The ledgers in limbo from id ``start`` on, ascending, at most ``count``; each with the number of its lossy boot."""
        return self._state.limbo(start, count)

    @property
    def limbo_count(self) -> int:
        return self._state.limbo_count

    def clear_limbo(self, ledger_id: int, boot: int, done: Done) -> None:
        """Take a ledger out of limbo, with its losses of lossy boot number ``boot`` restored and synced. ``done``: OK once that
        is durable, or IO_ERROR."""
        ledger = self._state.ledgers.get(ledger_id)
        if ledger is None:
            done(Status.OK)
        else:
            records = ledger.clear_limbo(boot).records
            self._state.look_at_limbo(ledger)
            self._records.write(records, done)

    def note_lost(self, ledger_id: int, ranges: Iterable[tuple[int, int]], done: Done) -> None:
        """Note entries (inclusive ranges) that belong here and that no bookie could supply: their absence is unknown from now on.
        ``done``: OK once that is durable, or IO_ERROR."""
        self._noted_lost = True
        self._state.of(ledger_id)
        records = [EntriesLost(ledger_id, first, last) for first, last in ranges]
        self._state.replay(records)
        self._records.write(records, done)

    def keep_unread(self) -> None:
        """Keep the bytes that could not be read also after the healing: entries may lie there that it did not restore."""
        self._keeps_unread = True

    def note_healed(self, boot: int, done: Done) -> None:
        """Note that all losses of lossy boot number ``boot`` are restored. Bytes that could not be read are needed no more,
        unless ``keep_unread`` was called, or ``note_lost`` and no operator has accepted the loss of all these bytes. ``done``: OK
        once that is durable, or IO_ERROR."""
        record = HealedNoted(boot)
        self._state.replay([record])

        def noted(status: int) -> None:
            if status == Status.OK:
                for directory in self._live:
                    directory.unread = dict(filter(self._is_needed, directory.unread.items()))
            done(status)

        self._records.write([record], noted)

    def _is_needed(self, unread: tuple[EntryLog, EntryRanges]) -> bool:
        """May these bytes that could not be read hold entries that nobody else has, without an operator's word?"""
        entry_log, ranges = unread
        if self._keeps_unread:
            log.warning(
                "%s is read again at each start: its bad sectors may hold entries of ledgers whose records are lost",
                entry_log.path,
            )
            return True
        if not self._noted_lost:
            return False
        accepted = self._state.accepted.get(entry_log.number)
        if accepted is None or without_ranges(ranges, accepted.unread):
            log.warning(
                "%s is read again at each start: its bad sectors may hold entries that no bookie gave. To give them up for good: "
                "bookspark bookie accept-loss",
                entry_log.path,
            )
            return True
        log.warning("%s: its bad sectors are given up, as %s accepted", entry_log.path, accepted.by)
        return False

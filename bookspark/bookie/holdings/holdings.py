"""What a bookie holds: the index, what is known of its ledgers, and the directories and logs that all of it lies in.

Law: entries that were lost are unknown, never absent, and they are not held: their rows leave the index (``lose``). Owned by the
loop, except ``files``, which any thread may use to read. Nothing is decided here, and nothing is written.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Sequence

from bookspark.bookie.disk.control_state import ControlState
from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.disk.file_system import File, FileSystem
from bookspark.bookie.disk.index import Index, Row, log_of, position_of
from bookspark.bookie.disk.rewritten_log import RewrittenLog
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.bookie.holdings.long_polls import LongPolls
from bookspark.bookie.holdings.reads import LogFiles, Piece, ReadPlan, Stop, plan_read
from bookspark.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.bookie.steps import Steps
from bookspark.protocol.bookie.bookie_ledger import NO_COPY, BookieLedger, EntriesLost, answer_absent, may_read
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.wire.entry_batch import Buffer
from bookspark.wire.header import NO_KEY
from bookspark.wire.messages import Ranges

POSITION_MAX = (1 << 32) - 1
RANGES_ROWS_MAX = 1 << 11
"""Rows of one answer, which is made on the loop: some milliseconds."""

_LEDGERS_A_STEP = 256

StoredLog = EntryLog | RewrittenLog

log = logging.getLogger(__name__)


class Holdings:
    """Everything that one bookie holds. ``live``: those of ``directories`` that have not failed."""

    def __init__(self, file_system: FileSystem, directories: list[LogDirectory], live: list[LogDirectory]) -> None:
        self._file_system = file_system
        self.directories = directories
        self.live = live
        self.unreadable: Sequence[str] = ()
        """Directories that could not be read at the boot."""
        self.control = ControlState()
        self.ledgers = self.control.ledgers
        self.index = Index()
        self.recent: dict[int, Buffer] = {}
        """Frames that are not written yet, by location."""
        self.logs: dict[int, tuple[LogDirectory, StoredLog]] = {}
        """Every log and its directory, by the log's number."""
        self.next_log = 1
        """The number of the next log."""
        self.volatile = VolatileLedgers(self.index, self.is_synced, self._is_open)
        self.long_polls = LongPolls()
        self.files = LogFiles(self._open_log)
        self.lost_at_boot: list[EntriesLost] = []
        """What was lost before ``lost`` was set. It is to be written too."""
        self.lost: Callable[[Sequence[EntriesLost]], None] = self.lost_at_boot.extend
        """Called with what was lost: it is to be written to the control logs."""
        self.ledgers_lacking: set[int] = set()
        """Ledgers that lost entries, until somebody takes them to have them repaired."""
        self.suspected: set[int] = set()
        """Logs in which something unreadable was found: the scrub looks at them next."""
        self.lost_copies = 0
        """How many copies were found unreadable since the start."""
        self.read_failed: Callable[[LogDirectory], None] = lambda directory: None
        """Called for each frame that the disk of a directory could not read."""
        self.losses_durable = threading.Event()
        """Is everything written that was lost?"""
        self.losses_durable.set()

    # -- reads

    def plan_read(self, ledger_id: int, first: int, last: int, limit: int, *, sparse: bool) -> ReadPlan:
        """The batches that hold entries ``first..last``, up to about ``limit`` bytes (0: as much as one answer takes)."""
        return plan_read(
            self.ledgers.look(ledger_id),
            self.index.get(ledger_id),
            self.recent,
            (first, last, limit),
            sparse=sparse,
            storage_damaged=self.damaged,
            boot_unsure=self.control.unsure_of(ledger_id),
        )

    def absent(self, ledger_id: int) -> Negative | Unknown:
        """The answer for a ledger that was never heard of."""
        boot_unsure = self.control.unsure_of(ledger_id)
        return answer_absent(None, NO_ENTRY, storage_damaged=self.damaged, boot_unsure=boot_unsure)

    def has_moved(self, piece: Piece) -> bool:
        """Do the entries of a planned piece lie elsewhere by now, or nowhere?"""
        rows = self.index.get(piece.ledger_id)
        return rows is None or piece.where not in [row.where for row in rows.covering(piece.first, piece.last)]

    def ledger(self, ledger_id: int) -> BookieLedger | None:
        """What is known of a ledger (not to be changed), None if it was never heard of."""
        return self.ledgers.look(ledger_id)

    def may_read(self, ledger_id: int, master_key: bytes) -> bool:
        """May a reader with this key, or without one (``NO_KEY``), read the ledger?"""
        return may_read(self.ledgers.look(ledger_id), None if master_key == NO_KEY else master_key)

    def last_entry_id(self, ledger_id: int) -> int:
        """The highest entry id that is held, NO_ENTRY if none."""
        rows = self.index.get(ledger_id)
        return NO_ENTRY if rows is None else rows.last_entry_id

    def ranges(self, ledger_id: int, first_entry_id: int, limit: int, *, only: bool) -> tuple[Ranges, int, int]:
        """The rows of the index from (``ledger_id``, ``first_entry_id``) on, of that ledger ``only`` or of all that follow too,
        at most ``limit`` and 2,048; with the ledger id and the first entry id to go on with, −1 and −1 at the end."""
        limit = min(limit or RANGES_ROWS_MAX, RANGES_ROWS_MAX)
        ranges = Ranges.empty()
        ids = [ledger_id] if only else self.index.ledger_ids(ledger_id, limit)
        for current in ids:
            rows = self.index.get(current)
            start = first_entry_id if current == ledger_id else 0
            for row in rows.covering(start, rows.last_entry_id) if rows is not None else ():
                if len(ranges.ledger_ids) == limit:
                    return ranges, current, row.first
                values = (current, row.first, row.last, log_of(row.where), position_of(row.where), row.size)
                for column, value in zip(ranges, values, strict=True):
                    column.append(value)
        return (ranges, ids[-1] + 1, 0) if len(ids) == limit and not only else (ranges, -1, -1)

    # -- what there is

    @property
    def damaged(self) -> bool:
        """Was something lost that had been synced, and phase one of the lossy boot is not over? Then an entry that is not found
        is unknown, not absent."""
        return bool(self.unreadable) or any(directory.damaged for directory in self.directories)

    def is_synced(self, where: int) -> bool:
        """Is the frame at ``where`` durable? (In a log that was removed it was.)"""
        found = self.logs.get(log_of(where))
        return found is None or found[1].synced > position_of(where)

    def directory_of(self, log: int) -> LogDirectory | None:
        """The directory of a log, None if it is gone."""
        found = self.logs.get(log)
        return None if found is None else found[0]

    def _is_open(self, ledger_id: int) -> bool:
        """Is the ledger known, and not fenced?"""
        ledger = self.ledgers.look(ledger_id)
        return ledger is not None and not ledger.fenced

    def take_log_number(self) -> int:
        """A number that was never used, for a new log."""
        number = self.next_log
        self.next_log += 1
        return number

    def forget(self, ledger_id: int) -> None:
        """Drop everything that is known of a ledger; its bytes stay in the logs."""
        self.volatile.forget(ledger_id)
        self.index.forget(ledger_id)
        self.control.forget(ledger_id)

    # -- what was lost

    def lose(self, ledger_id: int, wheres: Collection[int]) -> list[EntriesLost]:
        """The copies of a ledger's entries at these locations can't be read: they are not held from now on. The rows that lie
        there leave the index, and a record of each goes to the control logs; returns the records. No error if there is no such
        row: it was moved, or it is lost already."""
        rows = self.index.changing(ledger_id)
        if rows is None:
            return []
        return self._note_lost({ledger_id: [row for where in wheres for row in rows.remove(where, where)]})

    def lose_unreadable(self, pieces: Sequence[Piece], stop: Stop | None) -> bool:
        """A read came to an end before ``pieces``, because of ``stop``: if that is damage, or a log that is gone though rows
        point into it, the copy of the first one is lost, and this is True."""
        if stop in (None, Stop.LIMIT, Stop.FAILED):
            return False
        piece = pieces[0]
        lost = self.lose(piece.ledger_id, [piece.where])
        number, position = log_of(piece.where), position_of(piece.where)
        if lost and (found := self.logs.get(number)) is not None:
            directory, stored = found
            for record in lost:
                log.error(
                    "%s, byte %d: %s; entries %d to %d of ledger %d are lost here until another bookie's copy replaces them",
                    stored.path,
                    position,
                    "the disk can't read it" if stop is Stop.UNREADABLE else "the bytes are not what was written",
                    record.first,
                    record.last,
                    record.ledger_id,
                )
            self.lost_copies += len(lost)
            if stop is Stop.UNREADABLE:
                self.read_failed(directory)
        return True

    def lose_directory(self, directory: LogDirectory) -> None:
        """A directory is used no more, so nothing in it is held. That is not noted: the next start finds the directory as it is
        then, and if it can't be read, that boot is lossy."""
        removed = self.index.remove_logs({stored.number for stored in directory.stored})
        self.control.replay(
            EntriesLost(ledger_id, row.first, row.last) for ledger_id, rows in removed.items() for row in rows
        )
        self.ledgers_lacking.update(removed)

    def lose_between(self, first_where: int, last_where: int) -> list[EntriesLost]:
        """Everything at ``first_where..last_where`` is lost, as by ``lose``: a part of a log, or several logs."""
        return self._note_lost(self.index.remove(first_where, last_where))

    def note_what_is_back(self) -> Steps[None]:
        """Entries that were lost, and of which a durable copy is held again, are lost no more. A lost copy is remembered as long
        as its log is there."""
        for count, (ledger_id, copies) in enumerate(list(self.control.lost_copies.items()), 1):
            if count % _LEDGERS_A_STEP == 0:
                yield None
            if self.control.lost_copies.get(ledger_id) is not copies:
                continue
            ledger, rows = self.ledgers.get(ledger_id), self.index.get(ledger_id)
            for where in [where for where in copies if log_of(where) not in self.logs]:
                del copies[where]
            if ledger is not None and rows is not None:
                for first, last in ledger.lost:
                    held = rows.covering(first, last)
                    ledger.entries_back([(row.first, row.last) for row in held if self.is_synced(row.where)])
            if not copies and (ledger is None or not ledger.lost):
                del self.control.lost_copies[ledger_id]

    def _note_lost(self, removed: dict[int, list[Row]]) -> list[EntriesLost]:
        records = [
            EntriesLost(ledger_id, row.first, row.last, row.where if log_of(row.where) in self.logs else NO_COPY)
            for ledger_id, rows in removed.items()
            for row in rows
        ]
        if records:
            self.control.replay(records)
            self.ledgers_lacking.update(record.ledger_id for record in records)
            self.lost(records)
        return records

    def _open_log(self, number: int) -> File:
        _, stored = self.logs[number]
        return self._file_system.open(stored.path)

"""What a bookie holds: the index, what is known of its ledgers, and the directories and logs that all of it lies in.

Law: entries of a directory that failed are unknown, never absent. Owned by the loop, except ``files``, which any thread may use
to read. Nothing is decided here, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookspark.bookie.disk.control_state import ControlState
from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.disk.file_system import File, FileSystem
from bookspark.bookie.disk.index import Index, log_of, position_of
from bookspark.bookie.disk.rewritten_log import RewrittenLog
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.bookie.holdings.long_polls import LongPolls
from bookspark.bookie.holdings.reads import LogFiles, Piece, ReadPlan, plan_read
from bookspark.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, may_read
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.wire.entry_batch import Buffer
from bookspark.wire.header import NO_KEY
from bookspark.wire.messages import Ranges

POSITION_MAX = (1 << 32) - 1
RANGES_ROWS_MAX = 1 << 16

StoredLog = EntryLog | RewrittenLog


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
        )

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
        at most ``limit`` (0: 65,536); with the ledger id and the first entry id to go on with, −1 and −1 at the end."""
        limit = min(limit or RANGES_ROWS_MAX, RANGES_ROWS_MAX)
        ranges = Ranges.empty()
        for current in [ledger_id] if only else self.index.ledger_ids(ledger_id):
            rows = self.index.get(current)
            start = first_entry_id if current == ledger_id else 0
            for row in rows.covering(start, rows.last_entry_id) if rows is not None else ():
                if len(ranges.ledger_ids) == limit:
                    return ranges, current, row.first
                values = (current, row.first, row.last, log_of(row.where), position_of(row.where), row.size)
                for column, value in zip(ranges, values, strict=True):
                    column.append(value)
        return ranges, -1, -1

    # -- what there is

    @property
    def damaged(self) -> bool:
        """Was something lost that had been synced? Then an entry that is not found is unknown, not absent."""
        return bool(self.unreadable) or any(directory.damaged for directory in self.directories)

    def is_synced(self, where: int) -> bool:
        """Is the frame at ``where`` durable? (In a log that was removed it was.)"""
        found = self.logs.get(log_of(where))
        return found is None or found[1].synced > position_of(where)

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
        self.ledgers.pop(ledger_id)

    def _open_log(self, number: int) -> File:
        _, stored = self.logs[number]
        return self._file_system.open(stored.path)

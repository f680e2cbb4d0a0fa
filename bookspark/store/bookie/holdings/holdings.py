"""What a bookie holds: the index, what is known of its ledgers, and the directories and logs that all of it lies in.

Law: entries that were lost are unknown, never absent, and they are not held: their rows leave the index (``lose``). Owned by the
loop, except ``files``, which any thread may use to read. Nothing is decided here, and nothing is written.

The rows of a directory that failed leave the index in steps. Until then their logs are ``gone``, and whoever looks at rows has
those that lie there leave before (``leave_gone``). So everybody finds the index as it will be.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial

from bookspark.protocol.bookie.bookie_ledger import NO_COPY, BookieLedger, EntriesLost, answer_absent, may_read
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.store.bookie.commit.commit_thread import Soon
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import File, FileSystem
from bookspark.store.bookie.disk.index import Index, LedgerRows, Row, log_of, position_of
from bookspark.store.bookie.disk.rewritten_log import RewrittenLog
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.holdings.reads import LogFiles, Piece, ReadPlan, Stop, plan_read
from bookspark.store.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.store.bookie.steps import Steps, at_once
from bookspark.store.decisions.seam import decided
from bookspark.store.wire.entry_batch import ENTRY_OVERHEAD_BYTES, Buffer
from bookspark.store.wire.header import NO_KEY
from bookspark.store.wire.messages import Ranges

log = logging.getLogger(__name__)


# -- Long polls: who waits for the LAC (last add confirmed) of a ledger to reach an entry.
#
# Law: a poll is told at most once, when the LAC rises to its entry. ``add`` tells nothing of a LAC that is there already. Some
# hundred polls are told in one turn of the loop, the others in later ones.


_TOLD_A_TURN = 256


class LongPolls:
    """The long polls of one bookie, by ledger."""

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._last = 0
        self._soon: Soon | None = None

    def start(self, soon: Soon | None) -> None:
        """Spread what is told over several turns of the loop from now on. Without ``soon`` all are told at once."""
        self._soon = soon

    def add(self, ledger_id: int, target: int, told: Callable[[], None]) -> int:
        """Call ``told`` once the LAC of the ledger is at least ``target``, an entry id; returns a number for ``remove``."""
        self._last += 1
        self._ledgers.setdefault(ledger_id, {})[self._last] = (target, told)
        return self._last

    def remove(self, ledger_id: int, poll: int) -> None:
        """Forget a poll; no error if it is gone."""
        polls = self._ledgers.get(ledger_id)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._ledgers[ledger_id]

    def reached(self, ledger_id: int, last_add_confirmed: int) -> None:
        """The LAC of a ledger went up: tell those who wait for it."""
        polls = self._ledgers.get(ledger_id)
        if polls is not None:
            due = deque(poll for poll, (target, _) in polls.items() if target <= last_add_confirmed)
            if due:
                self._tell(ledger_id, due)

    def _tell(self, ledger_id: int, due: deque[int]) -> None:
        left = len(due) if self._soon is None else min(len(due), _TOLD_A_TURN)
        for _ in range(left):
            poll = due.popleft()
            # It may have been told by a later rise, or be gone.
            _, told = self._ledgers.get(ledger_id, {}).get(poll, (0, None))
            if told is not None:
                self.remove(ledger_id, poll)
                told()
        if due and self._soon is not None:
            self._soon(partial(self._tell, ledger_id, due))


# --


POSITION_MAX = (1 << 32) - 1
RANGES_ROWS_MAX = 1 << 11
"""Rows of one answer, which is made on the loop: some milliseconds."""

_LEDGERS_A_STEP = 256
_ROWS_A_STEP = 2048
_ROWS_LOOKED_AT = 1 << 13
"""More rows than any single request looks at. To find and to remove those that are gone takes four milliseconds."""

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
        """No log has this number or a higher one."""
        self.volatile = VolatileLedgers(
            self.index, self.is_synced, self._is_open, self.is_gone, lambda steps: self.carry_through(steps)
        )
        self.long_polls = LongPolls()
        self.files = LogFiles(self._open_log)
        self.lost_at_boot: list[EntriesLost] = []
        """What was lost before ``lost`` was set. It is to be written too."""
        self.lost: Callable[[Sequence[EntriesLost]], None] = self.lost_at_boot.extend
        """Writes what was lost to the control logs."""
        self.ledgers_lacking: set[int] = set()
        """Ledgers that lost entries, until somebody takes them to have them repaired."""
        self.gone: set[int] = set()
        """Logs of directories that are used no more, while rows may still point into them."""
        self.carry_through: Callable[[Steps[None]], None] = at_once
        """Carries steps through, while other works may change the index: at once, unless who has a loop sets it."""
        self.made_objects: Callable[[], None] = lambda: None
        """Called when hundreds of objects that stay were made. Set by who keeps Python's collector from walking over them."""
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
        """As ``Storage.plan_read``."""
        if self.gone:
            self.leave_gone(ledger_id, first)
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
        unsure = self.control.unsure_of(ledger_id)
        return decided(answer_absent, None, NO_ENTRY, storage_damaged=self.damaged, boot_unsure=unsure)

    def has_moved(self, piece: Piece) -> bool:
        """Do the entries of a planned piece lie elsewhere by now, or nowhere?"""
        if self.gone:
            self.leave_gone(piece.ledger_id, piece.first)
        rows = self.index.get(piece.ledger_id)
        return rows is None or piece.where not in [row.where for row in rows.covering(piece.first, piece.last)]

    def ledger(self, ledger_id: int) -> BookieLedger | None:
        """What is known of a ledger (not to be changed), None if it was never heard of."""
        return self.ledgers.look(ledger_id)

    def may_read(self, ledger_id: int, master_key: bytes) -> bool:
        """May a reader with this key, or without one (``NO_KEY``), read the ledger?"""
        return may_read(self.ledgers.look(ledger_id), None if master_key == NO_KEY else master_key)

    def last_entry_id(self, ledger_id: int) -> int | None:
        """The highest entry id that is held, NO_ENTRY if none. None: so many of the last rows are gone that it is not found yet;
        ask again in another turn of the loop."""
        rows = self.index.get(ledger_id)
        if rows is not None and self.gone:
            start = max(0, len(rows) - _ROWS_LOOKED_AT)
            self._leave(ledger_id, rows, start)
            # What left is not in a copy that ``get`` may have handed out.
            rows = self.index.get(ledger_id)
            if rows is not None and 0 < start == len(rows):
                return None
        return NO_ENTRY if rows is None else rows.last_entry_id

    def ranges(self, ledger_id: int, first_entry_id: int, limit: int, *, only: bool) -> tuple[Ranges, int, int]:
        """The rows of the index from (``ledger_id``, ``first_entry_id``) on, of that ledger ``only`` or of all that follow too,
        at most ``limit`` and 2,048; with the ledger id and the first entry id to go on with, −1 and −1 at the end."""
        limit = min(limit or RANGES_ROWS_MAX, RANGES_ROWS_MAX)
        ranges = Ranges.empty()
        ids = [ledger_id] if only else self.index.ledger_ids(ledger_id, limit)
        for current in ids:
            start = first_entry_id if current == ledger_id else 0
            if self.gone:
                self.leave_gone(current, start)
            rows = self.index.get(current)
            held = rows.covering(start, rows.last_entry_id) if rows is not None else ()
            for row in held if not self.gone else (row for row in held if not self.is_gone(row.where)):
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

    def is_gone(self, where: int) -> bool:
        """Does the frame at ``where`` lie in a directory that failed? Then it is not held."""
        return log_of(where) in self.gone

    def directory_of(self, log: int) -> LogDirectory | None:
        """The directory of a log, None if it is gone."""
        found = self.logs.get(log)
        return None if found is None else found[0]

    def _is_open(self, ledger_id: int) -> bool:
        """Is the ledger known, and not fenced?"""
        ledger = self.ledgers.look(ledger_id)
        return ledger is not None and not ledger.fenced

    def take_log_number(self, directory: LogDirectory) -> int:
        """A number that was never used, for a new log of this directory."""
        number = directory.log_number(self.next_log)
        self.next_log = number + 1
        return number

    def begin_log(self, directory: LogDirectory) -> EntryLog:
        """A new entry log of this directory."""
        entry_log = EntryLog(self._file_system, directory.path, self.take_log_number(directory))
        self.logs[entry_log.number] = (directory, entry_log)
        return entry_log

    def forget(self, ledger_id: int) -> None:
        """Drop everything that is known of a ledger but its bytes."""
        self.volatile.forget(ledger_id)
        self.index.forget(ledger_id)
        self.control.forget(ledger_id)

    # -- what was lost

    def lose(
        self, ledger_id: int, wheres: Collection[int], near: int = 0, within: int | None = None
    ) -> list[EntriesLost]:
        """The copies of a ledger's entries at these few locations can't be read: they are not held from now on. Their rows leave
        the index, and a record of each, which is returned, goes to the control logs. A row that was moved is no error. ``near``,
        ``within``: as for ``LedgerRows.numbers_at``."""
        rows = self.index.changing(ledger_id)
        if rows is None:
            return []
        numbers = sorted({number for where in wheres for number in rows.numbers_at(where, near, within)})
        return self._note_lost(ledger_id, rows.remove_numbered(numbers))

    def lose_all(self, ledger_id: int, wheres: Collection[int]) -> Steps[list[EntriesLost]]:
        """``lose`` for any number of locations, in steps."""
        lost: list[EntriesLost] = []
        sought, following = frozenset(wheres), 0
        while (rows := self.index.get(ledger_id)) is not None:
            start = bisect_left(rows.first, following)
            part = rows.where[start : start + _ROWS_A_STEP]
            if not part:
                break
            following = rows.first[start + len(part) - 1] + 1
            numbers = [number for number, where in enumerate(part, start) if where in sought]
            if numbers and (changing := self.index.changing(ledger_id)) is not None:
                lost += self._note_lost(ledger_id, changing.remove_numbered(numbers))
            yield None
        return lost

    def lose_unreadable(self, pieces: Sequence[Piece], stop: Stop | None) -> bool:
        """A read came to an end before ``pieces``, because of ``stop``: if that is damage, or a log that is gone though rows
        point into it, the copy of the first one is lost, and this is True."""
        if stop in (None, Stop.LIMIT, Stop.FAILED):
            return False
        ledger_id, first, _, where, size, _ = pieces[0]
        stored = self.logs.get(log_of(where))
        # In an entry log the frame's size tells how many ids it may have, and so where its rows are.
        within = size // ENTRY_OVERHEAD_BYTES if stored is not None and isinstance(stored[1], EntryLog) else None
        if lost := self.lose(ledger_id, [where], first, within):
            self.suspected.add(log_of(where))
            self._tell_lost(lost, stop)
        return True

    def lose_bad(self, bad: Sequence[tuple[Piece, Stop]]) -> Steps[None]:
        """``lose_unreadable`` for any number of batches, in steps. A batch that was moved meanwhile is passed over."""
        by_ledger: dict[int, dict[int, Stop]] = {}
        for piece, stop in bad:
            if stop not in (Stop.LIMIT, Stop.FAILED) and log_of(piece.where) not in self.gone:
                by_ledger.setdefault(piece.ledger_id, {})[piece.where] = stop
        for ledger_id, stops in by_ledger.items():
            lost = yield from self.lose_all(ledger_id, stops)
            for record in lost:
                self._tell_lost([record], stops[record.where])

    def _tell_lost(self, lost: Sequence[EntriesLost], stop: Stop | None) -> None:
        for record in lost:
            found = self.logs.get(log_of(record.where))
            if found is None:
                continue
            directory, stored = found
            log.error(
                "%s, byte %d: %s; entries %d to %d of ledger %d are lost here until another bookie's copy replaces them",
                stored.path,
                position_of(record.where),
                "the disk can't read it" if stop is Stop.UNREADABLE else "the bytes are not what was written",
                record.first,
                record.last,
                record.ledger_id,
            )
            if stop is Stop.UNREADABLE:
                self.read_failed(directory)

    def lose_directory(self, directory: LogDirectory) -> None:
        """A directory is used no more, so nothing in it is held. That is not noted: the next start finds the directory as it is
        then, and if it can't be read, that boot is lossy."""
        begins = not self.gone
        self.gone.update(stored.number for stored in directory.stored)
        if begins:
            self.carry_through(self._leave_gone())

    def leave_gone(self, ledger_id: int, first: int) -> int | None:
        """Of the rows of a ledger from entry ``first`` on, as many as any request looks at: those in logs that are gone leave the
        index. Returns the entry id to go on with, None at the end."""
        rows = self.index.get(ledger_id)
        if rows is None:
            return None
        start = max(0, bisect_right(rows.first, first) - 1)
        following = start + _ROWS_LOOKED_AT
        after = rows.first[following] if following < len(rows) else None
        self._leave(ledger_id, rows, start)
        return after

    def _leave(self, ledger_id: int, rows: LedgerRows, start: int) -> None:
        part, gone = rows.where[start : start + _ROWS_LOOKED_AT], self.gone
        numbers = [number for number, where in enumerate(part, start) if where >> 32 in gone]
        if numbers and (changing := self.index.changing(ledger_id)) is not None:
            self.control.lose_for_now(ledger_id, changing.ids_of(numbers))
            changing.drop_numbered(numbers)
            self.ledgers_lacking.add(ledger_id)

    def _leave_gone(self) -> Steps[None]:
        """All rows in logs that are gone leave the index."""
        while True:
            gone, start = frozenset(self.gone), 0
            while ids := self.index.ledger_ids(start, _LEDGERS_A_STEP):
                for ledger_id in ids:
                    yield from self._leave_ledger(ledger_id)
                start = ids[-1] + 1
                self.made_objects()
                yield None
            if gone == self.gone:
                # Otherwise another directory failed meanwhile.
                self.gone.clear()
                return

    def _leave_ledger(self, ledger_id: int) -> Steps[None]:
        following: int | None = 0 if self.gone else None
        while following is not None and (following := self.leave_gone(ledger_id, following)) is not None:
            yield None

    def when_left(self, ledger_id: int, then: Callable[[], None]) -> None:
        """Call ``then`` when no row of a ledger lies in a directory that failed, so that ``lacking`` tells all: at once, or in a
        later turn of the loop if there are many rows."""
        if self.gone and self.leave_gone(ledger_id, 0) is not None:
            self.carry_through(self._when_left(ledger_id, then))
        else:
            then()

    def _when_left(self, ledger_id: int, then: Callable[[], None]) -> Steps[None]:
        gone: frozenset[int] = frozenset()
        while not self.gone <= gone:
            # At first, and again if another directory failed meanwhile.
            gone = frozenset(self.gone)
            yield from self._leave_ledger(ledger_id)
        then()

    def lose_at_boot(self, gone: Mapping[int, int]) -> Iterator[None]:
        """Everything behind these positions of logs, by number, is lost, as by ``lose``; ledger after ledger. The next checkpoint
        has to hold everything."""
        for ledger_id, rows in self.index.remove_at_boot(gone):
            self._note_lost(ledger_id, rows)
            yield

    def lacking(self, ledger_id: int) -> EntryRanges:
        """Entries of a ledger of which a copy was here that can't be read (``BookieLedger.lacking``), as far as the rows in
        directories that failed have left the index. (If more leave, the ledger is in ``ledgers_lacking`` again.)"""
        return NO_RANGES if (ledger := self.ledgers.look(ledger_id)) is None else ledger.lacking

    def _note_lost(self, ledger_id: int, rows: Sequence[Row]) -> list[EntriesLost]:
        records: list[EntriesLost] = []
        for first, last, where, _ in rows:
            if log_of(where) in self.logs:
                records.append(EntriesLost(ledger_id, first, last, where))
            elif records and records[-1].last == first - 1 and records[-1].where == NO_COPY:
                # Entries without a copy may share a record.
                records[-1] = records[-1]._replace(last=last)
            else:
                records.append(EntriesLost(ledger_id, first, last))
        self.lost_copies += len(rows)
        if records:
            self.control.replay(records)
            self.ledgers_lacking.update(record.ledger_id for record in records)
            self.lost(records)
        return records

    def _open_log(self, number: int) -> File:
        _, stored = self.logs[number]
        return self._file_system.open(stored.path)

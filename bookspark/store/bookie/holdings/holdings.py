"""Holdings: the index, the known ledgers, and the directories and logs of a bookie.

Law: lost entries are unknown, never absent, and not held: their rows leave the index (``lose``). Only bytes that were read and
fail their checks are lost. A copy that the disk can't read now is *set aside*: its row stays, it is not held, and it is read
again (``set_aside``). Owned by the loop, except ``files``, which any thread may use to read. This module decides nothing and
writes nothing.

The rows of a failed directory leave the index in steps. Until then their logs are in ``gone``, and each reader of rows first
removes the rows in those logs (``leave_gone``). So all readers see the final index.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice

from bookspark.protocol.bookie.bookie_ledger import NO_COPY, BookieLedger, EntriesLost, answer_absent, may_read
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges, with_ranges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Negative, Unknown
from bookspark.store.bookie.commit.commit_thread import Soon
from bookspark.store.bookie.disk.control_state import ControlState
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.bookie.disk.index import Index, LedgerRows, Row, log_of, position_of
from bookspark.store.bookie.disk.rewritten_log import RewrittenLog
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.holdings.reads import LogFiles, Piece, ReadPlan, Stop, plan_read
from bookspark.store.bookie.holdings.volatile_ledgers import VolatileLedgers
from bookspark.store.bookie.steps import Steps, at_once
from bookspark.store.decisions.seam import decided, watched
from bookspark.store.wire.entry_batch import ENTRY_OVERHEAD_BYTES, Buffer
from bookspark.store.wire.header import NO_KEY
from bookspark.store.wire.messages import Ranges

log = logging.getLogger(__name__)


# -- Long polls: clients that wait for a ledger's LAC (last add confirmed) to reach an entry.


_TOLD_A_TURN = 256


class LongPolls:
    """The long polls of one bookie, by ledger.

    Law: a poll is answered at most once, when the LAC rises to its entry. ``add`` does not answer a poll whose LAC is reached
    already. Some hundred polls are answered in one turn of the loop, the others in later turns."""

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._last = 0
        self._soon: Soon | None = None

    def start(self, soon: Soon | None) -> None:
        """Spread answers over several turns of the loop from now on. None: all polls are answered at once."""
        self._soon = soon

    def add(self, ledger_id: int, target: int, told: Callable[[], None]) -> int:
        """Call ``told`` once the ledger's LAC reaches the entry id ``target``. Returns a number for ``remove``."""
        self._last += 1
        self._ledgers.setdefault(ledger_id, {})[self._last] = (target, told)
        return self._last

    def remove(self, ledger_id: int, poll: int) -> None:
        """Forget a poll; no error if it is gone already."""
        polls = self._ledgers.get(ledger_id)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._ledgers[ledger_id]

    def reached(self, ledger_id: int, last_add_confirmed: int) -> None:
        """Answer the polls of a ledger up to its risen LAC."""
        polls = self._ledgers.get(ledger_id)
        if polls is not None:
            due = deque(poll for poll, (target, _) in polls.items() if target <= last_add_confirmed)
            if due:
                self._tell(ledger_id, due)

    def _tell(self, ledger_id: int, due: deque[int]) -> None:
        left = len(due) if self._soon is None else min(len(due), _TOLD_A_TURN)
        for _ in range(left):
            poll = due.popleft()
            # The poll may be answered by a later rise of the LAC, or removed.
            _, told = self._ledgers.get(ledger_id, {}).get(poll, (0, None))
            if told is not None:
                self.remove(ledger_id, poll)
                told()
        if due and self._soon is not None:
            self._soon(partial(self._tell, ledger_id, due))


# -- Holdings


RANGES_ROWS_MAX = 1 << 11
"""Rows of an answer, which is made on the loop in some milliseconds."""

_LEDGERS_A_STEP = 256
_ROWS_A_STEP = 2048
_PLACES_MAX = 1 << 16
"""Places of lost copies in missing logs that are noted. The entries of further copies share records."""
_UNREAD_MAX = 1 << 16
"""Most rows set aside. Further unreadable rows stay held, until reads find them again."""
_ROWS_LOOKED_AT = 1 << 13
"""More rows than any single request reads. Seeking and removing the gone rows takes four milliseconds."""

StoredLog = EntryLog | RewrittenLog


class Holdings:
    """Everything that one bookie holds. ``live``: the ``directories`` that have not failed."""

    def __init__(self, file_system: FileSystem, directories: list[LogDirectory], live: list[LogDirectory]) -> None:
        self._file_system = file_system
        self.directories = directories
        self.live = live
        self.unreadable: Sequence[str] = ()
        self.absent_directories = 0
        """Numbers of the directories that were absent at the boot, or had logs that could not be read as a whole, as bits."""
        self.control = ControlState()
        self.ledgers = self.control.ledgers
        self.index = Index()
        self.recent: dict[int, Buffer] = {}
        self.logs: dict[int, tuple[LogDirectory, StoredLog]] = {}
        self.next_log = 1
        self.volatile = VolatileLedgers(
            self.index, self.is_synced, self._is_open, self.is_gone, lambda steps: self.carry_through(steps)
        )
        self.long_polls = LongPolls()
        self.files = LogFiles(lambda number: self._file_system.open(self.logs[number][1].path))
        self.lost_at_boot: list[EntriesLost] = []
        """Losses from before ``lost`` was set, which are to be written too."""
        self.lost: Callable[[Sequence[EntriesLost]], None] = self.lost_at_boot.extend
        self.back: dict[tuple[int, int], None] = {}
        """Copies noted as lost whose bytes were read well, so that their rows are in the index again: ledger id, location."""
        self.taken_back: Callable[[], None] = lambda: None
        self.ledgers_lacking: set[int] = set()
        """Ledgers that lost entries, until a caller takes them for repair."""
        self.gone: set[int] = set()
        """Logs of failed directories, while rows may still point into them."""
        self.carry_through: Callable[[Steps[None]], None] = at_once
        """Runs steps to their end: by default at once; an owner with a loop replaces it, so that other tasks run in between."""
        self.made_objects: Callable[[], None] = lambda: None
        """Called after the creation of hundreds of lasting objects, to keep Python's collector from walking over them."""
        self.suspected: set[int] = set()
        """Logs with unreadable bytes: the scrub reads them next."""
        self.lost_copies = 0
        """Copies that proved damaged since the start."""
        self.unread: dict[int, dict[int, Row]] = {}
        """Rows set aside, by ledger and location."""
        self._unread_count = self._places_kept = 0
        self.losses_durable = threading.Event()
        self.losses_durable.set()

    # -- reads

    def plan_read(self, ledger_id: int, first: int, last: int, limit: int, *, sparse: bool) -> ReadPlan:
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
        unsure = self.control.unsure_of(ledger_id)
        return decided(answer_absent, None, NO_ENTRY, storage_damaged=self.damaged, boot_unsure=unsure)

    def has_moved(self, piece: Piece) -> bool:
        """Have the entries of a planned piece moved, or left the index?"""
        if self.gone:
            self.leave_gone(piece.ledger_id, piece.first)
        rows = self.index.get(piece.ledger_id)
        return rows is None or piece.where not in [row.where for row in rows.covering(piece.first, piece.last)]

    # -- copies that can't be read now

    def set_aside(self, piece: Piece) -> None:
        """The disk can't read this piece's copy now. Its row stays in the index, so reads try it again, but it is not held."""
        where = piece.where
        if (directory := self.directory_of(log_of(where))) is not None:
            directory.read_errors += 1
        rows = self.index.get(piece.ledger_id)
        found = (
            [row for row in rows.covering(piece.first, piece.last) if row.where == where] if rows is not None else []
        )
        unread = self.unread.get(piece.ledger_id, {})
        if not found or where in unread or self._unread_count >= _UNREAD_MAX:
            return
        self.unread.setdefault(piece.ledger_id, unread)[where] = found[0]
        self._unread_count += 1
        self.ledgers_lacking.add(piece.ledger_id)
        log.warning(
            "log %08x, byte %d: the disk can't read entries %d to %d of ledger %d now; it is tried again; check the disk",
            log_of(where),
            position_of(where),
            found[0].first,
            found[0].last,
            piece.ledger_id,
        )

    def is_unread(self, ledger_id: int, where: int) -> bool:
        """Is the copy at ``where`` set aside? It is then not held."""
        return bool(self.unread) and where in self.unread.get(ledger_id, ())

    def read_well(self, pieces: Iterable[Piece]) -> None:
        """These pieces were read: none of them is set aside any more."""
        if self.unread:
            for piece in pieces:
                self._forget_unread(piece.ledger_id, [piece.where])

    def unread_pieces(self, count: int) -> list[Piece]:
        """The first ``count`` pieces set aside, of any ledgers."""
        found = ((ledger_id, row) for ledger_id, rows in self.unread.items() for row in rows.values())
        return [Piece(ledger_id, *row, None) for ledger_id, row in islice(found, count)]

    def looked_again(self, good: Sequence[Piece], bad: Sequence[tuple[Piece, Stop]]) -> None:
        """Note which set-aside pieces were read again. Pieces that failed again come last from now on."""
        self.read_well(good)
        for piece, stop in bad:
            if stop is Stop.UNREADABLE and (rows := self.unread.pop(piece.ledger_id, None)) is not None:
                if (row := rows.pop(piece.where, None)) is not None:
                    rows[piece.where] = row
                self.unread[piece.ledger_id] = rows
            elif stop is not Stop.FAILED:
                self.read_well([piece])
                self.read_ended([piece], stop)

    def _forget_unread(self, ledger_id: int, wheres: Iterable[int]) -> None:
        if (rows := self.unread.get(ledger_id)) is None:
            return
        for where in wheres:
            if rows.pop(where, None) is not None:
                self._unread_count -= 1
        if not rows:
            del self.unread[ledger_id]

    def ledger(self, ledger_id: int) -> BookieLedger | None:
        """The ledger, read-only; None if it is unknown."""
        return self.ledgers.look(ledger_id)

    def may_read(self, ledger_id: int, master_key: bytes) -> bool:
        """May a reader with this key, or without one (``NO_KEY``), read the ledger?"""
        return may_read(self.ledgers.look(ledger_id), None if master_key == NO_KEY else master_key)

    def last_entry_id(self, ledger_id: int) -> int | None:
        """The highest held entry id, NO_ENTRY if none. None: too many of the last rows are gone; ask again in another turn of the
        loop."""
        rows = self.index.get(ledger_id)
        if rows is not None and self.gone:
            start = max(0, len(rows) - _ROWS_LOOKED_AT)
            self._leave(ledger_id, rows, start)
            # A copy that ``get`` returned earlier lacks the removals.
            rows = self.index.get(ledger_id)
            if rows is not None and 0 < start == len(rows):
                return None
        return NO_ENTRY if rows is None else rows.last_entry_id

    def ranges(self, ledger_id: int, first_entry_id: int, limit: int, *, only: bool) -> tuple[Ranges, int, int]:
        """The index's rows from (``ledger_id``, ``first_entry_id``) on, of that ledger ``only`` or of later ledgers too, at most
        ``limit`` and 2,048; with the ledger id and the entry id to continue at, −1 and −1 at the end."""
        limit = min(limit or RANGES_ROWS_MAX, RANGES_ROWS_MAX)
        ranges = Ranges.empty()
        ids = [ledger_id] if only else self.index.ledger_ids(ledger_id, limit)
        for current in ids:
            start = first_entry_id if current == ledger_id else 0
            if self.gone:
                self.leave_gone(current, start)
            rows = self.index.get(current)
            held: Iterable[Row] = rows.covering(start, rows.last_entry_id) if rows is not None else ()
            if self.gone or current in self.unread:
                held = (row for row in held if not self.is_gone(row.where) and not self.is_unread(current, row.where))
            for row in held:
                if len(ranges.ledger_ids) == limit:
                    return ranges, current, row.first
                values = (current, row.first, row.last, log_of(row.where), position_of(row.where), row.size)
                for column, value in zip(ranges, values, strict=True):
                    column.append(value)
        return (ranges, ids[-1] + 1, 0) if len(ids) == limit and not only else (ranges, -1, -1)

    # -- contents

    @property
    def damaged(self) -> bool:
        """May synced data be lost while phase one of the lossy boot is not over? An entry without a row is then unknown, not
        absent."""
        return bool(self.unreadable) or any(directory.damaged for directory in self.directories)

    def is_synced(self, where: int) -> bool:
        """Is the frame at ``where`` durable? (In a removed log it was.)"""
        found = self.logs.get(log_of(where))
        return found is None or found[1].synced > position_of(where)

    def is_gone(self, where: int) -> bool:
        """Does the frame at ``where`` lie in a failed directory? It is then not held."""
        return log_of(where) in self.gone

    def directory_of(self, log: int) -> LogDirectory | None:
        """The directory of a log, None if the log is gone."""
        found = self.logs.get(log)
        return None if found is None else found[0]

    def _is_open(self, ledger_id: int) -> bool:
        ledger = self.ledgers.look(ledger_id)
        return ledger is not None and not ledger.fenced

    def take_log_number(self, directory: LogDirectory) -> int:
        """Take an unused number for a new log of this directory."""
        number = directory.log_number(self.next_log)
        self.next_log = number + 1
        return number

    def begin_log(self, directory: LogDirectory) -> EntryLog:
        entry_log = EntryLog(self._file_system, directory.path, self.take_log_number(directory))
        self.logs[entry_log.number] = (directory, entry_log)
        return entry_log

    def forget(self, ledger_id: int) -> None:
        self.volatile.forget(ledger_id)
        self._forget_unread(ledger_id, list(self.unread.get(ledger_id, ())))
        self.index.forget(ledger_id)
        self.control.forget(ledger_id)

    # -- losses

    def lose(
        self, ledger_id: int, wheres: Collection[int], near: int = 0, within: int | None = None
    ) -> list[EntriesLost]:
        """Lose the copies of a ledger's entries at these few locations. Their rows leave the index, and a record of
        each, which is returned, goes to the control logs. A moved row is no error. ``near``, ``within``: as for
        ``LedgerRows.numbers_at``."""
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

    def read_ended(self, pieces: Sequence[Piece], stop: Stop | None) -> None:
        """Handle a read that ended before ``pieces`` because of ``stop``: damage loses the first piece's copy, an error of the
        disk sets it aside."""
        if stop is Stop.DAMAGED:
            self.lose_copy(pieces[0], stop)
        elif stop in (Stop.UNREADABLE, Stop.MOVED):
            # A moved piece has no row to set aside.
            self.set_aside(pieces[0])

    def lose_copy(self, piece: Piece, stop: Stop) -> None:
        """Lose the copy of a piece that is bad, or that can't be read while another copy is about to take its place."""
        ledger_id, first, _, where, size, _ = piece
        stored = self.logs.get(log_of(where))
        # In an entry log the frame's size bounds its number of ids, and so the range of its rows.
        within = size // ENTRY_OVERHEAD_BYTES if stored is not None and isinstance(stored[1], EntryLog) else None
        if lost := self.lose(ledger_id, [where], first, within):
            self.suspected.add(log_of(where))
            self._tell_lost(lost, stop)

    def lose_bad(self, bad: Sequence[tuple[Piece, Stop]]) -> Steps[None]:
        """``read_ended`` for any number of batches, in steps. A batch moved meanwhile is skipped."""
        by_ledger: dict[int, set[int]] = {}
        set_aside = 0
        for piece, stop in bad:
            if log_of(piece.where) in self.gone:
                continue
            if stop is Stop.DAMAGED:
                by_ledger.setdefault(piece.ledger_id, set()).add(piece.where)
            elif stop in (Stop.UNREADABLE, Stop.MOVED):
                self.set_aside(piece)
                set_aside += 1
                if set_aside % _LEDGERS_A_STEP == 0:
                    yield None
        for ledger_id, wheres in by_ledger.items():
            lost = yield from self.lose_all(ledger_id, wheres)
            for record in lost:
                self._tell_lost([record], Stop.DAMAGED)

    def _tell_lost(self, lost: Sequence[EntriesLost], stop: Stop) -> None:
        for record in lost:
            found = self.logs.get(log_of(record.where))
            if found is None:
                continue
            log.error(
                "%s, byte %d: %s; entries %d to %d of ledger %d are lost here until another bookie's copy replaces them",
                found[1].path,
                position_of(record.where),
                "the disk can't read it" if stop is Stop.UNREADABLE else "the bytes are not what was written",
                record.first,
                record.last,
                record.ledger_id,
            )

    def take_back(self, piece: Piece) -> None:
        """The bytes of a piece with entries noted as lost were read, and are good: the entries are held again. The note goes
        once a checkpoint has the rows (``storage.Losses``)."""
        ledger_id, first, last, where, size, _ = piece
        directory = self.directory_of(log_of(where))
        if directory is None or directory.retired or self.ledgers.look(ledger_id) is None:
            return
        self.index.of(ledger_id).insert(first, last, where, size)
        self.back[ledger_id, where] = None
        log.warning(
            "log %08x, byte %d: entries %d to %d of ledger %d were noted as lost, and are good: they are held again",
            log_of(where),
            position_of(where),
            first,
            last,
            ledger_id,
        )
        self.taken_back()

    def lose_directory(self, directory: LogDirectory) -> None:
        """Lose a failed directory's entries. No record notes that: the next start reads the directory, and is lossy if that
        fails."""
        begins = not self.gone
        self.gone.update(stored.number for stored in directory.stored)
        if begins:
            self.carry_through(self._leave_gone())

    def leave_gone(self, ledger_id: int, first: int) -> int | None:
        """Remove a ledger's rows in gone logs, from entry ``first`` on, as far as any single request reads. Returns the entry id
        to continue at, None at the end."""
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
            self._forget_unread(ledger_id, [rows.where[number] for number in numbers])
            changing.drop_numbered(numbers)
            self.ledgers_lacking.add(ledger_id)

    def _leave_gone(self) -> Steps[None]:
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
        """Call ``then`` once no row of a ledger lies in a failed directory, so that ``lacking`` is complete: at once, or in a
        later turn of the loop for many rows."""
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
        """Lose everything behind these positions of logs, by number, as ``lose`` does, ledger after ledger. The next checkpoint
        must hold everything."""
        for ledger_id, rows in self.index.remove_at_boot(gone):
            self._note_lost(ledger_id, rows)
            yield

    def lacking(self, ledger_id: int) -> EntryRanges:
        """Entries of a ledger with an unreadable copy here (``BookieLedger.lacking``), except rows of failed directories still in
        the index. (Their removal puts the ledger into ``ledgers_lacking`` again.)"""
        return NO_RANGES if (ledger := self.ledgers.look(ledger_id)) is None else ledger.lacking

    def not_held(self, ledger_id: int) -> EntryRanges:
        """``lacking``, and the entries whose copy is set aside."""
        unread = self.unread.get(ledger_id, {}).values()
        return with_ranges(self.lacking(ledger_id), sorted((row.first, row.last) for row in unread))

    def _note_lost(self, ledger_id: int, rows: Sequence[Row]) -> list[EntriesLost]:
        records: list[EntriesLost] = []
        self._forget_unread(ledger_id, [row.where for row in rows])
        for first, last, where, _ in rows:
            if log_of(where) in self.logs or self._places_kept < _PLACES_MAX:
                # A missing log may come back.
                self._places_kept += log_of(where) not in self.logs
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


def decided_anew(holdings: Holdings, ledger_id: int, master_key: bytes) -> BookieLedger:
    """Put the ledger after the metadata's decision for ``master_key`` in the place of all else known of it; its
    ``control_records`` have to be written next."""
    control = holdings.control
    # A checkpoint taken before has a lower number, and one taken later does not hold the rows.
    control.decisions += 1
    ledger = watched(control.known(ledger_id).decided_for(master_key, control.decisions))
    holdings.forget(ledger_id)
    control.ledgers[ledger_id] = ledger
    control.look_at_limbo(ledger)
    return ledger

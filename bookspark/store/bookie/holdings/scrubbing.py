"""Scrubbing: each byte of a serving bookie's logs is read from the disk and checked, round after round.

Law: a round covers every log that existed when it began, by ascending number, up to its synced position, and every row of the
index that points into it. Two rounds fit into a period, so all held bytes are read at least once in each period, whenever they
came or rotted. A batch that fails the checks (``checks``) is read once more, as a client reads it; a damaged copy is lost
(``Holdings.lose``), and a copy that the disk can't read now is set aside (``Holdings.set_aside``). A good batch with entries that
are noted as lost brings them back (``Holdings.take_back``), whatever the note says. After a start a round continues at the last
process's noted progress. Entries moved to a new log meanwhile were read when they were moved.

Damage in *dead bytes*, batches without a row, costs no entry: no read and no rewriting touches them again. They are counted
(``dead_bytes``), not reported as a loss. A checkpoint covers the log a minute later, so that no boot takes them for a loss. Bytes
that follow from the rest of a log (its schema, a footer) are rewritten. ``kept_files`` checks the other files of a bookie.

Every directory notes the round's progress; the furthest note counts. One file, replaced as a whole::

    <directory>/scrub    JSON: {"began_ms", "next_log", "end_log", "done_bytes", "finished_ms"}
                         times in ms since 1970, by the metadata store's clock; logs from next_log to below end_log have
                         still to be read

``offline.scrub`` makes the same checks for a stopped bookie.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import partial
from itertools import islice, takewhile
from operator import itemgetter
from typing import NamedTuple

import msgspec

from bookspark.protocol.kept_times import lies_ahead
from bookspark.protocol.ledger.entry_ranges import EntryRanges
from bookspark.store.bookie.checks import Damage, NotRead, Stored, Torn, check_entry_log, check_rewritten_log
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import FileSystem, read_all, replace_file, uncached, write_all
from bookspark.store.bookie.disk.index import location, log_of, position_of
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.holdings.reads import LogFiles, Piece, Stop
from bookspark.store.bookie.steps import Steps

NAME = "scrub"

ROUND_PART = 0.5
"""A round begins after this part of the period at the earliest."""
_PACE_PART = 0.45
"""A round is paced to end after this part of the period."""
_GROUP_BYTES = 256 << 20
"""The index is walked once for each group of logs of about this size together."""
_ROWS_A_STEP = 4096
_LEDGERS_A_STEP = 256
_AGAIN_PIECES = 64
"""Pieces set aside that are read again together."""
_UNREADABLE_MAX = 64
"""Failed reads, one after the other, that end a look."""
_LOOK_BYTES = 4 << 20

log = logging.getLogger(__name__)


class ScrubProgress(msgspec.Struct, frozen=True):
    began_ms: int = 0
    next_log: int = 0
    end_log: int = 0
    done_bytes: int = 0
    finished_ms: int = 0
    """End of the last whole round. 0: never."""


class ToRead(NamedTuple):
    """A log to read. ``pieces``: all pieces of the index in it. ``lacking``: the entries noted as lost, by ledger."""

    pieces: list[Piece]
    lacking: Mapping[int, EntryRanges]


class Looked(NamedTuple):
    size: int
    bad: Sequence[tuple[Piece, Stop]] = ()
    """Batches with rows that could not be read or are damaged, and the reasons."""
    good: Sequence[Piece] = ()
    back: Sequence[Piece] = ()
    dead_bytes: int = 0
    """Damaged bytes outside the index's batches."""


class Scrubbing:
    """The scrubbing of one bookie. Owned by the loop, except ``load``, ``save`` and ``look``."""

    def __init__(self, file_system: FileSystem, holdings: Holdings) -> None:
        self._file_system = file_system
        self._holdings = holdings
        self._files = LogFiles(lambda number: file_system.open(holdings.logs[number][1].path))
        self.progress = ScrubProgress()
        self._read_bytes = 0
        """Bytes read of the logs under way."""
        self.dead_bytes = 0
        """Damaged dead bytes since the start."""

    def load(self) -> None:
        """Read an earlier process's progress. A missing or damaged file costs repeated reading."""
        found = []
        for directory in list(self._holdings.live):
            path = f"{directory.path}/{NAME}"
            try:
                with closing(self._file_system.open(path)) as file:
                    found.append(msgspec.json.decode(read_all(file), type=ScrubProgress))
            except (OSError, msgspec.MsgspecError):
                continue
        self.progress = max(found, key=lambda one: (one.began_ms, one.next_log), default=ScrubProgress())

    def save(self) -> None:
        """Write this process's progress. A failure is logged, and costs repeated reading."""
        content = msgspec.json.encode(self.progress)
        for directory in list(self._holdings.live):
            try:
                replace_file(self._file_system, f"{directory.path}/{NAME}", [content])
            except OSError as error:
                log.warning("%s: the progress of the scrub can't be noted: %s", directory.path, error)

    @property
    def left_bytes(self) -> int:
        """Size of the round's unread logs."""
        numbers = range(self.progress.next_log, self.progress.end_log)
        left = sum(stored.end for number, (_, stored) in self._holdings.logs.items() if number in numbers)
        return max(0, left - self._read_bytes)

    @property
    def part(self) -> float:
        """The finished part of the round, 0 to 1."""
        done, left = self.progress.done_bytes + self._read_bytes, self.left_bytes
        return done / (done + left) if done + left else 1.0

    @property
    def under_way(self) -> bool:
        return self.progress.next_log < self.progress.end_log

    def begin(self, now_ms: int) -> None:
        self._read_bytes = 0
        self.progress = msgspec.structs.replace(
            self.progress, began_ms=now_ms, next_log=0, end_log=self._holdings.next_log, done_bytes=0
        )

    def set_right(self, now_ms: int, period_seconds: float) -> None:
        """Forget times that lie ahead, which were noted while a clock was wrong: the round goes on at its pace, or begins."""
        began_ms, finished_ms = self.progress.began_ms, self.progress.finished_ms
        if lies_ahead(began_ms, now_ms):
            began_ms = now_ms - round(1000 * _PACE_PART * period_seconds * self.part) if self.under_way else 0
        if lies_ahead(finished_ms, now_ms):
            finished_ms = 0
        self.progress = msgspec.structs.replace(self.progress, began_ms=began_ms, finished_ms=finished_ms)

    def ahead_seconds(self, now_ms: int, period_seconds: float) -> float:
        """Seconds by which the round is ahead of its pace; negative if behind."""
        return self.progress.began_ms / 1000 + _PACE_PART * period_seconds * self.part - now_ms / 1000

    @property
    def suspected(self) -> bool:
        """Do any logs have to be scrubbed before all others?"""
        return bool(self._holdings.suspected)

    def take_suspected(self) -> Steps[dict[int, ToRead]]:
        """Take the suspected logs."""
        numbers = set(self._holdings.suspected)
        self._holdings.suspected.clear()
        return (yield from self._pieces(numbers))

    def group(self) -> Steps[tuple[dict[int, ToRead], int]]:
        """The next logs, and the log number to continue at after them."""
        numbers: set[int] = set()
        size, following = 0, self.progress.end_log
        for number in sorted(self._holdings.logs):
            if self.progress.next_log <= number < self.progress.end_log:
                if numbers and size >= _GROUP_BYTES:
                    following = number
                    break
                numbers.add(number)
                size += self._holdings.logs[number][1].end
        return (yield from self._pieces(numbers)), following

    def read_again(self) -> Steps[None]:
        """Read the pieces set aside once more: first some of them, and the rest if any of the first can be read."""
        left = sum(map(len, self._holdings.unread.values()))
        while left > 0:
            pieces = self._holdings.unread_pieces(_AGAIN_PIECES)
            left -= len(pieces) or left
            bad: list[tuple[Piece, Stop]] = yield partial(self._read_each, pieces)
            failed = {(piece.ledger_id, piece.where) for piece, _ in bad}
            good = [piece for piece in pieces if (piece.ledger_id, piece.where) not in failed]
            self._holdings.looked_again(good, bad)
            if not good:
                return

    def _pieces(self, numbers: Iterable[int]) -> Steps[dict[int, ToRead]]:
        pieces: dict[int, list[Piece]] = {number: [] for number in sorted(numbers)}
        seen = 0
        for ledger_id in self._holdings.index.ids() if pieces else ():
            rows = self._holdings.index.get(ledger_id)
            if rows is None:
                continue
            for start in range(0, len(rows), _ROWS_A_STEP):
                for i, where in enumerate(rows.where[start : start + _ROWS_A_STEP], start):
                    if log_of(where) in pieces and where not in self._holdings.recent:
                        pieces[log_of(where)].append(Piece(ledger_id, *rows.row(i), None))
                seen += min(_ROWS_A_STEP, len(rows) - start) + 1
                if seen >= _ROWS_A_STEP:
                    seen = 0
                    yield None
        lacking: dict[int, EntryRanges] = {}
        for count, ledger_id in enumerate(list(self._holdings.control.lost_copies) if pieces else (), 1):
            if lost := self._holdings.lacking(ledger_id):
                lacking[ledger_id] = lost
            if count % _LEDGERS_A_STEP == 0:
                yield None
        return {number: ToRead(of_log, lacking) for number, of_log in pieces.items()}

    def look(self, number: int, to_read: ToRead) -> Iterator[Looked]:
        """Read and check log ``number``, some bytes with each step, in any thread."""
        found = self._holdings.logs.get(number)
        if found is None or found[0].retired:
            return
        directory, stored = found
        end, damages, read = stored.synced, [], 0
        unseen: dict[int, list[Piece]] = {}
        good: list[Piece] = []
        back: list[Piece] = []
        for piece in to_read.pieces:
            if position_of(piece.where) + piece.size <= end:
                unseen.setdefault(position_of(piece.where), []).append(piece)
        try:
            items: Iterator[Stored | Damage | NotRead | Torn] = (
                check_entry_log(self._file_system, stored.path, end, end)
                if isinstance(stored, EntryLog)
                else check_rewritten_log(self._file_system, stored.path, sorted(unseen))
            )
            for item in items if end else ():
                if isinstance(item, Damage):
                    damages.append(item)
                elif isinstance(item, Stored):
                    if all(_is(piece, item) for piece in unseen.get(item.position, ())):
                        good += unseen.pop(item.position, ())
                    if item.ledger_id in to_read.lacking:
                        back += _lacking_in(item, number, to_read.lacking[item.ledger_id])
                read += item.size
                if read >= _LOOK_BYTES:
                    yield Looked(read, good=good)
                    read, good = 0, []
        except OSError as error:
            # The log was removed, or can't be opened now; the reads below decide.
            log.debug("%s could not be checked: %s", stored.path, error)
        left = [piece for of_frame in unseen.values() for piece in of_frame]
        bad = self._read_again(number, stored.path, left)
        if self._holdings.logs.get(number) is found and not directory.retired:
            for damage in damages:
                self._mend(damage)
            dead = sum(damage.size - _covered(damage, left) for damage in damages if damage.content is None)
            failed = {id(piece) for piece, _ in self._read_each(back)}
            yield Looked(read, bad, good, [piece for piece in back if id(piece) not in failed], dead)

    def _read_again(self, number: int, path: str, pieces: Sequence[Piece]) -> list[tuple[Piece, Stop]]:
        """Read the pieces that passed no check, as a client does; return those that are bad or can't be read."""
        self._files.forget(number)
        if pieces:
            with suppress(OSError):
                uncached(self._file_system, path)
        return [(piece, stop) for piece, stop in self._read_each(pieces) if stop not in (Stop.FAILED, Stop.MOVED)]

    def _read_each(self, pieces: Sequence[Piece]) -> list[tuple[Piece, Stop]]:
        """Read these pieces; return those that failed. A disk that fails again and again is left alone: the last pieces then
        count as failed by the process."""
        bad: list[tuple[Piece, Stop]] = []
        unreadable = 0
        for piece in pieces:
            if unreadable >= _UNREADABLE_MAX:
                bad.append((piece, Stop.FAILED))
                continue
            fetched = self._files.fetch([piece], cached_only=False)
            assert fetched is not None
            if fetched.stop not in (None, Stop.LIMIT):
                bad.append((piece, fetched.stop))
            unreadable = unreadable + 1 if fetched.stop is Stop.UNREADABLE else 0
        return bad

    def _mend(self, damage: Damage) -> None:
        """Rewrite bytes that follow from the rest of their log."""
        if damage.content is None:
            return
        try:
            with closing(self._file_system.open(damage.path, write=True)) as file:
                write_all(file, [damage.content], damage.position)
                file.sync()
            log.warning("%s, byte %d: %s; it was written anew; check the disk", *damage[:2], damage.what)
        except OSError as error:
            log.warning("%s, byte %d: %s, and can't be written anew: %s", *damage[:2], damage.what, error)

    def looked(self, number: int, looked: Looked) -> Steps[None]:
        """Apply the result of a look at log ``number``. Entries moved meanwhile are not lost."""
        self._read_bytes += looked.size
        if looked.dead_bytes:
            self.dead_bytes += looked.dead_bytes
            log.warning(
                "%d bytes of log %08x that hold no entry any more are damaged: nothing is lost by that; check the disk",
                looked.dead_bytes,
                number,
            )
        self._holdings.read_well(looked.good)
        for count, piece in enumerate(looked.back, 1):
            self._holdings.take_back(piece)
            if count % _LEDGERS_A_STEP == 0:
                yield None
        yield from self._holdings.lose_bad(looked.bad)

    def end_group(self, following: int, now_ms: int) -> None:
        """End a group: all pieces below log ``following`` are read."""
        numbers = range(self.progress.next_log, following)
        size = sum(stored.end for number, (_, stored) in self._holdings.logs.items() if number in numbers)
        self._files.clear()
        self._read_bytes = 0
        self.progress = msgspec.structs.replace(
            self.progress,
            next_log=following,
            done_bytes=self.progress.done_bytes + size,
            finished_ms=self.progress.finished_ms if following < self.progress.end_log else now_ms,
        )


def _is(piece: Piece, found: Stored) -> bool:
    """Does a good batch match the index?"""
    return (
        (found.size, found.ledger_id) == (piece.size, piece.ledger_id)
        and found.first <= piece.first
        and piece.last <= found.last
    )


def _lacking_in(found: Stored, number: int, lacking: EntryRanges) -> Iterator[Piece]:
    """The pieces of a good batch of log ``number`` with ``lacking`` entries."""
    start = bisect_left(lacking, found.first, key=itemgetter(1))
    for first, last in takewhile(lambda one: one[0] <= found.last, islice(lacking, start, None)):
        ids = max(first, found.first), min(last, found.last)
        yield Piece(found.ledger_id, *ids, location(number, found.position), found.size, None)


def _covered(damage: Damage, pieces: Sequence[Piece]) -> int:
    """Number of damaged bytes in these batches."""
    end = damage.position + damage.size
    frames = {(position_of(piece.where), piece.size) for piece in pieces}
    return sum(max(0, min(end, at + size) - max(damage.position, at)) for at, size in frames)

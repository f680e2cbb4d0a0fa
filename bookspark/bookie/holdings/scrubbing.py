"""Scrubbing what a bookie holds, while it serves: each batch that the index names is read and checked, round after round.

Law: a round looks at every log that was there when it began, by ascending number, and at every row of the index that points
into it. Two rounds fit into a period, so whatever is held is read at least once in each period, wherever a round was when it came
or when it rotted. A copy that can't be read is lost (``Holdings.lose``). A round goes on after a start where the last process
noted to be. What is moved to a new log meanwhile was read when it was moved.

How far the round is stands in every directory; the furthest one counts. One file, replaced as a whole::

    <directory>/scrub    JSON: {"began_ms", "next_log", "end_log", "done_bytes", "finished_ms"}
                         times in ms since 1970; logs from next_log to below end_log have still to be read

The checks are those of every read (``reads``). ``offline.scrub`` makes them for a stopped bookie.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bookspark.bookie.disk.file_system import FileSystem, read_all, replace_file
from bookspark.bookie.disk.index import log_of
from bookspark.bookie.holdings.holdings import Holdings
from bookspark.bookie.holdings.reads import LogFiles, Piece, Stop
from bookspark.bookie.steps import Steps

NAME = "scrub"

ROUND_PART = 0.5
"""A round begins after this part of the period at the earliest."""
_PACE_PART = 0.45
"""A round is paced to end after this part of the period."""
_GROUP_BYTES = 256 << 20
"""The index is looked through once for logs of about this size together."""
_ROWS_A_STEP = 4096

log = logging.getLogger(__name__)


class ScrubProgress(msgspec.Struct, frozen=True):
    """How far a round is."""

    began_ms: int = 0
    next_log: int = 0
    end_log: int = 0
    done_bytes: int = 0
    finished_ms: int = 0
    """When the last whole round ended. 0: there was none."""


class Bad(NamedTuple):
    """A batch that could not be read, and why."""

    piece: Piece
    stop: Stop


class Scrubbing:
    """The scrubbing of one bookie. Owned by the loop, except ``load``, ``save`` and ``check``."""

    def __init__(self, file_system: FileSystem, holdings: Holdings) -> None:
        self._file_system = file_system
        self._holdings = holdings
        self._files = LogFiles(lambda number: file_system.open(holdings.logs[number][1].path))
        self.progress = ScrubProgress()
        self._read_bytes = 0
        """Bytes of the logs under way that are read."""

    def load(self) -> None:
        """Read how far an earlier process was. A file that is missing or damaged costs reading again."""
        found = []
        for directory in list(self._holdings.live):
            path = f"{directory.path}/{NAME}"
            try:
                file = self._file_system.open(path)
                try:
                    found.append(msgspec.json.decode(read_all(file), type=ScrubProgress))
                finally:
                    file.close()
            except (OSError, msgspec.MsgspecError):
                continue
        self.progress = max(found, key=lambda one: (one.began_ms, one.next_log), default=ScrubProgress())

    def save(self) -> None:
        """Write how far this process is. What can't be written is logged, and costs reading again."""
        content = msgspec.json.encode(self.progress)
        for directory in list(self._holdings.live):
            try:
                replace_file(self._file_system, f"{directory.path}/{NAME}", [content])
            except OSError as error:
                log.warning("%s: the progress of the scrub can't be noted: %s", directory.path, error)

    @property
    def left_bytes(self) -> int:
        """The size of the logs that the round has still to read."""
        numbers = range(self.progress.next_log, self.progress.end_log)
        left = sum(stored.end for number, (_, stored) in self._holdings.logs.items() if number in numbers)
        return max(0, left - self._read_bytes)

    @property
    def part(self) -> float:
        """The part of the round that is done, 0 to 1."""
        done, left = self.progress.done_bytes + self._read_bytes, self.left_bytes
        return done / (done + left) if done + left else 1.0

    @property
    def under_way(self) -> bool:
        """Is there a log that this round has still to read?"""
        return self.progress.next_log < self.progress.end_log

    def begin(self, now_ms: int) -> None:
        """Begin a round."""
        self._read_bytes = 0
        self.progress = msgspec.structs.replace(
            self.progress, began_ms=now_ms, next_log=0, end_log=self._holdings.next_log, done_bytes=0
        )

    def ahead_seconds(self, now_ms: int, period_seconds: float) -> float:
        """How many seconds the round is ahead of its pace; negative if it is behind."""
        return self.progress.began_ms / 1000 + _PACE_PART * period_seconds * self.part - now_ms / 1000

    @property
    def suspected(self) -> bool:
        """Are there logs that are to be looked at before all others?"""
        return bool(self._holdings.suspected)

    def take_suspected(self) -> Steps[list[Piece]]:
        """What the index names in the suspected logs, by location."""
        numbers = set(self._holdings.suspected)
        self._holdings.suspected.clear()
        return self._pieces(numbers)

    def group(self) -> Steps[tuple[list[Piece], int]]:
        """What the index names in the next logs, by location, and the number of the log to go on with after them."""
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

    def _pieces(self, numbers: set[int]) -> Steps[list[Piece]]:
        pieces: list[Piece] = []
        seen = 0
        for ledger_id in self._holdings.index.ledger_ids() if numbers else ():
            rows = self._holdings.index.get(ledger_id)
            if rows is None:
                continue
            for start in range(0, len(rows), _ROWS_A_STEP):
                for i, where in enumerate(rows.where[start : start + _ROWS_A_STEP], start):
                    if log_of(where) in numbers and where not in self._holdings.recent:
                        pieces.append(Piece(ledger_id, *rows.row(i), None))
                seen += min(_ROWS_A_STEP, len(rows) - start) + 1
                if seen >= _ROWS_A_STEP:
                    seen = 0
                    yield None
        pieces.sort(key=lambda piece: piece.where)
        return pieces

    def check(self, pieces: Sequence[Piece], bytes_max: int) -> tuple[int, list[Bad]]:
        """Read and check the first ``pieces``, about ``bytes_max`` of them but at least one; returns how many, and the bad ones.
        In any thread."""
        bad: list[Bad] = []
        done = total = 0
        while done < len(pieces) and (not done or total < bytes_max):
            end = done
            while end < len(pieces) and (end == done or total < bytes_max):
                total += pieces[end].size
                end += 1
            while done < end:
                fetched = self._files.fetch(pieces[done:end], cached_only=False)
                assert fetched is not None
                done += len(fetched.frames)
                if fetched.stop not in (None, Stop.LIMIT):
                    bad.append(Bad(pieces[done], fetched.stop))
                    done += 1
        return done, bad

    def checked(self, pieces: Sequence[Piece], bad: Sequence[Bad]) -> None:
        """``pieces`` were read; the ``bad`` ones of them are lost, unless they were moved meanwhile."""
        self._read_bytes += sum(piece.size for piece in pieces)
        for piece, stop in bad:
            if not self._holdings.has_moved(piece):
                self._holdings.lose_unreadable([piece], stop)

    def end_group(self, following: int, now_ms: int) -> None:
        """All that the index names below log ``following`` is read."""
        numbers = range(self.progress.next_log, following)
        size = sum(stored.end for number, (_, stored) in self._holdings.logs.items() if number in numbers)
        for number in numbers:
            self._files.forget(number)
        self._read_bytes = 0
        self.progress = msgspec.structs.replace(
            self.progress,
            next_log=following,
            done_bytes=self.progress.done_bytes + size,
            finished_ms=self.progress.finished_ms if following < self.progress.end_log else now_ms,
        )

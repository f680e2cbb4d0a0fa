"""Reclaiming: rewriting of sealed logs, and removal of logs without live entries.

Law: no log is removed before its replacement is durable. A pass goes through these states; after a crash the next boot or pass
cleans up::

    forget      ``garbage_collection`` has dropped deleted ledgers from the index
    rewrite     the new log is written under a temporary name and synced     crash: removed at boot
    publish     it is renamed, its directory synced                          crash: no checkpoint names it, removed at boot
    switch      the index points into it                                     crash: as before
    checkpoint  a checkpoint taken after all that is durable, and the
                control log notes that the old logs will go                  crash: the old logs hold nothing that lives; the
    remove      the old logs are unlinked                                           next pass removes them

The index alone decides: every row that points into a source is read and checked (``living``), no length inside a log is trusted,
and a log goes only when no row points into it. A damaged batch is lost (``Holdings.lose``): its absence is unknown from then
on. A log with a batch that can't be read now stays as it is, and so does a log with a copy of an entry that is noted as lost and
not back: its bytes may turn out to be good. A log not read as a whole stays too. Damaged directories are left alone.
Only sealed logs are considered: their dead bytes stay dead. ``choose`` selects the logs to rewrite. A failed job ends no other
job.

Source: docs/decisions/one-log.md; BookKeeper's ``GarbageCollectorThread`` and ``TransactionalEntryLogCompactor``.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, groupby, islice, zip_longest
from types import MappingProxyType
from typing import NamedTuple, Protocol

from bookspark.protocol.bookie.bookie_ledger import BookieLedger
from bookspark.store.bookie.commit.commit_thread import RemovalNote
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.bookie.disk.index import Index, Row, location, log_of, position_of
from bookspark.store.bookie.disk.packed_dict import PackedDict
from bookspark.store.bookie.disk.rewritten_log import RewrittenLog, rewritten_path, temporary_path
from bookspark.store.bookie.holdings.checkpointing import Checkpoints
from bookspark.store.bookie.holdings.holdings import Holdings, StoredLog
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.space.rewriting import Job, LedgerFacts, NoRewriterError, Rewritten, SealedLog
from bookspark.store.bookie.steps import WAIT, Steps
from bookspark.store.wire.header import Status
from bookspark.store.wire.messages import Ranges

log = logging.getLogger(__name__)


# -- Choice of the sealed logs to remove and to rewrite
#
# Law: every log without live entries is removed. Rewritten are entry logs, and logs with a live part below a threshold, by
# BookKeeper's rules of minor and major compaction. Many small neighbours are merged, so an entry is rewritten only each time its
# log grows eightfold. A pass rewrites a bounded number of bytes, of each directory in turn. Logs of a failed job come last, each
# alone, in the order of their failures, so they delay no other log for ever.
#
# Source: BookKeeper's ``GarbageCollectorThread``.


_SOURCES_MAX = 16
"""Source logs of one job at most."""
_JOBS_MAX = 32
"""Jobs of one pass at most."""
_PASS_BYTES = 2 << 30
"""Live bytes that one pass rewrites at most, unless its first job is larger."""
_SMALL_PART = 1 / 8
"""A rewritten log below this fraction of a job's size is small."""
_SMALL_LOGS_MIN = 8
"""Small logs of a directory that start a merge."""


class LogUse(NamedTuple):
    """Live bytes of a sealed log. A batch that is live in part counts whole."""

    directory: LogDirectory
    log: StoredLog
    live_bytes: int

    @property
    def ratio(self) -> float:
        return self.live_bytes / max(1, self.log.end)


class Choice(NamedTuple):
    """Plan of a pass."""

    dead: list[LogUse]
    jobs: list[list[LogUse]]
    """The logs of each job become one log."""
    left_bytes: int
    """Live bytes left to the next pass."""


def choose(
    uses: Iterable[LogUse],
    threshold: float,
    job_bytes: int,
    *,
    entry_logs: bool,
    below: int | None = None,
    failed: Mapping[int, int] = MappingProxyType({}),
) -> Choice:
    """Plan a pass: remove all dead logs, and rewrite logs with a live fraction below ``threshold`` (0 to 1), emptiest first, in
    jobs of about ``job_bytes`` within one directory. ``entry_logs``: also rewrite all entry logs, and merge small logs.
    ``below``: exclusive bound on the numbers of rewritten logs, or None. ``failed``: logs whose last job failed, by number; a
    higher value is a later failure."""
    dead: list[LogUse] = []
    jobs: list[list[list[LogUse]]] = []
    by_place = sorted(uses, key=lambda use: (use.directory.path, use.log.number))
    for _, of_directory in groupby(by_place, key=lambda use: use.directory.path):
        wanted: list[LogUse] = []
        alone: list[list[LogUse]] = []
        small: list[LogUse] = []
        for use in of_directory:
            if use.live_bytes == 0:
                dead.append(use)
            elif below is not None and use.log.number >= below:
                continue
            elif use.ratio < threshold or (entry_logs and isinstance(use.log, EntryLog)):
                if use.log.number in failed:
                    alone.append([use])
                else:
                    wanted.append(use)
            elif entry_logs and use.log.end < _SMALL_PART * job_bytes:
                small.append(use)
        of_one = list(_gathered(sorted(wanted, key=lambda use: use.ratio), job_bytes))
        if len(small) >= _SMALL_LOGS_MIN:
            of_one += (job for job in _gathered(small, job_bytes) if len(job) > 1)
        jobs.append(of_one + alone)
    in_turn = [job for job in chain.from_iterable(zip_longest(*jobs)) if job is not None]
    in_turn.sort(key=lambda job: max(failed.get(use.log.number, 0) for use in job))
    count = _of_one_pass(in_turn)
    return Choice(dead, in_turn[:count], sum(map(live_bytes_of, in_turn[count:])))


def live_bytes_of(job: Iterable[LogUse]) -> int:
    return sum(use.live_bytes for use in job)


def _of_one_pass(jobs: Sequence[list[LogUse]]) -> int:
    """Number of leading ``jobs`` that fit into one pass."""
    total = 0
    for count, job in enumerate(jobs):
        total += live_bytes_of(job)
        if count == _JOBS_MAX or (count and total > _PASS_BYTES):
            return count
    return len(jobs)


def _gathered(uses: Iterable[LogUse], job_bytes: int) -> Iterator[list[LogUse]]:
    job: list[LogUse] = []
    for use in uses:
        job.append(use)
        if live_bytes_of(job) >= job_bytes or len(job) == _SOURCES_MAX:
            yield job
            job = []
    if job:
        yield job


# -- Live rows of sealed logs, by the index
#
# Law: the index alone says which batches live. No log is read for it, so no bad byte can hide a row. Rows may come and go between
# two steps, but a sealed log never gets a row, so the result covers all its later rows. The walk continues by entry id, not by
# array position, because removed rows shift later positions.


_ROWS_A_STEP = 1 << 10
"""Rows in one step of the loop; a row takes up to 2 µs."""
_A_LEDGER = 8
"""Cost of a ledger, in rows."""
_LOW = (1 << 32) - 1

_Part = tuple[int, Sequence[int], Sequence[int], Sequence[int]]
"""Rows of a ledger: its id, then the columns first, where and extent."""


class Spans(NamedTuple):
    """Ledgers with rows in one log, and the bounds of their entry ids. Columns of equal length."""

    ledger_ids: array[int]
    first_entry_ids: array[int]
    last_entry_ids: array[int]

    @classmethod
    def empty(cls) -> Spans:
        return cls(array("q"), array("q"), array("q"))

    def cover(self, ledger_id: int, first: int, last: int) -> None:
        """Add a row ``first..last``. Ledgers come one after the other, with their rows ascending."""
        if self.ledger_ids and self.ledger_ids[-1] == ledger_id:
            self.last_entry_ids[-1] = last
            return
        self.ledger_ids.append(ledger_id)
        self.first_entry_ids.append(first)
        self.last_entry_ids.append(last)


def live_bytes(index: Index) -> Steps[Counter[int]]:
    """Live bytes of each log, by its number, counted as in ``LogUse``."""
    live: Counter[int] = Counter()
    for part in _walk(index):
        if part is None:
            yield None
            continue
        before = -1
        for where, extent in zip(part[2], part[3], strict=True):
            if where != before:
                live[log_of(where)] += extent & _LOW
                before = where
    return live


def spans(index: Index, logs: Collection[int]) -> Steps[dict[int, Spans]]:
    """Spans of the rows that point into ``logs`` (numbers), by log. A log without rows has no entry."""
    found: dict[int, Spans] = {}
    if not logs:
        return found
    lowest, highest = min(logs) << 32, max(logs) << 32 | _LOW
    wanted = frozenset(logs)
    for part in _walk(index):
        if part is None:
            yield None
            continue
        ledger_id, firsts, wheres, extents = part
        if max(wheres) < lowest or min(wheres) > highest:
            continue
        for first, where, extent in zip(firsts, wheres, extents, strict=True):
            if (number := where >> 32) in wanted:
                if number not in found:
                    found[number] = Spans.empty()
                found[number].cover(ledger_id, first, first + (extent >> 32) - 1)
    return found


def living(
    index: Index, ledgers: PackedDict[BookieLedger], logs: Collection[int], found: Mapping[int, Spans]
) -> Steps[tuple[Ranges, dict[int, LedgerFacts]]]:
    """All rows that point into ``logs`` (numbers) now, and the facts of their ledgers. ``found``: an earlier result of
    ``spans``."""
    rows = Ranges.empty()
    facts: dict[int, LedgerFacts] = {}
    counted = 0
    for number in logs:
        for ledger_id, first, last in zip(*found.get(number, Spans.empty()), strict=True):
            while (present := index.get(ledger_id)) is not None and (ledger := ledgers.look(ledger_id)) is not None:
                part = list(islice(present.covering(first, last), _ROWS_A_STEP))
                for row in part:
                    if log_of(row.where) == number:
                        rows.append((ledger_id, row.first, row.last, number, position_of(row.where), row.size))
                facts[ledger_id] = LedgerFacts(
                    ledger.last_add_confirmed, ledger.last_add_fully_replicated, ledger.master_key or bytes(16)
                )
                counted += len(part) + _A_LEDGER
                if counted >= _ROWS_A_STEP:
                    counted = 0
                    yield None
                if len(part) < _ROWS_A_STEP:
                    break
                first = part[-1].last + 1
    return rows, facts


def _walk(index: Index) -> Iterator[_Part | None]:
    """Rows of all ledgers present since the first step, in parts. None: some milliseconds are over."""
    counted = 0
    for ledger_id in index.ids():
        following = 0
        while (rows := index.get(ledger_id)) is not None:
            start = bisect_left(rows.first, following)
            part = slice(start, start + _ROWS_A_STEP)
            if not (firsts := rows.first[part]):
                break
            yield ledger_id, firsts, rows.where[part], rows.extent[part]
            following = firsts[-1] + 1
            counted += len(firsts) + _A_LEDGER
            if counted >= _ROWS_A_STEP:
                counted = 0
                yield None
            if len(firsts) < _ROWS_A_STEP:
                break


# -- The pass


_IDS_A_STEP = 1 << 10
"""Ids between the first and the last entry that a step of ``_switch`` moves. A row of a single entry takes some 2 µs."""
_LEDGERS_A_STEP = 1 << 10
_REMOVE_BYTES = 1 << 30
"""Bytes of doomed logs that start a checkpoint within the pass."""


class Rewriter(Protocol):
    """Runs ``rewriting.rewrite``, in this process or in another one. Called in a thread."""

    def rewrite(self, job: Job) -> Rewritten:
        """Write one new log under its temporary name, synced. Raises NoRewriterError, or OSError if this job fails."""


Pace = Callable[[LogDirectory, int], int]
"""``pace(directory, left_bytes)``: limit of the next job in this directory, in bytes a second read and written together; 0: no
limit. ``left_bytes``: the backlog, with this job."""


def unlimited(directory: LogDirectory, left_bytes: int) -> int:
    """A ``Pace`` without a limit."""
    return 0


class Reclaimed(NamedTuple):
    """Result of a pass."""

    given_back: int
    """Bytes removed, less bytes written."""
    jobs: int
    """Finished jobs, including jobs whose last live entry went meanwhile."""
    left_bytes: int
    """Live bytes left to the next pass, without the failed jobs of this pass."""


class Reclaiming:
    """Returns space in the directories of one bookie. Owned by the loop, except the functions that its steps yield."""

    def __init__(self, file_system: FileSystem, holdings: Holdings, checkpoints: Checkpoints) -> None:
        self._file_system = file_system
        self._holdings = holdings
        self._ledgers = holdings.ledgers
        self._index = holdings.index
        self._checkpoints = checkpoints
        self._doomed: list[tuple[LogDirectory, StoredLog]] = []
        """Logs without rows, removed once a checkpoint without them is durable."""
        self.failures = 0
        """Failed jobs since the start."""
        self._failed: dict[int, int] = {}
        """Number of a log → number of its last job's failure."""
        self.garbage: Mapping[str, int] = {}
        """Dead bytes of sealed logs by directory, at the last look."""
        self.removed_bytes = self.rewritten_bytes = 0
        """Bytes of removed logs, and of their replacements, since the start."""

    def uses(self) -> Steps[list[LogUse]]:
        """Count the live bytes of each sealed log, without those that may have the last copy of an entry."""
        needed = yield from self._needed()
        sealed = [
            (directory, found)
            for directory in self._holdings.live
            if not directory.damaged and not directory.retired
            for found in directory.sealed
            if found.number not in needed and found not in directory.unread
        ]
        live = yield from live_bytes(self._index)
        uses = [LogUse(directory, found, live[found.number]) for directory, found in sealed]
        garbage: Counter[str] = Counter()
        for use in uses:
            garbage[use.directory.path] += max(0, use.log.end - use.live_bytes)
        self.garbage = garbage
        return uses

    def _needed(self) -> Steps[set[int]]:
        """Logs with copies noted as lost, of entries that are not back: their bytes may turn out to be good."""
        needed: set[int] = set()
        for count, ledger_id in enumerate(list(self._holdings.control.lost_copies), 1):
            if self._holdings.lacking(ledger_id):
                needed.update(map(log_of, self._holdings.control.lost_copies.get(ledger_id, ())))
            if count % _LEDGERS_A_STEP == 0:
                yield None
        return needed

    def reclaim(
        self,
        rewriter: Rewriter | None,
        threshold: float,
        job_bytes: int,
        pace: Pace,
        *,
        entry_logs: bool,
        below: int | None = None,
    ) -> Steps[Reclaimed]:
        """Make one pass over the sealed logs.

        ``rewriter``: None only removes dead logs. ``threshold`` (0 to 1), ``job_bytes``, ``entry_logs`` and ``below`` as in
        ``choose``. ``pace``: asked before each job."""
        uses = yield from self.uses()
        self._failed = {use.log.number: self._failed[use.log.number] for use in uses if use.log.number in self._failed}
        choice = choose(uses, threshold, job_bytes, entry_logs=entry_logs, below=below, failed=self._failed)
        given_back = jobs_done = 0
        self._doom(choice.dead)
        jobs = choice.jobs if rewriter is not None else []
        found = yield from spans(self._index, [use.log.number for sources in jobs for use in sources])
        left_bytes = choice.left_bytes + sum(map(live_bytes_of, jobs))
        for sources in jobs:
            assert rewriter is not None
            if sum(doomed.end for _, doomed in self._doomed) >= _REMOVE_BYTES:
                given_back += yield from self._remove()
            directory, live = sources[0].directory, live_bytes_of(sources)
            free_bytes = partial(self._file_system.free_bytes, directory.path)
            try:
                room: int = yield free_bytes
                if room < live:
                    given_back += yield from self._remove()
                    room = yield free_bytes
                if room < live:
                    log.warning("%s: %d bytes are free, too few for rewriting its logs", directory.path, room)
                    continue
                given_back -= yield from self._rewrite(rewriter, sources, found, pace(directory, left_bytes))
            except NoRewriterError as error:
                log.warning("no more logs are rewritten now: %s", error)
                break
            except OSError as error:
                numbers = [use.log.number for use in sources]
                names = ", ".join(f"{number:08x}" for number in numbers)
                log.warning("%s: these logs are not rewritten yet: %s: %s", directory.path, names, error)
                self.failures += 1
                self._failed |= dict.fromkeys(numbers, self.failures)
                continue
            left_bytes -= live
            jobs_done += 1
        given_back += yield from self._remove()
        return Reclaimed(given_back, jobs_done, 0 if rewriter is None else choice.left_bytes)

    # -- rewriting

    def _rewrite(
        self, rewriter: Rewriter, sources: list[LogUse], found: Mapping[int, Spans], bytes_per_second: int
    ) -> Steps[int]:
        """Write the live entries of ``sources`` into one new log; returns its size in bytes. ``found``: the spans of their
        rows."""
        directory = sources[0].directory
        numbers = frozenset(use.log.number for use in sources)
        rows, facts = yield from living(self._index, self._ledgers, numbers, found)
        made: RewrittenLog | None = None
        if rows.ledger_ids:
            number = self._holdings.take_log_number(directory)
            sealed = [SealedLog(use.log.number, use.log.path) for use in sources]
            job = Job(directory.path, number, sealed, rows.encode(), facts, bytes_per_second)
            try:
                rewritten: Rewritten = yield partial(rewriter.rewrite, job)
                yield from self._lose(rewritten.damaged)
                if rewritten.rows.ledger_ids:
                    yield partial(self._publish, directory.path, number)
                    made = RewrittenLog(directory.path, number, rewritten.size)
                else:
                    yield partial(self._discard, directory.path, number)
            except OSError:
                yield partial(self._discard, directory.path, number)
                raise
            if made is not None:
                directory.rewritten[number] = made
                self._holdings.logs[number] = (directory, made)
                self.rewritten_bytes += made.end
                yield from self._switch(numbers, rewritten.rows)
        needed = yield from self._needed()
        self._doom([use for use in sources if use.log.number not in needed])
        return 0 if made is None else made.end

    def _lose(self, damaged: Ranges) -> Steps[None]:
        """Lose the damaged batches of these rows. The loss is durable before any log is removed, as a checkpoint waits for
        it."""
        for ledger_id, found in groupby(zip(*damaged, strict=True), key=lambda row: row[0]):
            rows = list(found)
            _, first, _, number, position, _ = rows[0]
            log.error(
                "%d batches of ledger %d are damaged, the first one (entry %d) at byte %d of log %08x: they are lost here, and "
                "autorecovery copies them back; check the disk",
                len(rows),
                ledger_id,
                first,
                position,
                number,
            )
            wheres = [location(number, position) for _, _, _, number, position, _ in rows]
            yield from self._holdings.lose_all(ledger_id, wheres)

    def _publish(self, directory: str, number: int) -> None:
        path = rewritten_path(directory, number)
        self._file_system.rename(temporary_path(directory, number), path)
        self._file_system.sync_directory(path.rpartition("/")[0])

    def _discard(self, directory: str, number: int) -> None:
        for path in (temporary_path(directory, number), rewritten_path(directory, number)):
            # The file may be missing. If it stays, the next boot removes it.
            with contextlib.suppress(OSError):
                self._file_system.unlink(path)

    def _switch(self, sources: frozenset[int], moved: Ranges) -> Iterator[None]:
        for ledger_id, runs in _moves(moved):
            rows = self._index.changing(ledger_id)
            if rows is not None:
                rows.move(sources, runs)
            yield None

    # -- removing

    def _doom(self, uses: Sequence[LogUse]) -> None:
        for directory, found, _ in uses:
            if isinstance(found, EntryLog):
                directory.forget(found)
            else:
                del directory.rewritten[found.number]
            self._doomed.append((directory, found))
        if uses:
            self._checkpoints.outdated()

    def _remove(self) -> Steps[int]:
        """Remove the doomed logs of every directory with a checkpoint that omits them; returns their bytes."""
        doomed, removed = self._doomed, 0
        if not doomed:
            return 0
        prepared = yield from self._checkpoints.take()
        durable: set[str] = yield partial(self._checkpoints.write, prepared)
        durable = yield from self._note_removal(doomed, durable)
        self._doomed = [one for one in doomed if one[0].path not in durable]
        for directory, found in doomed:
            if directory.path not in durable:
                continue
            del self._holdings.logs[found.number]
            self._holdings.files.forget(found.number)
            try:
                yield partial(_unlink, self._file_system, found)
                removed += found.end
                self.removed_bytes += found.end
            except OSError as error:
                log.warning("%s can't be removed: %s; the next start tries again", found.path, error)
        return removed

    def _note_removal(self, doomed: Sequence[tuple[LogDirectory, StoredLog]], durable: set[str]) -> Steps[set[str]]:
        """Note the intended removal of logs. Returns the ``durable`` directories whose logs may go, by path. A full disk can't
        take the note, and gets room by the removal."""
        noted: dict[str, list[int]] = {path: [] for path in durable if any(one[0].path == path for one in doomed)}
        for directory in {one[0].path: one[0] for one in doomed if one[0].path in durable}.values():
            gone = [found.number for where, found in doomed if where is directory and isinstance(found, EntryLog)]
            directory.commit.submit(RemovalNote(gone, list(directory.rewritten), noted[directory.path].append))
        while not all(noted.values()):
            yield WAIT
        return {path for path, [status] in noted.items() if status in (Status.OK, Status.READ_ONLY)}


def _unlink(file_system: FileSystem, found: StoredLog) -> None:
    if isinstance(found, EntryLog):
        found.remove()
    else:
        found.remove(file_system)


def _moves(moved: Ranges) -> Iterator[tuple[int, list[Row]]]:
    """Neighbouring runs of one ledger, with few rows between them. A block's run alone is short enough."""
    runs: list[Row] = []
    before = -1
    for ledger_id, first, last, number, at, size in zip(*moved, strict=True):
        if runs and (ledger_id != before or last - runs[0].first >= _IDS_A_STEP):
            yield before, runs
            runs = []
        before = ledger_id
        runs.append(Row(first, last, location(number, at), size))
    if runs:
        yield before, runs

"""Getting space back: rewriting sealed logs, and removing logs in which nothing lives any more.

Law: nothing is removed before what replaces it is durable. A pass goes through these states. A crash in any of them leaves files
that the next boot or the next pass deals with::

    forget      ``garbage_collection`` has dropped deleted ledgers from the index
    rewrite     the new log is written under a temporary name and synced     crash: removed at boot
    publish     it is renamed, its directory synced                          crash: no checkpoint names it, removed at boot
    switch      the index points into it                                     crash: as before
    checkpoint  a checkpoint taken after all that is durable, and the
                control log notes that the old logs will go                  crash: the old logs hold nothing that lives; the
    remove      the old logs are unlinked                                           next pass removes them

The rows of the index say what is rewritten, and every row that points into a source is read and checked (``living``). So no
length that stands in a log is believed, and a log goes only when no row points into it. What can't be read is lost
(``Holdings.lose``): its absence is unknown from then on. A directory that is damaged is left alone. Only sealed logs are looked
at. Nothing is added to them, so what was counted dead stays dead. Which of them are rewritten is decided by ``choosing``. A job
that fails, for want of room or because of what its logs hold, ends no other job.

Source: docs/decisions/one-log.md; BookKeeper's ``GarbageCollectorThread`` and ``TransactionalEntryLogCompactor``.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple, Protocol

from bookspark.store.bookie.commit.commit_items import RemovalNote
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import FileSystem
from bookspark.store.bookie.disk.index import Row, location
from bookspark.store.bookie.disk.rewritten_log import RewrittenLog, rewritten_path, temporary_path
from bookspark.store.bookie.holdings.checkpointing import Checkpoints
from bookspark.store.bookie.holdings.holdings import Holdings, StoredLog
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.space.choosing import LogUse, choose
from bookspark.store.bookie.space.choosing import live_bytes as bytes_of
from bookspark.store.bookie.space.living import Spans, live_bytes, living, spans
from bookspark.store.bookie.space.rewriting import Job, NoRewriterError, Rewritten, SealedLog
from bookspark.store.bookie.steps import WAIT, Steps
from bookspark.store.wire.header import Status
from bookspark.store.wire.messages import Ranges

_IDS_A_STEP = 1 << 10
"""Between the first and the last entry that a step of ``_switch`` moves. A row of a single entry takes some 2 µs."""
_REMOVE_BYTES = 1 << 30
"""When logs of this size wait to be removed, a checkpoint is made for them before the pass ends."""

log = logging.getLogger(__name__)


class Rewriter(Protocol):
    """Does what ``rewriting`` does, in this process or in another one. Called in a thread."""

    def rewrite(self, job: Job) -> Rewritten:
        """Write one new log under its temporary name, synced. Raises NoRewriterError, or OSError if this job can't be done."""


Pace = Callable[[LogDirectory, int], int]
"""``pace(directory, left_bytes)``: what the next job, in this directory, may read and write together, in bytes a second; 0: no
limit. ``left_bytes`` are still to be rewritten, with this job's."""


def unlimited(directory: LogDirectory, left_bytes: int) -> int:
    """A ``Pace`` without a limit."""
    return 0


class Reclaimed(NamedTuple):
    """What a pass did."""

    given_back: int
    """Bytes that were removed, less those that were written."""
    jobs: int
    """How many new logs were made, or would have been if anything had lived any more."""
    left_bytes: int
    """How many live bytes the next pass is to rewrite, besides what this one failed to."""


class Reclaiming:
    """Gets space back in the directories of one bookie. Owned by the loop, except the functions that its steps yield."""

    def __init__(self, file_system: FileSystem, holdings: Holdings, checkpoints: Checkpoints) -> None:
        self._file_system = file_system
        self._holdings = holdings
        self._ledgers = holdings.ledgers
        self._index = holdings.index
        self._checkpoints = checkpoints
        self._doomed: list[tuple[LogDirectory, StoredLog]] = []
        """Logs that nothing points into any more. They are removed once a checkpoint without them is durable."""
        self.failures = 0
        """How many jobs failed since the start."""
        self._failed: dict[int, int] = {}
        """The logs whose last job failed, by number: which of all failures it was."""
        self.garbage: Mapping[str, int] = {}
        """Bytes of sealed logs that don't live any more, by directory, when it was looked last."""
        self.removed_bytes = self.rewritten_bytes = 0
        """Bytes of logs that were removed, and of logs that were written in their place, since the start."""

    def uses(self) -> Steps[list[LogUse]]:
        """Look through the index: how much of each sealed log is live."""
        sealed = [
            (directory, found)
            for directory in self._holdings.live
            if not directory.damaged and not directory.retired
            for found in directory.sealed
        ]
        live = yield from live_bytes(self._index)
        uses = [LogUse(directory, found, live[found.number]) for directory, found in sealed]
        garbage: Counter[str] = Counter()
        for use in uses:
            garbage[use.directory.path] += max(0, use.log.end - use.live_bytes)
        self.garbage = garbage
        return uses

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

        ``rewriter``: None rewrites nothing, and only dead logs are removed. ``threshold`` (0 to 1), ``job_bytes``, ``entry_logs``
        and ``below`` as in ``choosing.choose``. ``pace``: asked before each job.
        """
        uses = yield from self.uses()
        self._failed = {use.log.number: self._failed[use.log.number] for use in uses if use.log.number in self._failed}
        choice = choose(uses, threshold, job_bytes, entry_logs=entry_logs, below=below, failed=self._failed)
        given_back = jobs_done = 0
        self._doom(choice.dead)
        jobs = choice.jobs if rewriter is not None else []
        found = yield from spans(self._index, [use.log.number for sources in jobs for use in sources])
        left_bytes = choice.left_bytes + sum(map(bytes_of, jobs))
        for sources in jobs:
            assert rewriter is not None
            if sum(doomed.end for _, doomed in self._doomed) >= _REMOVE_BYTES:
                given_back += yield from self._remove()
            directory, live = sources[0].directory, bytes_of(sources)
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
        """Write what is live in ``sources`` into one new log; returns its size in bytes. ``found``: where it lies."""
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
        self._doom(sources)
        return 0 if made is None else made.end

    def _lose(self, damaged: Ranges) -> Steps[None]:
        """What these rows hold can't be read: it is not held any more. That is durable before any log is removed, as no
        checkpoint is written earlier."""
        for ledger_id, found in groupby(zip(*damaged, strict=True), key=lambda row: row[0]):
            rows = list(found)
            _, first, _, number, position, _ = rows[0]
            log.error(
                "%d batches of ledger %d can't be read, the first one (entry %d) at byte %d of log %08x: they are lost here, and "
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
        """Point the index into the new log, for what is still live."""
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
        """Remove the doomed logs of every directory that has a checkpoint without them; returns their bytes."""
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
        """Note which logs are removed on purpose. Returns the paths of those ``durable`` directories where they may go: a full
        disk has no room for the note, and gets some by the removal."""
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
    """Runs of one ledger that lie near each other, so that few rows lie between them. A block's run alone is short enough."""
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

"""Getting space back: rewriting sealed logs, and removing logs in which nothing lives any more.

Law: nothing is removed before what replaces it is durable. A pass goes through these states. A crash in any of them leaves files
that the next boot or the next pass deals with::

    forget      ``garbage_collection`` has dropped deleted ledgers from the index
    rewrite     the new log is written under a temporary name and synced     crash: removed at boot
    publish     it is renamed, its directory synced                          crash: no checkpoint names it, removed at boot
    switch      the index points into it                                     crash: as before
    checkpoint  a checkpoint taken after all that is durable                 crash: the old logs hold nothing that lives; the
    remove      the old logs are unlinked                                           next pass removes them

A log with a batch that can't be read is left alone, and so is a directory that is damaged: what its logs can't tell any more
stays unknown. Only sealed logs are looked at. Nothing is added to them, so what was counted dead stays dead. Which of them are
rewritten is decided by ``choosing``.

Source: docs/decisions/one-log.md; BookKeeper's ``GarbageCollectorThread`` and ``TransactionalEntryLogCompactor``.
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Protocol

from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.disk.file_system import FileSystem
from bookspark.bookie.disk.index import Row, location, log_of
from bookspark.bookie.disk.rewritten_log import RewrittenLog, rewritten_path, temporary_path
from bookspark.bookie.disk.steps import Steps
from bookspark.bookie.holdings.checkpointing import Checkpoints
from bookspark.bookie.holdings.holdings import Holdings, StoredLog
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.bookie.space.choosing import LogUse, choose
from bookspark.bookie.space.rewriting import DamagedLogError, Job, LedgerFacts, Rewritten, SealedLog
from bookspark.wire.messages import Ranges

_ROWS_A_STEP = 4096
_BATCHES_A_STEP = 256
_RUNS_A_STEP = 32
_REMOVE_BYTES = 1 << 30
"""When logs of this size wait to be removed, a checkpoint is made for them before the pass ends."""

log = logging.getLogger(__name__)


class Rewriter(Protocol):
    """Does what ``rewriting`` does, in this process or in another one. Called in a thread."""

    def batches_of(self, source: SealedLog) -> Ranges:
        """Every batch of a sealed log, one row each. Raises DamagedLogError, OSError."""

    def rewrite(self, job: Job) -> Rewritten:
        """Write one new log under its temporary name, synced. Raises DamagedLogError, OSError."""


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
        self._unreadable: set[int] = set()
        """Numbers of logs that have a damaged batch."""

    def uses(self) -> Steps[list[LogUse]]:
        """Look through the index: how much of each sealed log is live."""
        sealed = [
            (directory, found)
            for directory in self._holdings.live
            if not directory.damaged and not directory.retired
            for found in directory.sealed
            if found.number not in self._unreadable
        ]
        live: Counter[int] = Counter()
        counted = 0
        for ledger_id in self._index.ledger_ids():
            rows = self._index.of(ledger_id)
            for start in range(0, len(rows), _ROWS_A_STEP):
                before = -1
                wheres, extents = (column[start : start + _ROWS_A_STEP] for column in (rows.where, rows.extent))
                for where, extent in zip(wheres, extents, strict=True):
                    if where != before:
                        live[log_of(where)] += extent & 0xFFFFFFFF
                        before = where
                counted += len(wheres) + 1
                if counted >= _ROWS_A_STEP:
                    counted = 0
                    yield None
        return [LogUse(directory, found, live[found.number]) for directory, found in sealed]

    def reclaim(
        self, rewriter: Rewriter | None, threshold: float, job_bytes: int, bytes_per_second: int, *, entry_logs: bool
    ) -> Steps[int]:
        """Make one pass over the sealed logs; returns how many bytes were given back.

        ``rewriter``: None rewrites nothing, and only dead logs are removed. ``threshold`` (0 to 1), ``job_bytes`` and
        ``entry_logs`` as in ``choosing.choose``. ``bytes_per_second``: what rewriting may read and write together; 0: no limit.
        """
        choice = choose((yield from self.uses()), threshold, job_bytes, entry_logs=entry_logs)
        given_back = 0
        self._doom(choice.dead)
        for sources in choice.jobs if rewriter is not None else ():
            if self._doomed and sum(found.end for _, found in self._doomed) >= _REMOVE_BYTES:
                given_back += yield from self._remove()
            try:
                assert rewriter is not None
                given_back -= yield from self._rewrite(rewriter, sources, bytes_per_second)
            except DamagedLogError as damage:
                self._unreadable.add(damage.log)
                self._holdings.suspected.add(damage.log)
                log.error("log %08x is damaged at byte %d; it is not rewritten", damage.log, damage.position)
            except OSError as error:
                log.warning("no log was rewritten in %s: %s", sources[0].directory.path, error)
                break
        given_back += yield from self._remove()
        return given_back

    # -- rewriting

    def _rewrite(self, rewriter: Rewriter, sources: list[LogUse], bytes_per_second: int) -> Steps[int]:
        """Write what is live in ``sources`` into one new log; returns its size in bytes."""
        directory = sources[0].directory
        room = self._file_system.free_bytes(directory.path)
        if room < sum(use.live_bytes for use in sources):
            log.warning("%s: %d bytes are free, too few for rewriting its logs", directory.path, room)
            return 0
        number = self._holdings.take_log_number()
        sealed = [SealedLog(use.log.number, use.log.path, use.log.end) for use in sources]
        batches: list[Ranges] = []
        for source in sealed:
            batches.append((yield partial(rewriter.batches_of, source)))
        rows, facts = yield from self._living(batches)
        if rows.ledger_ids:
            job = Job(directory.path, number, sealed, rows.encode(), facts, bytes_per_second)
            try:
                rewritten: Rewritten = yield partial(rewriter.rewrite, job)
                yield partial(self._publish, directory.path, number)
            except (OSError, DamagedLogError):
                yield partial(self._discard, directory.path, number)
                raise
            made = RewrittenLog(directory.path, number, rewritten.size)
            directory.rewritten[number] = made
            self._holdings.logs[number] = (directory, made)
            yield from self._switch(frozenset(source.number for source in sealed), rewritten.rows)
            self._doom(sources)
            return rewritten.size
        self._doom(sources)
        return 0

    def _living(self, batches: Sequence[Ranges]) -> Steps[tuple[Ranges, dict[int, LedgerFacts]]]:
        """The parts of ``batches`` that the index points to, and what is known of their ledgers."""
        living = Ranges.empty()
        facts: dict[int, LedgerFacts] = {}
        count = 0
        for ledger_id, first, last, number, position, size in (
            row for found in batches for row in zip(*found, strict=True)
        ):
            count += 1
            if count % _BATCHES_A_STEP == 0:
                yield None
            rows, ledger = self._index.get(ledger_id), self._ledgers.get(ledger_id)
            if rows is None or ledger is None:
                continue
            where = location(number, position)
            for row in rows.covering(first, last):
                if row.where != where:
                    continue
                for column, value in zip(living, (ledger_id, row.first, row.last, number, position, size), strict=True):
                    column.append(value)
                if ledger_id not in facts:
                    facts[ledger_id] = LedgerFacts(
                        ledger.last_add_confirmed, ledger.last_add_fully_replicated, ledger.master_key or bytes(16)
                    )
        return living, facts

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
        for ledger_id, found in groupby(zip(*moved, strict=True), key=lambda row: row[0]):
            runs = [Row(first, last, location(number, at), size) for _, first, last, number, at, size in found]
            for start in range(0, len(runs), _RUNS_A_STEP):
                rows = self._index.get(ledger_id)
                if rows is not None:
                    rows.move(sources, runs[start : start + _RUNS_A_STEP])
                yield None

    # -- removing

    def _doom(self, uses: Sequence[LogUse]) -> None:
        for directory, found, _ in uses:
            if isinstance(found, EntryLog):
                directory.logs.remove(found)
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
        self._doomed = [one for one in doomed if one[0].path not in durable]
        for directory, found in doomed:
            if directory.path not in durable:
                continue
            del self._holdings.logs[found.number]
            self._holdings.files.forget(found.number)
            try:
                yield partial(_unlink, self._file_system, found)
                removed += found.end
            except OSError as error:
                log.warning("%s can't be removed: %s; the next start tries again", found.path, error)
        return removed


def _unlink(file_system: FileSystem, found: StoredLog) -> None:
    if isinstance(found, EntryLog):
        found.remove()
    else:
        found.remove(file_system)

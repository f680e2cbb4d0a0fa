"""An hour of steady appends and deleted ledgers on a bookie's disk, simulated in seconds.

Law: all deciding code is real: ``serving.maintenance`` with its works and intervals, collection against a metadata store, the
index, choosing, pacing, reclaiming, checkpoints. Two things are simulated. Time is a number that jumps to the next timer of the
event loop. Entries are rows of the index that point into logs without bytes; the rewriter answers with rows of the same sizes
(as if nothing compressed), after the time that the bytes take at the given rate, or at ``rewriting_bytes_per_second`` if that
is lower.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.index import location
from bookspark.store.bookie.disk.rewritten_log import temporary_path
from bookspark.store.bookie.serving.maintenance import Maintenance
from bookspark.store.bookie.space.reclaiming import live_bytes
from bookspark.store.bookie.space.rewriting import Job, Rewritten
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.messages import Ranges
from bookspark.testing.memory_files import MemoryFileSystem
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Stepped
from tests.store.metadata.kit import ledger

_HEAD_BYTES = 400


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer. Thread work runs at once and ends after the time it ``takes``."""

    def __init__(self) -> None:
        self.now = 0.0
        self.takes = 0.0
        """The duration of the running thread work in seconds, set by the work itself."""
        loop = self

        class Jumping(selectors.SelectSelector):
            def select(self, timeout: float | None = None) -> Any:
                assert timeout is not None, "nothing is due any more"
                loop.now += max(0.0, timeout)
                return super().select(0)

        super().__init__(Jumping())

    def time(self) -> float:
        return self.now

    def after(self, seconds: float) -> asyncio.Future[None]:
        """A future that completes after ``seconds`` of the clock."""
        due = self.create_future()
        self.call_later(seconds, due.set_result, None)
        return due

    def run_in_executor(self, executor: Any, function: Callable[..., Any], *arguments: Any) -> Any:
        done = self.create_future()
        self.takes = 0.0
        try:
            result = function(*arguments)
            self.call_later(self.takes, lambda: done.cancelled() or done.set_result(result))
        except Exception as error:
            done.set_exception(error)
        return done


class SteadyLoad:
    """Appends at a fixed byte rate: half to ledgers that live for a minute, half to longer-lived ledgers."""

    def __init__(
        self,
        bytes_per_second: int,
        frame_bytes: int,
        rewriting_bytes_per_second: int,
        seconds_of_the_rest: float,
        **options: Any,
    ) -> None:
        """To be created within ``stepped.without_threads``. ``seconds_of_the_rest``: the lifetime of the other half."""
        # The entries have no bytes, so a scrub would find none of them.
        self._config = config(Path("/disk"), scrub_interval_hours=0.0, **options)
        self._files = MemoryFileSystem("/disk")
        self._run = Stepped(self._config, self._files)
        self._metadata = MemoryStore()
        self._loop = SimulatedLoop()
        self._frames_per_second = bytes_per_second // frame_bytes
        self._frame_bytes = frame_bytes
        self._rewriting_bytes_per_second = rewriting_bytes_per_second
        self._lives = (60.0, seconds_of_the_rest)
        self._deaths: list[tuple[float, int]] = []
        self._log: EntryLog | None = None
        self.collections: list[float] = []
        """End times of collections, in seconds."""
        self.passes: list[float] = []
        """The duration of each pass, in seconds."""
        self.used: list[int] = []
        """Bytes of all logs, at the end of each second."""
        self.live: list[int] = []
        """Bytes of living ledgers among them."""
        self._live = 0
        self._sizes: dict[int, int] = {}

    def run(self, seconds: int) -> None:
        """Simulate this many seconds."""
        storage = self._run.storage
        maintenance = Maintenance(self._config, storage, "bookie-1", self._metadata, self, clock=self._loop.time)
        collect, reclaim = storage.garbage_collection.collect, storage.reclaiming.reclaim

        def timed_collect(*arguments: Any) -> Any:
            found = yield from collect(*arguments)
            self.collections.append(self._loop.now)
            return found

        def timed_reclaim(*arguments: Any, **options: Any) -> Any:
            started = self._loop.now
            found = yield from reclaim(*arguments, **options)
            self.passes.append(self._loop.now - started)
            return found

        storage.garbage_collection.collect = timed_collect
        storage.reclaiming.reclaim = timed_reclaim

        async def hour() -> None:
            maintenance.start()
            for second in range(seconds):
                self._append(second)
                await self._loop.after(1.0)
                self._run.commit()
                self.used.append(storage.status().log_bytes)
                self.live.append(self._live)
            await maintenance.stop()

        try:
            self._loop.run_until_complete(hour())
        finally:
            self._loop.close()

    def rewrite(self, job: Job) -> Rewritten:
        """Answer as ``rewriting.rewrite`` does, without bytes."""
        self._files.open(temporary_path(job.directory, job.number), create=True).close()
        rows, position = Ranges.empty(), _HEAD_BYTES
        for ledger_id, first, last, _, _, size in sorted(zip(*Ranges.decode(memoryview(job.rows)), strict=True)):
            rows.append((ledger_id, first, last, job.number, position, size))
            position += size
        rate = min(job.bytes_per_second or self._rewriting_bytes_per_second, self._rewriting_bytes_per_second)
        self._loop.takes = 2 * position / rate
        return Rewritten(rows, position, Ranges.empty())

    def _append(self, now: int) -> None:
        """Append one second's entries to two new ledgers in turn, and do the due deletions."""
        holdings = self._run.storage.holdings
        while self._deaths and self._deaths[0][0] <= now:
            dead = self._deaths.pop(0)[1]
            self._metadata.delete_ledger(dead)
            self._live -= self._sizes.pop(dead)
        ids = (2 * now, 2 * now + 1)
        for ledger_id, life in zip(ids, self._lives, strict=True):
            self._metadata.create_ledger(ledger(ledger_id))
            holdings.control.of(ledger_id)
            self._sizes[ledger_id] = 0
            self._deaths.append((now + life, ledger_id))
        self._deaths.sort()
        directory = holdings.live[0]
        for frame in range(self._frames_per_second):
            if self._log is None:
                self._log = EntryLog(self._files, "/disk", holdings.take_log_number(directory))
            ledger_id = ids[frame % 2]
            where = location(self._log.number, self._log.end)
            holdings.index.of(ledger_id).insert(frame // 2, frame // 2, where, self._frame_bytes)
            self._sizes[ledger_id] += self._frame_bytes
            self._live += self._frame_bytes
            self._log.end += self._frame_bytes
            if self._log.end >= self._config.entry_log_bytes_max:
                self._log.synced = self._log.end
                directory.logs.append(self._log)
                holdings.logs[self._log.number] = (directory, self._log)
                self._log = None

    @property
    def indexed(self) -> int:
        """The number of bytes that the index refers to."""
        steps = live_bytes(self._run.storage.holdings.index)
        try:
            while True:
                next(steps)
        except StopIteration as found:
            return sum(found.value.values())

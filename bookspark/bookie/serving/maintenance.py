"""What a bookie does beside serving: checkpoints, looks at its disks, garbage collection, rewriting of logs.

Law: no step holds up the loop for more than some milliseconds; a step that waits for a disk or for the metadata runs in a thread.
Two of these works never have the index at the same time (``disk.steps``). A failed work is logged and tried again when it is due
next, because serving depends on none of them.

A garbage collection comes at its interval, and at once when a directory is full (forced collection). A round of rewriting follows
it, in bounded passes (``space.pacing``). Rounds run beside the collections: a round that takes long holds up none of them, and is
merged with the next one. Forced collections, and passes that find nothing to do in a full directory, take no more than a tenth of
the time.

Source: BookKeeper's ``GarbageCollectorThread`` and ``LedgerDirsMonitor``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.disk.steps import Finished, Outcome, Steps, Wait, advance
from bookspark.bookie.holdings.log_directory import LogDirectory
from bookspark.bookie.space.pacing import Round, Rounds, rate
from bookspark.bookie.space.reclaiming import Rewriter
from bookspark.bookie.storage import Storage
from bookspark.metadata.store import MetadataStore

_WAIT_SECONDS = 0.005
_STOP_SECONDS_MAX = 10.0
_THREADS = 4
"""One for each work."""
_FORCED_PAUSE = 9.0
"""The pause after a forced collection or a pass that came to nothing, in multiples of the time that it took."""

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Maintenance:
    """The background works of one bookie. They are started and stopped on the loop. Without ``metadata`` nothing is collected,
    without a ``rewriter`` nothing is rewritten."""

    def __init__(
        self,
        config: BookieConfig,
        storage: Storage,
        metadata: MetadataStore | None,
        rewriter: Rewriter | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._storage = storage
        self._metadata = metadata
        self._rewriter = rewriter
        self._index = asyncio.Lock()
        self._full = asyncio.Event()
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bookie maintenance")
        self._tasks: list[asyncio.Task[None]] = []
        self._rounds = Rounds(config, clock())
        self._clock = clock
        self._round: Round | None = None
        """The round of rewriting that is not through."""
        self._round_begins = asyncio.Event()

    def start(self) -> None:
        """Begin all works, on the running loop."""
        works = (self._checkpoints(), self._disks(), self._collection(), self._rewriting())
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    async def stop(self) -> None:
        """End all works, wherever they are: a boot can deal with each state that they leave."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_SECONDS_MAX)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _checkpoints(self) -> None:
        while True:
            await asyncio.sleep(self._config.checkpoint_interval_seconds)
            await _tried("no checkpoint was made", self._checkpoint)

    async def _checkpoint(self) -> None:
        prepared = await self._drive(self._storage.checkpoint())
        await self._in_thread(lambda: self._storage.write_checkpoints(prepared))

    async def _disks(self) -> None:
        while True:
            await asyncio.sleep(self._config.disk_check_interval_seconds)
            await _tried("the disks could not be looked at", self._look_at_disks)

    async def _look_at_disks(self) -> None:
        disks = self._storage.disks
        for directory, used in await self._in_thread(disks.measure):
            await self._drive(disks.look(directory, used))
        if disks.any_full:
            self._full.set()

    async def _collection(self) -> None:
        due = self._clock() + self._config.gc_wait_time_seconds
        while True:
            try:
                await asyncio.wait_for(self._full.wait(), max(0.0, due - self._clock()))
            except TimeoutError:
                due = self._clock() + self._config.gc_wait_time_seconds
            forced = self._full.is_set()
            started, below = self._clock(), self._storage.holdings.next_log
            await _tried("the garbage collection did not finish", self._collect)
            following = self._rounds.begin(self._clock(), below, forced=forced)
            self._round = following if self._round is None else self._round.followed_by(following)
            self._round_begins.set()
            if forced:
                await asyncio.sleep(_FORCED_PAUSE * (self._clock() - started))
                self._full.clear()

    async def _collect(self) -> None:
        if self._metadata is not None:
            await self._drive(self._storage.garbage_collection.collect(self._metadata))

    async def _rewriting(self) -> None:
        while True:
            await self._round_begins.wait()
            self._round_begins.clear()
            while self._round is not None:
                await _tried("space was not reclaimed", self._pass)

    async def _pass(self) -> None:
        """One pass of the round. The round is through when nothing is left, or when nothing could be done."""
        config, disks, round_ = self._config, self._storage.disks, self._round
        assert round_ is not None
        started, more = self._clock(), False

        def pace(directory: LogDirectory, left_bytes: int) -> int:
            limit, seconds = config.compaction_rate_bytes_per_second, round_.until - self._clock()
            return rate(limit, left_bytes, seconds, nearly_full=disks.nearly_full(directory))

        try:
            steps = self._storage.reclaiming.reclaim(
                self._rewriter,
                round_.threshold if self._rewriter is not None else 0.0,
                config.entry_log_bytes_max,
                pace,
                entry_logs=config.rewrite_sealed_logs,
                below=round_.below,
            )
            reclaimed = await self._drive(steps)
            more = reclaimed.jobs > 0 and reclaimed.left_bytes > 0
        finally:
            if not more and self._round is round_:
                self._round = None
        if reclaimed.given_back > 0:
            log.info("%d bytes of disk space were freed", reclaimed.given_back)
        if round_.forced:
            await self._look_at_disks()
            if not reclaimed.jobs and reclaimed.given_back <= 0:
                await asyncio.sleep(_FORCED_PAUSE * (self._clock() - started))

    # -- carrying steps through

    async def _drive(self, steps: Steps[Result]) -> Result:
        """Carry ``steps`` through: on the loop, with their functions in a thread (``disk.steps``)."""
        outcome = Outcome()
        while True:
            async with self._index:
                while (need := advance(steps, outcome)) is None:
                    outcome = Outcome()
                    await asyncio.sleep(0)
            if isinstance(need, Finished):
                value: Result = need.result
                return value
            if isinstance(need, Wait):
                outcome = Outcome()
                await asyncio.sleep(_WAIT_SECONDS)
                continue
            try:
                outcome = Outcome(await self._in_thread(need))
            except Exception as error:
                outcome = Outcome(error=error)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


async def _tried(what: str, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception:
        log.exception("%s; it is tried again later", what)

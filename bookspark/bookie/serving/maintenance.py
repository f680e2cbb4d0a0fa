"""What a bookie does beside serving: checkpoints, looks at its disks, garbage collection, rewriting of logs, the scrub.

Law: no step holds up the loop for more than some milliseconds; a step that waits for a disk or for the metadata runs in a thread.
Two of these works never have the index at the same time (``disk.steps``). A failed work is logged and tried again when it is due
next, because serving depends on none of them.

A pass is a garbage collection and then a reclaiming of space. Passes come at their interval, and at once when a directory is full
(forced collection); forced passes take no more than a tenth of the time.

Source: BookKeeper's ``GarbageCollectorThread`` and ``LedgerDirsMonitor``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from bookspark.bookie.bookie_config import BookieConfig
from bookspark.bookie.disk.steps import Finished, Outcome, Steps, Wait, advance
from bookspark.bookie.holdings.reads import Piece
from bookspark.bookie.space.reclaiming import Rewriter
from bookspark.bookie.storage import Storage
from bookspark.metadata.store import MetadataStore
from bookspark.protocol.repair.audit_plan import mark_of_lacking

_WAIT_SECONDS = 0.005
_STOP_SECONDS_MAX = 10.0
_FORCED_PAUSE = 9.0
"""The pause after a forced pass, in multiples of the time that the pass took."""
_SCRUB_BYTES = 4 << 20
"""How much the scrub reads at once."""
_SCRUB_PAUSE = 1.0
_LOSSES_SECONDS = 1.0
_MARKS_AT_ONCE = 256

Result = TypeVar("Result")

log = logging.getLogger(__name__)


class Maintenance:
    """The background works of one bookie. They are started and stopped on the loop. Without ``metadata`` nothing is collected and
    nobody is told what was lost, without a ``rewriter`` nothing is rewritten."""

    def __init__(
        self,
        config: BookieConfig,
        storage: Storage,
        bookie_id: str,
        metadata: MetadataStore | None,
        rewriter: Rewriter | None,
    ) -> None:
        self._config = config
        self._storage = storage
        self._bookie_id = bookie_id
        self._metadata = metadata
        self._rewriter = rewriter
        self._index = asyncio.Lock()
        self._full = asyncio.Event()
        self._threads = ThreadPoolExecutor(3, thread_name_prefix="bookie maintenance")
        self._scrub_thread = ThreadPoolExecutor(1, thread_name_prefix="bookie scrub")
        self._tasks: list[asyncio.Task[None]] = []
        self._minor_at = time.monotonic() + config.minor_compaction_interval_seconds
        self._major_at = time.monotonic() + config.major_compaction_interval_seconds

    def start(self) -> None:
        """Begin all works, on the running loop."""
        works = (self._checkpoints(), self._disks(), self._collection(), self._scrub(), self._losses())
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]

    async def stop(self) -> None:
        """End all works, wherever they are: a boot can deal with each state that they leave."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_STOP_SECONDS_MAX)
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._scrub_thread.shutdown(wait=False, cancel_futures=True)

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
        due = time.monotonic() + self._config.gc_wait_time_seconds
        while True:
            try:
                await asyncio.wait_for(self._full.wait(), max(0.0, due - time.monotonic()))
            except TimeoutError:
                due = time.monotonic() + self._config.gc_wait_time_seconds
            forced = self._full.is_set()
            started = time.monotonic()
            await _tried("the garbage collection did not finish", lambda forced=forced: self._pass(forced))  # type: ignore[misc]
            if forced:
                await asyncio.sleep(_FORCED_PAUSE * (time.monotonic() - started))
                self._full.clear()

    async def _scrub(self) -> None:
        """Round after round. One that ends early waits until its period is over."""
        period = 3600 * self._config.scrub_interval_hours
        scrubbing = self._storage.scrubbing
        if not period:
            return
        await self._in_scrub_thread(scrubbing.load)
        while True:
            if not scrubbing.under_way:
                over = scrubbing.progress.began_ms / 1000 + period - time.time()
                if scrubbing.progress.began_ms and over > 0:
                    await self._pause_scrub(over, period)
                    continue
                scrubbing.begin(_now_ms())
            await _tried("the scrub could not go on", lambda: self._scrub_group(period))
            await asyncio.sleep(min(_SCRUB_PAUSE, period / 100))

    async def _scrub_group(self, period: float) -> None:
        """Scrub the next logs."""
        scrubbing, rate = self._storage.scrubbing, self._config.scrub_rate_bytes_per_second
        pieces, following = await self._drive(scrubbing.group())
        while pieces:
            begun = time.monotonic()
            check = partial(scrubbing.check, pieces, _SCRUB_BYTES)
            count, bad = await self._in_scrub_thread(check)
            done, pieces = pieces[:count], pieces[count:]
            scrubbing.checked(done, bad)
            taken = sum(piece.size for piece in done) / rate if rate else 0.0
            pace = max(taken - (time.monotonic() - begun), scrubbing.ahead_seconds(_now_ms(), period), 0.0)
            await self._pause_scrub(pace, period)
        scrubbing.end_group(following, _now_ms())
        await self._in_scrub_thread(scrubbing.save)

    async def _pause_scrub(self, seconds: float, period: float) -> None:
        """Wait, at most a period; meanwhile look at logs in which something unreadable was found."""
        scrubbing, until = self._storage.scrubbing, time.monotonic() + min(seconds, period)
        while True:
            if scrubbing.suspected:
                pieces = await self._drive(scrubbing.take_suspected())
                _, bad = await self._in_scrub_thread(partial(scrubbing.check, pieces, sum(map(_size, pieces))))
                scrubbing.checked((), bad)
            if (left := until - time.monotonic()) <= 0:
                return
            await asyncio.sleep(min(left, _SCRUB_PAUSE))

    async def _losses(self) -> None:
        while self._metadata is not None:
            await asyncio.sleep(_LOSSES_SECONDS)
            await _tried("it could not be told what was lost", self._tell_losses)

    async def _tell_losses(self) -> None:
        """Mark the ledgers that lost entries here, so that they are repaired."""
        while lacking := self._storage.lacking(_MARKS_AT_ONCE):
            marks = [mark_of_lacking(ledger_id, self._bookie_id, list(lost)) for ledger_id, lost in lacking if lost]
            assert self._metadata is not None
            try:
                await self._in_thread(partial(self._metadata.underreplication.mark, marks))
            except BaseException:
                self._storage.holdings.ledgers_lacking.update(ledger_id for ledger_id, _ in lacking)
                raise

    async def _pass(self, forced: bool) -> None:
        storage, config = self._storage, self._config
        if self._metadata is not None:
            await self._drive(storage.garbage_collection.collect(self._metadata))
        rewriter = self._rewriter
        threshold = self._threshold(time.monotonic(), forced) if rewriter is not None else 0.0
        steps = storage.reclaiming.reclaim(
            rewriter,
            threshold,
            config.entry_log_bytes_max,
            config.compaction_rate_bytes_per_second,
            entry_logs=config.rewrite_sealed_logs,
        )
        given_back = await self._drive(steps)
        if given_back:
            log.info("%d bytes of disk space were freed", given_back)
        if forced:
            await self._look_at_disks()

    def _threshold(self, now: float, forced: bool) -> float:
        """The threshold (0 to 1) of now: logs of which a smaller part is live are rewritten."""
        config = self._config
        if forced or now >= self._major_at:
            self._major_at = now + config.major_compaction_interval_seconds
            self._minor_at = now + config.minor_compaction_interval_seconds
            return config.major_compaction_threshold
        if now >= self._minor_at:
            self._minor_at = now + config.minor_compaction_interval_seconds
            return config.minor_compaction_threshold
        return 0.0

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

    async def _in_scrub_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._scrub_thread, function)

    async def _in_thread(self, function: Callable[[], Result]) -> Result:
        return await asyncio.get_running_loop().run_in_executor(self._threads, function)


def _size(piece: Piece) -> int:
    return piece.size


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


async def _tried(what: str, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception:
        log.exception("%s; it is tried again later", what)

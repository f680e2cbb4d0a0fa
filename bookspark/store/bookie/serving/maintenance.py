"""Maintenance of a serving bookie: checkpoints, checks of its disks, garbage collection, rewriting of logs, the scrub.

Law: no step blocks the loop for more than some milliseconds; a step that waits for a disk or for the metadata runs in a thread.
No two works use the index at the same time (``bookie.steps``). A failed work is logged and repeated when it is due next, because
serving depends on none of them.

A garbage collection runs at its interval, and at once for a full directory (forced collection) or on request. A forced
collection, one on request, and one before a major compaction also judges the copies that the metadata does not name, which takes
a read of each held ledger's record. A round of rewriting follows each collection, in bounded passes (``Rounds``). Rounds run
beside the collections: a long round delays none of them, and is merged with the next. Collections for a full directory, and
passes without success in one, take at most a tenth of the time.

Source: BookKeeper's ``GarbageCollectorThread`` and ``LedgerDirsMonitor``.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeVar

from bookspark.protocol.repair.audit_plan import mark_of_lacking
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.holdings.log_directory import LogDirectory
from bookspark.store.bookie.holdings.scrubbing import ROUND_PART, ToRead
from bookspark.store.bookie.space.garbage_collection import AskOthers
from bookspark.store.bookie.space.reclaiming import Rewriter
from bookspark.store.bookie.steps import Finished, Outcome, Steps, Wait, advance
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.metadata.store_clock import RENEW_SECONDS, StoreClock
from bookspark.store.wire.messages import CollectionStatus

log = logging.getLogger(__name__)


# -- Rounds of rewriting: their time, logs and rate
#
# Law: a round follows each garbage collection, and takes only logs begun before it: later logs hold entries that no collection
# has judged, and half of the copied bytes might be deleted a minute later. A round consists of bounded passes, and has half of
# the time between two collections. If the configured rate is too low for that, or the disk is nearly full, rewriting runs without
# a limit, so its backlog does not grow.
#
# Source: BookKeeper's minor and major compaction, and its ``compactionRateByBytes``.


_TIME_PART = 0.5
"""Fraction of the time between two collections for a round."""


class Round(NamedTuple):
    """Plan of the rewriting after one garbage collection."""

    threshold: float
    """Logs with a smaller live fraction (0 to 1) are rewritten."""
    below: int
    """Exclusive bound on the numbers of these logs."""
    until: float
    """Deadline, in seconds of a monotonic clock."""
    forced: bool

    def followed_by(self, following: Round) -> Round:
        """Merge this unfinished round into ``following``, which then also compacts the logs of this round."""
        threshold = max(self.threshold, following.threshold)
        return following._replace(threshold=threshold, forced=self.forced or following.forced)


class Rounds:
    """Due times of minor and major compactions, in seconds of a monotonic clock."""

    def __init__(self, config: BookieConfig, now: float) -> None:
        self._config = config
        self._minor_at = now + config.minor_compaction_interval_seconds
        self._major_at = now + config.major_compaction_interval_seconds

    def begin(self, now: float, below: int, *, forced: bool) -> Round:
        """The round after a collection that ends now. ``below``: number of the next log at the start of the collection."""
        until = now + _TIME_PART * self._config.gc_wait_time_seconds
        return Round(self._threshold(now, forced), below, until, forced)

    def is_major(self, now: float, *, forced: bool) -> bool:
        """Does a major compaction follow a collection that ends now?"""
        return forced or now >= self._major_at

    def _threshold(self, now: float, forced: bool) -> float:
        config = self._config
        if self.is_major(now, forced=forced):
            self._major_at = now + config.major_compaction_interval_seconds
            self._minor_at = now + config.minor_compaction_interval_seconds
            return config.major_compaction_threshold
        if now >= self._minor_at:
            self._minor_at = now + config.minor_compaction_interval_seconds
            return config.minor_compaction_threshold
        return 0.0


def rate(bytes_per_second: int, left_bytes: int, seconds: float, *, nearly_full: bool) -> int:
    """Limit of the next job, in bytes a second read and written together; 0: no limit. ``bytes_per_second``: the configured rate.
    ``left_bytes``: still to be read, and written again. ``seconds``: time left, negative after the deadline. ``nearly_full``: is
    the job's disk nearly full?"""
    behind = 2 * left_bytes > bytes_per_second * max(0.0, seconds)
    return 0 if nearly_full or behind else bytes_per_second


# -- The works


_WAIT_SECONDS = 0.005
_STOP_SECONDS_MAX = 10.0
_THREADS = 6
"""One for each work but the scrub."""
_FORCED_PAUSE = 9.0
"""Pause after a forced collection or a pass without success, in multiples of its time."""
_SCRUB_PAUSE = 1.0
_KEPT_FILES_PART = 0.01
"""Fraction of a scrub's period between two checks of the files beside the logs."""
_READ_AGAIN_SECONDS = 5.0
_LOSSES_SECONDS = 1.0
_MARKS_AT_ONCE = 256

Result = TypeVar("Result")


class _Tally:
    """Sums of collections and passes since the start of a round, with all rounds merged into it."""

    def __init__(self, began: float) -> None:
        self.began = began
        self.ledgers = self.copies = 0
        self.bytes_freed = 0
        self.problem = ""


class Maintenance:
    """The background works of one bookie, started and stopped on the loop. Without ``metadata`` there are no collections and no
    reports of losses, without a ``rewriter`` no rewriting."""

    def __init__(
        self,
        config: BookieConfig,
        storage: Storage,
        bookie_id: str,
        metadata: MetadataStore | None,
        rewriter: Rewriter | None,
        ask_others: Callable[[], AskOthers | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``ask_others``: None collects no copies that the metadata does not name."""
        self._config = config
        self._storage = storage
        self._bookie_id = bookie_id
        self._metadata = metadata
        self._ask_others = ask_others
        self._rewriter = rewriter
        self._index = asyncio.Lock()
        self._full = False
        """Was a directory full, with no collection for it since?"""
        self._wanted = asyncio.Event()
        """Set to start a collection now."""
        self._asked_for = asyncio.Event()
        """Set by a request for a collection."""
        self._begun = 0
        """Number of the last started collection."""
        self._asked = 0
        """Number of the last requested collection."""
        self._collected = 0
        """Number of the last finished collection. Its round may be unfinished."""
        self._tally = _Tally(clock())
        self.collection: CollectionStatus | None = None
        """The last collection with a finished round."""
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="bookie maintenance")
        self._scrub_thread = ThreadPoolExecutor(1, thread_name_prefix="bookie scrub")
        self._tasks: list[asyncio.Task[None]] = []
        self._rounds = Rounds(config, clock())
        self._clock = clock
        self._round: Round | None = None
        self._round_begins = asyncio.Event()
        self._kept_files_at = time.monotonic() + _KEPT_FILES_PART * 3600 * config.scrub_interval_hours

    def start(self) -> None:
        works = (
            self._checkpoints(),
            self._disks(),
            self._collection(),
            self._rewriting(),
            self._scrub(),
            self._read_again(),
            self._losses(),
            self._time(),
        )
        self._tasks = [asyncio.get_running_loop().create_task(work) for work in works]
        self._storage.holdings.carry_through = self._carry_through

    async def stop(self) -> None:
        """End all works, in any state: a boot can deal with each."""
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
        if disks.full and not self._full:
            self._full = True
            self._wanted.set()

    def collect_now(self) -> int:
        """Start a collection as soon as none runs; returns its number, for ``collection``."""
        self._asked = self._begun + 1
        self._asked_for.set()
        self._wanted.set()
        return self._asked

    async def _collection(self) -> None:
        due = self._clock() + self._config.gc_wait_time_seconds
        while True:
            try:
                await asyncio.wait_for(self._wanted.wait(), max(0.0, due - self._clock()))
            except TimeoutError:
                due = self._clock() + self._config.gc_wait_time_seconds
            self._wanted.clear()
            self._asked_for.clear()
            seconds = await self._collect(self._full or self._asked > self._begun)
            if self._full:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._asked_for.wait(), _FORCED_PAUSE * seconds)
                self._full = False

    async def _collect(self, forced: bool) -> float:
        """Collect, and start a round of rewriting; returns the seconds of the collection."""
        self._begun += 1
        started, below = self._clock(), self._storage.holdings.next_log
        ledgers, copies, problem = 0, 0, ""
        try:
            if self._metadata is not None:
                collection = self._storage.garbage_collection
                ledgers = await self._drive(collection.collect(self._metadata))
                problem = collection.kept
                if (ask := self._ask_others()) is not None and self._rounds.is_major(started, forced=forced):
                    copies = await self._drive(collection.collect_copies(self._metadata, self._bookie_id, ask))
        except Exception as error:
            log.exception("the garbage collection did not finish; it is tried again later")
            problem = f"{type(error).__name__}: {error}"
        if self._round is None:
            # The earlier round may have ended, and been reported, during this collection.
            self._tally = _Tally(started)
        self._tally.ledgers += ledgers
        self._tally.copies += copies
        self._tally.problem = problem or self._tally.problem
        self._collected = self._begun
        following = self._rounds.begin(self._clock(), below, forced=forced)
        self._round = following if self._round is None else self._round.followed_by(following)
        self._round_begins.set()
        return self._clock() - started

    async def _rewriting(self) -> None:
        while True:
            await self._round_begins.wait()
            self._round_begins.clear()
            while self._round is not None:
                await _tried("space was not reclaimed", self._pass)

    async def _pass(self) -> None:
        """Run a pass of the round. The round ends when nothing is left, or when a pass finished no job."""
        config, disks, round_, tally = self._config, self._storage.disks, self._round, self._tally
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
            tally.bytes_freed += reclaimed.given_back
            more = reclaimed.jobs > 0 and reclaimed.left_bytes > 0
        except Exception as error:
            tally.problem = f"{type(error).__name__}: {error}"
            raise
        finally:
            if not more and self._round is round_:
                self._round = None
                seconds = self._clock() - tally.began
                self.collection = CollectionStatus(
                    self._collected, tally.ledgers, tally.bytes_freed, seconds, tally.problem, tally.copies
                )
        if reclaimed.given_back > 0:
            log.info("%d bytes of disk space were freed", reclaimed.given_back)
        if round_.forced:
            await self._look_at_disks()
            if not reclaimed.jobs and reclaimed.given_back <= 0:
                with suppress(TimeoutError):
                    pause = _FORCED_PAUSE * (self._clock() - started)
                    await asyncio.wait_for(self._asked_for.wait(), pause)

    @property
    def store_clock(self) -> StoreClock | None:
        return None if self._metadata is None else self._metadata.clock

    async def _time(self) -> None:
        """Read the metadata store's time again and again, for the bookie's answers."""
        while self._metadata is not None:
            await _tried("the metadata store's time could not be read", self._read_time)
            await asyncio.sleep(RENEW_SECONDS)

    async def _read_time(self) -> None:
        if self._metadata is not None:
            await self._in_thread(self._metadata.clock.now_ms)

    def _now_ms(self) -> int:
        """The metadata store's time as far as it is known."""
        return time.time_ns() // 1_000_000 if self._metadata is None else self._metadata.clock.known_ms()

    async def _scrub(self) -> None:
        """Scrub round after round. An early round waits for the end of its period."""
        period = 3600 * self._config.scrub_interval_hours
        scrubbing = self._storage.scrubbing
        if not period:
            return
        await self._in_scrub_thread(scrubbing.load)
        # The times in its notes are compared with the metadata store's.
        await _tried("the metadata store's time could not be read", self._read_time)
        while True:
            scrubbing.set_right(self._now_ms(), period)
            if not scrubbing.under_way:
                over = (scrubbing.progress.began_ms - self._now_ms()) / 1000 + ROUND_PART * period
                if scrubbing.progress.began_ms and over > 0:
                    await _tried("the scrub could not wait", partial(self._pause_scrub, over, period))
                    await asyncio.sleep(min(_SCRUB_PAUSE, period / 100))
                    continue
                scrubbing.begin(self._now_ms())
            await _tried("the scrub could not go on", lambda: self._scrub_group(period))
            await asyncio.sleep(min(_SCRUB_PAUSE, period / 100))

    async def _scrub_group(self, period: float) -> None:
        """Scrub the next logs, then wait until the next group is due."""
        scrubbing = self._storage.scrubbing
        logs, following = await self._drive(scrubbing.group())
        await self._scrub_logs(logs)
        scrubbing.end_group(following, self._now_ms())
        await self._in_scrub_thread(scrubbing.save)
        # The pause follows the save, so that a bookie with many restarts gets on with its round too.
        await self._pause_scrub(scrubbing.ahead_seconds(self._now_ms(), period), period)

    async def _scrub_logs(self, logs: dict[int, ToRead]) -> None:
        """Read and check these logs, no faster than the rate."""
        scrubbing, rate = self._storage.scrubbing, self._config.scrub_rate_bytes_per_second
        for number in list(logs):
            looks = scrubbing.look(number, logs.pop(number))
            begun = time.monotonic()
            while (looked := await self._in_scrub_thread(partial(next, looks, None))) is not None:
                await self._drive(scrubbing.looked(number, looked))
                begun += looked.size / rate if rate else 0.0
                await asyncio.sleep(max(0.0, begun - time.monotonic()))

    async def _pause_scrub(self, seconds: float, period: float) -> None:
        """Wait, at most a period; meanwhile check logs with suspected damage, and the other files."""
        scrubbing, until = self._storage.scrubbing, time.monotonic() + min(seconds, period)
        while True:
            if scrubbing.suspected:
                await self._scrub_logs(await self._drive(scrubbing.take_suspected()))
            if (now := time.monotonic()) >= self._kept_files_at:
                self._kept_files_at = now + _KEPT_FILES_PART * period
                await _tried("not all files could be looked at", lambda: self._drive(self._storage.kept_files.look()))
            if (left := until - now) <= 0:
                return
            await asyncio.sleep(min(left, _SCRUB_PAUSE, _KEPT_FILES_PART * period))

    async def _read_again(self) -> None:
        """Read what the disks could not read once more, again and again."""
        while True:
            await asyncio.sleep(_READ_AGAIN_SECONDS)
            if self._storage.holdings.unread:
                await _tried(
                    "not all copies were read again", lambda: self._drive(self._storage.scrubbing.read_again())
                )

    async def _losses(self) -> None:
        while self._metadata is not None:
            await asyncio.sleep(_LOSSES_SECONDS)
            await _tried("it could not be told what was lost", self._tell_losses)

    async def _tell_losses(self) -> None:
        """Mark ledgers with entries lost here, so that they are repaired."""
        while lacking := self._storage.lacking(_MARKS_AT_ONCE):
            marks = [mark_of_lacking(ledger_id, self._bookie_id, list(lost)) for ledger_id, lost in lacking if lost]
            assert self._metadata is not None
            try:
                await self._in_thread(partial(self._metadata.underreplication.mark, marks))
            except BaseException:
                self._storage.holdings.ledgers_lacking.update(ledger_id for ledger_id, _ in lacking)
                raise

    # -- drivers of steps

    def _carry_through(self, steps: Steps[None]) -> None:
        work = _tried("background work did not end", partial(self._in_turns, steps))
        self._tasks = [task for task in self._tasks if not task.done()]
        self._tasks.append(asyncio.get_running_loop().create_task(work))

    @staticmethod
    async def _in_turns(steps: Steps[None]) -> None:
        """Run steps without exclusive use of the index: a request waits for them, and must not wait for a walk over the whole
        index."""
        for _ in steps:
            await asyncio.sleep(0)

    async def _drive(self, steps: Steps[Result]) -> Result:
        """Run ``steps`` on the loop, with their functions in a thread (``bookie.steps``)."""
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


async def _tried(what: str, work: Callable[[], Awaitable[None]]) -> None:
    try:
        await work()
    except Exception:
        log.exception("%s; it is tried again later", what)

"""Replacements for clocks, threads and bounds of the real code, for one schedule."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

from bookspark.logs import producer, producer_ledgers
from bookspark.logs.chain import committer, log_run, reader
from bookspark.logs.chain.log_run import LogRun
from bookspark.protocol.logs import ended_lanes, log_record
from bookspark.store.metadata.memory import memory_store
from bookspark.store.metadata.records import versioned
from bookspark.store.metadata.store_clock import StoreClock
from tests.histories.log_schedules.truth import Truth
from tests.histories.log_schedules.turns import Actor, Turns

STORE_MS = 1_700_000_000_000
"""The time of the metadata store at step 0, in ms since 1970."""


def small(random: Random, turns: Turns, truth: Truth, time_passes: bool) -> Any:
    """Small ledgers and chains, and clocks that jump."""
    chosen = [
        mock.patch.object(committer, "COMMITS_PER_LEDGER_MAX", random.choice([2, 5, 1000])),
        mock.patch.object(committer, "CHAIN_MAX", random.choice([1, 3, 64])),
        # A writer of a small ledger looks for a larger one at each turn.
        mock.patch.object(log_run, "LARGER_MS", 0),
        mock.patch.object(reader, "COMMITS_AT_ONCE", random.choice([1, 2, 8])),
        mock.patch.object(producer_ledgers, "LEDGER_BYTES_MAX", random.choice([1, 60, 1 << 30])),
        mock.patch.object(log_record, "BATCH_WRITE_MS_MAX", random.choice([20, 200, 86_400_000, 86_400_000])),
        mock.patch.object(ended_lanes, "BLOCK", random.choice([1, 2, 1000])),
        # The schedule decides who is late.
        mock.patch.object(versioned, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None)),
        mock.patch.object(memory_store, "time", SimpleNamespace(time_ns=lambda: (STORE_MS + turns.steps) * 1_000_000)),
    ]

    def clock() -> int:
        now_ms = STORE_MS + random.randrange(-5, 5) + (turns.steps if time_passes else 0)
        truth.now_ms = max(truth.now_ms, now_ms)
        return now_ms * 1_000_000

    if time_passes:
        # A writer removes rows whenever it tends its lane.
        chosen.append(mock.patch.object(committer, "RETENTION_SECONDS", 0.0))
    chosen += [mock.patch.object(module, "monotonic_ns", clock) for module in (producer, producer_ledgers)]
    chosen.append(mock.patch.object(committer, "time", SimpleNamespace(monotonic=lambda: 1e9)))
    # All logs are created in the same millisecond.
    told = {"ahead_ns": lambda _: 0, "known_ms": lambda _: STORE_MS}
    # Idle lanes end by the store's time.
    told["now_ms"] = lambda _: clock() // 1_000_000 if time_passes else STORE_MS + turns.steps
    chosen.append(mock.patch.multiple(StoreClock, **told))
    return All(chosen)


def notes_for_whom(made_for: dict[int, int]) -> Any:
    """Record the id of the log of each new ledger."""
    create = LogRun.create_ledger

    def noted(run: LogRun, *arguments: Any) -> Any:
        ledger = create(run, *arguments)
        made_for[ledger.ledger_id] = run.lane.log
        return ledger

    return mock.patch.object(LogRun, "create_ledger", noted)


class All:
    def __init__(self, entered: list[Any]) -> None:
        self._entered = entered

    def __enter__(self) -> None:
        for one in self._entered:
            one.__enter__()

    def __exit__(self, *error: object) -> None:
        for one in reversed(self._entered):
            one.__exit__(*error)


def threads_as_actors(turns: Turns) -> Any:
    """Threads started by the log code become actors of the same process, and waiting for them lets others run."""

    class Thread:
        def __init__(self, target: Callable[..., object], name: str, args: Any = (), daemon: bool = True) -> None:
            self._target, self._name, self._args = target, name, args
            self._actor: Actor | None = None

        def start(self) -> None:
            owner = turns.current
            process = None if owner is None else owner.process
            self._actor = turns.begin(self._name, partial(self._target, *self._args), process)

        def join(self, timeout: float | None = None) -> None:
            if self._actor is not None:
                turns.join(self._actor)

    class Lock:
        """An RLock."""

        def __init__(self) -> None:
            self._lock: Any = threading.RLock()
            self._is_owned, self.release = self._lock._is_owned, self._lock.release

        def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
            while not self._lock.acquire(False):
                if not blocking:
                    return False
                turns.step("waits for its turn")
            return True

        def __enter__(self) -> bool:
            return self.acquire()

        def __exit__(self, *error: object) -> None:
            self.release()

    class Waited(Future[Any]):
        def result(self, timeout: float | None = None) -> Any:
            while not self.done():
                turns.step("waits for what another thread makes")
            return super().result(0)

    def wait(futures: Sequence[Waited], seconds: float) -> None:
        for future in futures:
            with suppress(Exception):
                future.result(seconds)

    names = {name: getattr(threading, name) for name in dir(threading)}
    fake = SimpleNamespace(**names | {"Thread": Thread, "RLock": Lock})
    patches = [mock.patch.object(module, "threading", fake) for module in (producer, producer_ledgers)]
    patches += [
        mock.patch.object(producer_ledgers, "Future", Waited),
        mock.patch.object(producer_ledgers, "wait", wait),
    ]
    return All(patches)

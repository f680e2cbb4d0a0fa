"""The clocks of the test process."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from bookspark.logs import producer, producer_ledgers
from bookspark.store.metadata.memory.memory_store import World
from bookspark.store.metadata.store_clock import StoreClock

DAY_MS = 86_400_000


def keep_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the wall clock follow the steady clock from here on, even if the machine's clock is set: for tests that compare two of
    its times."""
    ahead_ns = time.time_ns() - time.monotonic_ns()

    def time_ns() -> int:
        return time.monotonic_ns() + ahead_ns

    monkeypatch.setattr(time, "time_ns", time_ns)
    monkeypatch.setattr(time, "time", lambda: time_ns() / 1e9)


@contextmanager
def wrong_clock(days: float) -> Iterator[None]:
    """Let the wall clock of this process be that many days ahead. The clocks of metadata stores stay right, also in memory. A
    session that has read its store's time before keeps that time: open another one."""
    now_ns, ahead_ns = time.time_ns, round(days * DAY_MS * 1e6)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "time_ns", lambda: now_ns() + ahead_ns)
        patched.setattr(time, "time", lambda: (now_ns() + ahead_ns) / 1e9)
        patched.setattr(World, "now_ms", lambda _: now_ns() // 1_000_000)
        yield


def show_time(monkeypatch: pytest.MonkeyPatch, now_ms: Callable[[], int]) -> None:
    """Let ``now_ms`` tell the cluster's time to this process, whatever its metadata store's clock and its own say."""
    monkeypatch.setattr(StoreClock, "ahead_ns", lambda _: 0)
    monkeypatch.setattr(StoreClock, "now_ms", lambda _: now_ms())
    monkeypatch.setattr(StoreClock, "known_ms", lambda _: now_ms())
    for module in (producer, producer_ledgers):
        monkeypatch.setattr(module, "monotonic_ns", lambda: now_ms() * 1_000_000)

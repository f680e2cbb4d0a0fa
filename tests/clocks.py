"""The wall clock of the test process, for tests that compare two of its times."""

from __future__ import annotations

import time

import pytest

from bookspark.logs import producer, producer_ledgers
from bookspark.store.metadata.autorecovery.underreplication_tasks import Underreplication


def keep_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the wall clock follow the steady clock from here on, even if the machine's clock is set."""
    ahead_ns = time.time_ns() - time.monotonic_ns()

    def time_ns() -> int:
        return time.monotonic_ns() + ahead_ns

    monkeypatch.setattr(time, "time_ns", time_ns)
    monkeypatch.setattr(time, "time", lambda: time_ns() / 1e9)
    monkeypatch.setattr(Underreplication.__init__, "__defaults__", (time.time, False))
    for module in (producer, producer_ledgers):
        monkeypatch.setattr(module, "time_ns", time_ns)

"""A writer over fewer bookies than wanted looks for a larger ledger, and waits little for the looks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import MetadataStoreError, NotEnoughBookiesError
from bookspark.logs import Committer, LogAddress, LogRegistry, LogRun
from bookspark.logs.chain import committer
from bookspark.logs.rows import data_ledgers
from bookspark.logs.rows.data_ledgers import DataLedger, RollPolicy
from bookspark.protocol.logs.commits import Commit
from bookspark.protocol.logs.log_options import LogOptions
from tests.spark.memory_bookkeeper import MemoryBookKeeper

OPTIONS = LogOptions(ensemble_size=3, write_quorum=2, ack_quorum=2)


class Clock:
    def __init__(self) -> None:
        self.seconds = self.waited = 0.0
        self.looks = 0

    def monotonic(self) -> float:
        return self.seconds


class FewBookies(MemoryBookKeeper):
    """Two bookies; a look at them waits ten seconds for ZooKeeper, while it is away."""

    zookeeper = "memory"

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self.clock, self.away = clock, False
        self.context = SimpleNamespace(possible_ensemble_size=self.possible)

    def create_ledger(self, **options: Any) -> Any:
        if options["ensemble_size"] > 2:
            raise NotEnoughBookiesError("there are two")
        return super().create_ledger(**options)

    def possible(self, ensemble_size: int, write_quorum: int) -> int:
        self.clock.looks += 1
        if self.away:
            self.clock.seconds += 10
            self.clock.waited += 10
            raise MetadataStoreError("no answer in 10 s")
        return min(2, ensemble_size)


def of_tasks(bookkeeper: Any, run: LogRun) -> Iterator[Callable[[], object]]:
    ledger = DataLedger(bookkeeper, run, OPTIONS, RollPolicy(seconds_max=1e9))
    ledger.handle()
    yield lambda: ledger.due
    ledger.close()


def of_commits(bookkeeper: Any, run: LogRun) -> Iterator[Callable[[], object]]:
    writer, numbers = Committer(bookkeeper, run), iter(range(1 << 20))
    yield lambda: writer.commit(Commit("q", next(numbers), run.run, run.epoch, (), 1))
    writer.close()


@pytest.mark.parametrize("of", [of_tasks, of_commits], ids=["data ledger", "commit ledger"])
def test_looks_for_a_larger_ledger_take_a_tenth_of_a_writers_time_while_zookeeper_is_away(
    of: Callable[[Any, LogRun], Iterator[Callable[[], object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five sixths, before: a look of ten seconds every two."""
    clock = Clock()
    for module in (committer, data_ledgers):
        monkeypatch.setattr(module, "time", clock)
    bookkeeper: Any = FewBookies(clock)
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure("orders", {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}, b"")
    run = LogRun.of(LogAddress("memory", "orders"), registry.claim("orders", "run"))
    appends = of(bookkeeper, run)
    append = next(appends)

    def appends_until(end: float) -> None:
        while clock.seconds < end:
            append()
            clock.seconds += 0.5

    appends_until(100)
    assert 45 <= clock.looks <= 50, "each two seconds"
    bookkeeper.away, began = True, clock.seconds
    appends_until(1100)
    assert 0 < clock.waited <= (clock.seconds - began) / 10 + 10
    bookkeeper.away, looks = False, clock.looks
    appends_until(1300)
    assert clock.looks > looks + 40
    next(appends, None)

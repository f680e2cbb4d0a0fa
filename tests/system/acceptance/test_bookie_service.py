"""The bookie service on real executors."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from bookspark import BookKeeper
from bookspark.errors import BookieError
from bookspark.servers.daemon.directories import read_cookie
from bookspark.servers.daemon.processes import Process
from bookspark.spark.bookies.bookie_service import BookieService
from bookspark.spark.short_jobs import QUICK_JVM
from tests.awaiting import SECONDS_MAX, await_that
from tests.spark.fixtures import OneSpark

pytestmark = pytest.mark.spark
SECONDS = 300.0


@pytest.fixture(scope="module")
def spark(one_spark: OneSpark) -> Iterator[SparkSession]:
    """Three executors of two slots each, as ``scripts/run`` starts them."""
    conf = {"spark.driver.extraJavaOptions": QUICK_JVM, "spark.executor.extraJavaOptions": QUICK_JVM}
    yield one_spark.other("bookie service tests", "local-cluster[3,2,1024]", **conf)
    one_spark.stop()


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return [tmp_path_factory.mktemp("disk1"), tmp_path_factory.mktemp("disk2")]


@pytest.fixture(scope="module")
def service(spark: SparkSession, roots: list[Path]) -> Iterator[BookieService]:
    # By default bookies wait a minute for the next task, which must start in a new executor, on a busy machine.
    service = BookieService(spark, bookies=3, directories=roots, lease_seconds=SECONDS)
    service.start(SECONDS)
    yield service
    service.stop(SECONDS)


@pytest.fixture(scope="module")
def bookkeeper(service: BookieService) -> Iterator[BookKeeper]:
    with BookKeeper(service.zookeeper) as bookkeeper:
        yield bookkeeper


class Writer:
    """Appends to a ledger with AQ 2 of 3 until stopped; keeps the acknowledged ids."""

    def __init__(self, bookkeeper: BookKeeper) -> None:
        self.ledger = bookkeeper.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=2)
        self.acked: list[int] = []
        self.failure: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def _write(self) -> None:
        try:
            while not self._stop.wait(0.005):
                self.acked.append(self.ledger.append(payload(len(self.acked))))
        except BaseException as failure:
            self.failure = failure

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(SECONDS_MAX)
        self.ledger.close()


def payload(entry_id: int) -> bytes:
    return b"entry %d of a ledger" % entry_id


def test_each_bookie_serves_under_one_task_and_queries_still_find_slots(
    service: BookieService, spark: SparkSession, roots: list[Path]
) -> None:
    assert len(service.bookies) == 3
    assert sorted(len(task.bookies) for task in service.executors.values()) == [1, 1, 1]
    for bookie in service.bookies.values():
        directories = [str(root / Path(bookie.home).name) for root in roots]
        assert bookie.home == directories[0] and os.getsid(bookie.pid) == bookie.pid
        assert [read_cookie(directory) for directory in directories].count(read_cookie(bookie.home)) == 2
    for task in service.executors.values():
        assert Path(f"/proc/{task.executor_pid}/exe").resolve().name == "java" and task.executor_id in "012"
    assert spark.sparkContext.parallelize(range(1000), 6).sum() == 499_500


def test_kill_9_of_an_executor_stops_neither_bookies_nor_a_writer(
    service: BookieService, bookkeeper: BookKeeper
) -> None:
    before = {bookie.bookie_id: (bookie.pid, bookie.address) for bookie in service.bookies.values()}
    incarnations = {name: found.incarnation for name, found in bookkeeper.metadata.bookies().items()}
    attempt = max(task.attempt for task in service.executors.values())
    lost = service.executors[1]
    writer = Writer(bookkeeper)
    await_that(lambda: len(writer.acked) >= 20, what="the writer's first appends")

    acked = len(writer.acked)
    os.kill(lost.executor_pid, signal.SIGKILL)

    def all_adopted() -> bool:
        tasks = service.executors.values()
        bookies = [bookie for task in tasks for bookie in task.bookies]
        return {task.attempt for task in tasks} == {attempt + 1} and [b.phase for b in bookies] == ["serving"] * 3

    await_that(all_adopted, what="adoption by the next attempt")
    adopted = len(writer.acked)
    await_that(lambda: len(writer.acked) >= adopted + 20, what="appends after the adoption")
    writer.stop()

    assert writer.failure is None
    assert adopted - acked >= 20, "acks went on meanwhile"
    assert {bookie.bookie_id: (bookie.pid, bookie.address) for bookie in service.bookies.values()} == before
    assert all(bookie.adopted and bookie.failures == 0 for bookie in service.bookies.values())
    assert {name: found.incarnation for name, found in bookkeeper.metadata.bookies().items()} == incarnations
    assert writer.acked == list(range(len(writer.acked)))
    reader = bookkeeper.open_ledger(writer.ledger.ledger_id)
    assert [entry.payload for entry in reader.read(0, len(writer.acked) - 1)] == list(
        map(payload, range(len(writer.acked)))
    )


def test_killed_bookie_is_restarted_in_place_with_its_acknowledged_entries(
    service: BookieService, bookkeeper: BookKeeper
) -> None:
    with bookkeeper.create_ledger(ensemble_size=3, write_quorum=3, ack_quorum=3) as ledger:
        ledger.append_batch([payload(k) for k in range(100)])
    victim = next(iter(service.bookies.values()))
    cookie = read_cookie(victim.home)
    os.kill(victim.pid, signal.SIGKILL)

    def restarted() -> bool:
        now = service.bookies[victim.bookie_id]
        return now.phase == "serving" and now.pid != victim.pid

    await_that(restarted, what="the restart")
    now = service.bookies[victim.bookie_id]
    assert (now.home, now.failures, now.adopted) == (victim.home, 1, False)
    assert read_cookie(victim.home) == cookie
    ranges = bookkeeper.list_ranges(victim.bookie_id).to_pylist()
    rows = [row for row in ranges if row["ledger_id"] == ledger.ledger_id]
    assert sum(row["last_entry_id"] - row["first_entry_id"] + 1 for row in rows) == 100


def test_stop_leaves_no_process_and_the_next_start_reuses_the_bookies(
    service: BookieService,
) -> None:
    identities = set(service.bookies)
    processes = [Process.of(bookie.pid) for bookie in service.bookies.values()]
    service.stop(SECONDS)
    assert not any(process is not None and process.alive for process in processes)
    with pytest.raises(BookieError, match="not started"):
        assert service.zookeeper
    service.start(SECONDS)
    assert set(service.bookies) == identities
    service.stop(SECONDS)

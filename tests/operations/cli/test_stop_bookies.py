"""``bookspark stop-bookies`` with tasks and bookies that exist only as records."""

from __future__ import annotations

import pytest

from bookspark.operations.cli.commands import bookies
from bookspark.spark.bookies.service_records import (
    BookieReport,
    ServiceRecord,
    TaskReport,
    read_service,
    write_service,
    write_task,
)
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.zookeeper import zookeeper_store
from tests.operations.cli.conftest import Run


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> MemoryStore:
    """The cluster's store, with a job that supervises ``bookie-a``."""
    store = MemoryStore()
    monkeypatch.setattr(zookeeper_store, "ZooKeeperStore", lambda _: store.another())
    write_service(store, "service", ServiceRecord("run"))
    write_task(store, "service", TaskReport("run", 0, 0, "h1", bookies=(BookieReport("/disk", bookie_id="bookie-a"),)))
    return store


def test_bookies_without_a_supervising_job_are_named(
    store: MemoryStore, bookspark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They keep serving; once, the command did not mention them."""
    for name in ("bookie-a", "bookie-b"):
        store.register_bookie(BookieRegistration(name, "h1:1", 1))
    # The bookie ends while the command waits.
    monkeypatch.setattr(bookies.time, "sleep", lambda _: store.unregister_bookie("bookie-a"))
    stopped = bookspark("stop-bookies", "--zookeeper", "h:1")
    assert stopped.status == 0, stopped.err
    assert "asked 1 bookie to stop" in stopped.err
    assert "not asked, because no job of Spark looks after them: bookie-b;" in stopped.err
    assert read_service(store, "service") == ServiceRecord("run", stop=True)


def test_bookies_still_registered_at_the_timeout_are_named(store: MemoryStore, bookspark: Run) -> None:
    store.register_bookie(BookieRegistration("bookie-a", "h1:1", 1))
    late = bookspark("stop-bookies", "--zookeeper", "h:1", "--timeout", "0")
    assert late.status == 2 and "still registered after 0 s: bookie-a" in late.err


def test_stop_bookies_without_a_job_is_an_error(bookspark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_store, "ZooKeeperStore", lambda _: MemoryStore())
    alone = bookspark("stop-bookies", "--zookeeper", "h:1")
    assert alone.status == 2 and "no job looks after bookies here" in alone.err


def test_bookie_whose_lease_another_process_holds_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bookie that runs in the foreground keeps serving; once, the command said after 90 s that its lease would lapse."""
    store = MemoryStore()
    store.register_bookie(BookieRegistration("bookie-a", "127.0.0.1:1", 1, "h", 1))
    write_service(store, "service", ServiceRecord("run"))
    mine = BookieReport("/d/bookie-1", "serving", "bookie-b", "127.0.0.1:2", 12)
    held = BookieReport(
        "/d/bookie-0", "restarting", "bookie-a", failures=2, problem="the lease is held by `bookspark …`"
    )
    write_task(store, "service", TaskReport("run", 0, 0, "h", bookies=(mine, held)))
    monkeypatch.setattr(zookeeper_store, "ZooKeeperStore", lambda zookeeper: store.another())
    bookies.stop_bookies("zk:2181", timeout=0.0)
    assert "asked 1 bookie to stop" in capsys.readouterr().err
    assert read_service(store, "service") == ServiceRecord("run", stop=True)

"""The replication worker over metadata in memory."""

from __future__ import annotations

from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.worker import ReplicationWorker
from bookspark.store.metadata.autorecovery.underreplication_tasks import Underreplication
from tests.awaiting import await_that
from tests.store.autorecovery.kit import Cluster


def test_unexpected_exception_does_not_end_the_replication_worker(caplog, monkeypatch) -> None:
    """The thread ended and the process stayed up: nothing was repaired until a restart."""
    cluster = Cluster()
    cluster.close_ledger(1)
    tasks = cluster.metadata.underreplication
    tasks.mark([Mark(1, {"a": Reason.LACKS})])
    listed = Underreplication.list_tasks
    monkeypatch.setattr(Underreplication, "list_tasks", lambda self: 1 / 0)
    config = AutorecoveryConfig(retry_seconds=0.01, retry_seconds_max=0.01, poll_seconds=0.05)
    worker = ReplicationWorker(cluster, config)  # type: ignore[arg-type]
    worker.start()
    try:
        await_that(lambda: "replication worker failed" in caplog.text)
        monkeypatch.setattr(Underreplication, "list_tasks", listed)
        await_that(lambda: tasks.task(1).attempts)
    finally:
        assert worker.stop()

"""Failures of BookKeeper's autorecovery: endless attempts at unrepairable ledgers, and useless work (docs/befell.md)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.errors import NotEnoughBookiesError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.worker import ReplicationWorker
from bookspark.store.metadata.autorecovery.underreplication_tasks import Underreplication
from tests.awaiting import await_that
from tests.store.autorecovery.kit import Cluster


class Unreachable:
    """Requests of which no bookie answers a read or a fetch; adds are never sent."""

    def __init__(self, asked: list[Any]) -> None:
        self._asked = asked

    def send(self, action: Any, put: Any) -> None:
        self._asked.append(action)
        assert isinstance(action, act.SendRead), "nothing is copied"
        put(
            act.ReadAnswered(
                action.bookie, action.first, action.first - 1, Unknown(UnknownReason.UNREACHABLE, "not registered")
            )
        )

    def read(self, action: Any, put: Any, limit: int) -> None:
        self.send(action, put)

    def fetch(self, target: str, action: Any, source: Any, first: int, answered: Any) -> None:
        why = Unknown(UnknownReason.UNREACHABLE, "not registered")
        answered(SimpleNamespace(response=why, header=None, body=b""))


class Repaired(Cluster):
    """A cluster with unreachable bookies; ``sent`` are the requests to them."""

    def __init__(self) -> None:
        super().__init__()
        self.sent: list[Any] = []
        self.context = SimpleNamespace(
            requests=lambda metadata, password: Unreachable(self.sent),
            answer_from_store=self._answer,
            bookies=lambda listed_seconds_ago_max: self.metadata.bookies(),
        )

    def _answer(self, metadata: LedgerMetadata, action: Any, listed_seconds_ago_max: float = 0.0) -> Any:
        if isinstance(action, act.ChooseBookies):
            others = sorted(self.metadata.bookies().keys() - set(action.ensemble))
            wanted = others[: len(action.replaced)]
            return act.BookiesChosen(tuple(wanted)) if wanted else act.NoBookies(NotEnoughBookiesError("none"))
        return act.MetadataRead(*self.metadata.read_ledger(metadata.ledger_id))

    def close_single(self, ledger_id: int, bookie: str) -> None:
        """A closed ledger of ten entries with a single copy."""
        fragments = (Fragment(0, (bookie,)),)
        self.metadata.create_ledger(LedgerMetadata(ledger_id, 1, 1, 1, fragments, LedgerState.CLOSED, 9, 100))


@contextmanager
def at_work(cluster: Cluster, **options: Any) -> Iterator[ReplicationWorker]:
    """A worker that repairs one ledger at a time."""
    settings = {"retry_seconds": 0.01, "retry_seconds_max": 3600.0, "poll_seconds": 0.02, "ledgers_at_once": 1}
    worker = ReplicationWorker(cluster, AutorecoveryConfig(**settings | options))  # type: ignore[arg-type]
    worker.start()
    try:
        yield worker
    finally:
        assert worker.stop()


def test_4872_attempts_at_an_only_copy_back_off_and_name_the_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    """BookKeeper #4872: a ledger with a single copy, on a bookie that is gone for good, cannot be repaired. Workers tried it
    again and again, which delayed repairable ledgers and hid the loss among log lines.

    Here the pause doubles with each attempt, the task names the entries and the reason, and the other ledgers are repaired."""
    cluster = Repaired()
    cluster.close_single(1, "gone")
    cluster.close_ledger(2)
    tasks = cluster.metadata.underreplication
    pauses: list[float] = []
    failed = Underreplication.failed

    def noting(self: Underreplication, taken: Any, why: str, pause: float, *missed: Any) -> None:
        pauses.append(pause)
        failed(self, taken, why, pause, *missed)

    monkeypatch.setattr(Underreplication, "failed", noting)
    tasks.mark([Mark(1, {"gone": Reason.LOST})])
    with at_work(cluster):
        first = await_that(lambda: (task := tasks.task(1)) and task.attempts >= 4 and task)
        tasks.mark([Mark(2, {"a": Reason.LOST})])
        await_that(lambda: tasks.task(2) is None)
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]
    (missed,) = first.missed
    assert (missed.first, missed.last) == (0, 9) and "not registered" in first.error
    assert not missed.lost, "the bookie may come back"
    assert cluster.metadata.read_ledger(1).value.last_fragment.ensemble == ("gone",)


@pytest.mark.parametrize("when", ["before it is begun", "while it is repaired"])
def test_3316_task_of_a_deleted_ledger_is_removed(when: str) -> None:
    """BookKeeper #3316: a ledger marked for repair was deleted. Workers could read nothing, took that for another failure,
    and started again, until an operator removed the task from ZooKeeper by hand."""
    cluster = Repaired()
    cluster.close_single(1, "gone")
    tasks = cluster.metadata.underreplication
    tasks.mark([Mark(1, {"gone": Reason.LOST})])
    if when == "before it is begun":
        cluster.metadata.delete_ledger(1)
    else:
        answer = cluster.context.answer_from_store

        def deleted(metadata: LedgerMetadata, action: Any, listed_seconds_ago_max: float = 0.0) -> Any:
            cluster.metadata.delete_ledger(1)
            return answer(metadata, action)

        cluster.context.answer_from_store = deleted
    with at_work(cluster) as worker:
        await_that(lambda: tasks.task(1) is None)
        assert worker.progress().failed == 0


def test_2766_returned_bookie_is_not_replaced_and_its_ledgers_are_not_copied() -> None:
    """BookKeeper #2766: bookies were away for a while, and all their ledgers were marked. After they returned with all their
    entries, the ledgers stayed marked and were copied to other bookies.

    Here a registered bookie is asked for its missing entries, whatever the mark says."""
    cluster = Repaired()
    for ledger_id in range(1, 21):
        cluster.close_ledger(ledger_id)
    tasks = cluster.metadata.underreplication
    tasks.mark([Mark(ledger_id, {"a": Reason.LOST, "b": Reason.LOST}) for ledger_id in range(1, 21)])
    with at_work(cluster):
        await_that(lambda: not tasks.list_tasks())
    assert cluster.sent == []
    for ledger_id in range(1, 21):
        assert cluster.metadata.read_ledger(ledger_id).value.last_fragment.ensemble == ("a", "b", "c")

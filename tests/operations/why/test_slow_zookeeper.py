"""A slow ZooKeeper delays each request, so independent requests are sent concurrently."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from bookspark.local import LocalCluster
from bookspark.operations.changes.looking import Looking
from bookspark.operations.why import gathering
from bookspark.operations.why.gathering import DEADLINES, gather
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.store.autorecovery.status import autorecovery_status
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.operations.why.slow_relay import SlowRelay

MEETING_SECONDS_MAX = 60.0


class Meeting:
    """Wrap calls so that the first run of each waits until all of them are under way."""

    def __init__(self, count):
        self._barrier = threading.Barrier(count)

    def waits(self, call):
        first = [True]

        def met(*arguments, **named):
            if first.pop() if first else False:
                self._barrier.wait(MEETING_SECONDS_MAX)
            return call(*arguments, **named)

        return met


def test_look_requests_ledgers_bookies_tasks_and_autorecovery_switch_concurrently(monkeypatch):
    store = MemoryStore()
    meeting = Meeting(4)
    tasks = store.underreplication
    for owner, name in ((store, "list_ledgers"), (store, "bookies"), (tasks, "list_tasks"), (tasks, "enabled")):
        monkeypatch.setattr(owner, name, meeting.waits(getattr(owner, name)))
    monkeypatch.setattr(MemoryStore, "underreplication", tasks)
    looking = Looking(SimpleNamespace(metadata=store))
    assert looking.look(at_once=True).autorecovery_enabled


def test_look_of_a_change_lists_bookies_after_ledgers():
    store, order = MemoryStore(), []
    for name in ("list_ledgers", "bookies"):
        call = getattr(store, name)
        setattr(store, name, lambda name=name, call=call: order.append(name) or call())
    Looking(SimpleNamespace(metadata=store)).look()
    assert order == ["list_ledgers", "bookies"]


def test_autorecovery_status_makes_its_seven_requests_concurrently(monkeypatch):
    store = MemoryStore()
    meeting = Meeting(7)
    tasks, auditors = store.underreplication, store.auditors
    calls = [(tasks, name) for name in ("progress", "holders", "enabled", "list_tasks")]
    calls += [(auditors, name) for name in ("state", "auditor", "last_check")]
    for owner, name in calls:
        monkeypatch.setattr(owner, name, meeting.waits(getattr(owner, name)))
    monkeypatch.setattr(MemoryStore, "underreplication", tasks)
    monkeypatch.setattr(MemoryStore, "auditors", auditors)
    assert autorecovery_status(store).enabled


@pytest.mark.parametrize(
    ("took", "reads", "slow"),
    [
        ([], 5, False),
        ([0.6, 0.7, 0.8], 0, True),
        ([0.6, 0.7], 3, False),
        ([0.6, 0.7, 0.1, 0.1], 1, False),
        ([0.1, 0.1, 0.1, 0.1, 9.0], 0, False),
    ],
)
def test_earlier_reads_count_towards_the_measured_zookeeper_latency(took, reads, slow):
    asked = []
    store = SimpleNamespace(underreplication=SimpleNamespace(enabled=lambda: asked.append(1)))
    assert (gathering._read_seconds(store, list(took)) > gathering.SLOW_ZOOKEEPER_SECONDS) is slow
    assert len(asked) == reads


def test_ledgers_in_recovery_follow_each_look():
    store = MemoryStore()
    for ledger_id, state in ((1, LedgerState.OPEN), (2, LedgerState.IN_RECOVERY)):
        store.create_ledger(LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, ("a", "b", "c")),), state))
    looking = Looking(SimpleNamespace(metadata=store))
    looking.look()
    assert (set(looking.open_ledgers), set(looking.in_recovery)) == ({1, 2}, {2})
    store.write_ledger(
        LedgerMetadata(2, 3, 3, 2, (Fragment(0, ("a", "b", "c")),), LedgerState.CLOSED, 9, 10),
        store.read_ledger(2).version,
    )
    looking.look()
    assert (set(looking.open_ledgers), set(looking.in_recovery)) == ({1}, set())
    store.delete_ledger(1)
    looking.look()
    assert (set(looking.open_ledgers), set(looking.in_recovery)) == (set(), set())


def test_reads_of_the_session_start_reveal_a_slow_zookeeper(chroot, monkeypatch):
    """A relay delays the answers. No extra read measures the latency: the reads of the session's start already do."""
    monkeypatch.setattr(gathering, "SLOW_ZOOKEEPER_SECONDS", 0.01)
    asked = []
    real = gathering._read_seconds
    monkeypatch.setattr(gathering, "_read_seconds", lambda store, took: asked.append(len(took)) or real(store, took))
    server, _, path = chroot.partition("/")
    with SlowRelay(server) as relay, LocalCluster(zookeeper=f"{relay.address}/{path}", bookies=1):
        relay.seconds = 0.01
        with BookKeeper(f"{relay.address}/{path}", **DEADLINES) as bookkeeper:
            facts = gather(bookkeeper)
            assert facts.zookeeper_problem == "" and facts.zookeeper_seconds > 0.01
            assert asked[0] >= 3
            gather(bookkeeper)
            assert asked[1] == 0, "a session that was there tells nothing of today"
        relay.seconds = 0.0

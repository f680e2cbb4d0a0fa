"""Watches on ledgers' metadata: no listener misses a change."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.runtime.runtime import LedgerWatches
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.awaiting import await_that
from tests.store.metadata.kit import EVENT_SECONDS, ledger


class Listener:
    def __init__(self):
        self.seen = []
        self.told = threading.Event()

    def changed(self, found):
        self.seen.append(found)
        self.told.set()


@pytest.fixture
def store():
    store = MemoryStore()
    store.create_ledger(ledger(1))
    yield store
    store.close()


def test_listener_hears_a_close_made_while_another_listener_sets_the_watch(store, monkeypatch):
    watches, first, second = LedgerWatches(store), Listener(), Listener()
    watch = store.watch_ledger

    def closed_before_it_is_watched(ledger_id, changed):
        watches.listen(1, second.changed)
        store.write_ledger(ledger(1).in_recovery().close_at(-1, 0), 0)
        watch(ledger_id, changed)

    monkeypatch.setattr(store, "watch_ledger", closed_before_it_is_watched)
    watches.listen(1, first.changed)
    assert second.told.wait(EVENT_SECONDS), "it relies on a watch that was set too late"
    assert second.seen[0].value.closed


def test_closed_ledger_is_no_longer_watched(store, monkeypatch):
    """Each tailed ledger left a watch in the client and in ZooKeeper until the ledger was deleted."""
    watches, listener, watched = LedgerWatches(store), Listener(), []
    watch = store.watch_ledger

    def watch_ledger(ledger_id, changed):
        watched.append(ledger_id)
        watch(ledger_id, changed)

    monkeypatch.setattr(store, "watch_ledger", watch_ledger)
    watches.listen(1, listener.changed)
    store.write_ledger(ledger(1).in_recovery(), 0)
    assert listener.told.wait(EVENT_SECONDS)
    listener.told.clear()
    store.write_ledger(ledger(1).in_recovery().close_at(-1, 0), 1)
    assert listener.told.wait(EVENT_SECONDS)
    assert listener.seen[-1].value.closed
    assert watched == [1, 1]


def test_listener_hears_a_change_made_while_the_next_watch_is_set(store, monkeypatch):
    watches, listener = LedgerWatches(store), Listener()
    watches.listen(1, listener.changed)
    watch = store.watch_ledger

    def closed_before_it_is_watched(ledger_id, changed):
        store.write_ledger(ledger(1).in_recovery().close_at(-1, 0), 1)
        watch(ledger_id, changed)

    monkeypatch.setattr(store, "watch_ledger", closed_before_it_is_watched)
    store.write_ledger(ledger(1).in_recovery(), 0)
    assert listener.told.wait(EVENT_SECONDS)
    assert listener.seen[0].value.closed


def test_listener_added_twice_is_registered_once(store):
    watches, listener = LedgerWatches(store), Listener()
    watches.listen(1, listener.changed)
    watches.listen(1, listener.changed)
    assert len(watches._listeners[1]) == 1


def test_handle_whose_watch_is_lost_at_once_watches_again():
    listened = []

    def listen(ledger_id, listener):
        listened.append(ledger_id)
        listener(None)

    handle = ReadHandle(
        SimpleNamespace(runtime=SimpleNamespace(ledger_watches=SimpleNamespace(listen=listen))), ledger(1), 0, b""
    )
    assert handle._watch() and handle._watch()
    assert listened == [1, 1]


def test_a_handle_that_could_not_listen_watches_again():
    def listen(ledger_id, listener):
        raise MetadataStoreError("no answer")

    handle = ReadHandle(
        SimpleNamespace(runtime=SimpleNamespace(ledger_watches=SimpleNamespace(listen=listen))), ledger(1), 0, b""
    )
    for _ in range(2):
        with pytest.raises(MetadataStoreError):
            handle._watch()


def test_failing_listener_does_not_stop_the_others(store, caplog):
    watches, other = LedgerWatches(store), Listener()

    class Broken(Listener):
        def changed(self, found):
            raise SystemExit("from a listener")

    broken = Broken()
    watches.listen(1, broken.changed)
    watches.listen(1, other.changed)
    store.write_ledger(ledger(1).in_recovery(), 0)
    assert other.told.wait(EVENT_SECONDS)
    assert "failed" in caplog.text


def test_interrupt_while_a_watch_is_set_leaves_the_ledger_unwatched(store, monkeypatch):
    """The next listener assumed that the ledger was watched, and heard of no change."""
    watches, first, second = LedgerWatches(store), Listener(), Listener()

    def interrupted(ledger_id, changed):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(store, "watch_ledger", interrupted)
        with pytest.raises(KeyboardInterrupt):
            watches.listen(1, first.changed)
    watches.listen(1, second.changed)
    store.write_ledger(ledger(1).in_recovery(), 0)
    assert second.told.wait(EVENT_SECONDS)


def test_garbage_collected_listeners_leave_a_single_watch_per_ledger(store, monkeypatch):
    watches, watched = LedgerWatches(store), []
    watch = store.watch_ledger

    def watch_ledger(ledger_id, changed):
        watched.append(ledger_id)
        watch(ledger_id, changed)

    monkeypatch.setattr(store, "watch_ledger", watch_ledger)
    for _ in range(5):
        watches.listen(1, Listener().changed)
        gc.collect()
    assert watched == [1]
    assert len(watches._listeners[1]) == 1
    store.write_ledger(ledger(1).in_recovery(), 0)
    await_that(lambda: not watches._listeners)
    assert watched == [1]

"""State shared by a client's threads changes only under a lock."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.free_space import FreeSpace
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.runtime import LedgerWatches
from bookspark.store.client.writing import futures
from bookspark.store.client.writing.futures import AppendFuture, Watermark
from bookspark.store.client.writing.ledger_handle import LedgerHandle, LedgerHandleAdv
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.locks import waits_for
from tests.store.client.unsent import unsent_context
from tests.store.metadata.kit import ledger

SECONDS = 60.0


class OneLock(ClientContext):
    """A context with a single lock instead of a lock per process."""

    _lock = threading.RLock()


CONTEXT_CALLS = {
    "runtime": lambda context: context.runtime.close(),
    "calls": lambda context: context.calls,
    "close": lambda context: context.close(),
}


@pytest.mark.parametrize("call", CONTEXT_CALLS.values(), ids=CONTEXT_CALLS)
def test_parts_of_a_client_are_made_and_closed_under_its_lock(call):
    context = OneLock(MemoryStore, ClientConfig())
    assert waits_for(context, "_lock", lambda: call(context))
    context.close()


def test_free_space_is_queried_under_a_lock():
    """Two concurrent placements queried each bookie twice."""
    space = FreeSpace(SimpleNamespace(), SimpleNamespace())
    assert waits_for(space, "_lock", lambda: space.of([]))


def test_handle_takes_new_records_under_a_lock():
    """Without the lock, the older of two concurrent records might stay."""
    store = MemoryStore()
    store.create_ledger(ledger(1))
    found = store.read_ledger(1)
    reader = ReadHandle(SimpleNamespace(), *found, b"")
    assert waits_for(reader, "_learning", lambda: reader._learn(found))


class Listener:
    def changed(self, found):
        """Ignore the change."""


WATCH_CALLS = {
    "listen": lambda watches, listener: watches.listen(1, listener.changed),
    "changed": lambda watches, listener: watches._changed(1),
    "take all": lambda watches, listener: watches._take_all(1),
}


@pytest.mark.parametrize("call", WATCH_CALLS.values(), ids=WATCH_CALLS)
def test_listeners_are_added_and_removed_under_a_lock(call):
    """A listener added while others are removed might be forgotten, and hear of no change."""
    store, listener = MemoryStore(), Listener()
    store.create_ledger(ledger(1))
    watches, first = LedgerWatches(store), Listener()
    watches.listen(1, first.changed)
    assert waits_for(watches, "_lock", lambda: call(watches, listener))


# -- appends


APPENDS = {
    "one": lambda handle: handle.append_async(b"x"),
    "a batch": lambda handle: handle.append_batch_async([b"x", b"y"]),
    "of a sole appender": lambda handle: handle.sole_appender().append(b"x"),
    "under an id": lambda handle: handle.append_at_async(0, b"x"),
}


@pytest.mark.parametrize("append", APPENDS.values(), ids=APPENDS)
def test_append_takes_its_id_and_counts_its_bytes_under_a_lock(append):
    context = unsent_context()
    handle = (LedgerHandleAdv if append is APPENDS["under an id"] else LedgerHandle)(context, ledger(1), 0, b"")
    assert waits_for(context.runtime.room, "lock", lambda: append(handle))
    assert (context.runtime.room.held, handle.last_add_pushed) in ((1, 0), (2, 1))
    handle._driver.ended.set()


# -- futures


def test_condition_of_a_future_is_made_under_a_lock():
    """With two conditions for a future, the first watcher waited at a condition that was never notified."""
    future = AppendFuture(Watermark(), 0)
    assert waits_for(futures, "_watching", lambda: future._condition)


def test_watchers_are_notified_under_the_futures_lock():
    watermark = Watermark()
    future = AppendFuture(watermark, 0)
    watched = future._watched()
    watermark.advance(0)
    assert waits_for(watched, "condition", lambda: future._tell_watchers(watched))

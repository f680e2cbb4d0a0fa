"""A reader that waits for the next entry, while the metadata store answers or does not."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.errors import MetadataStoreError, NoSuchLedgerError, ReadError, UnauthorizedAccessError
from bookspark.protocol.ledger.actions import LacAnswered
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.client.bookkeeper import open_without_recovery
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.reading import read_handle
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.runtime.runtime import LedgerWatches
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.short_waits import patience_seconds
from bookspark.store.wire.digests import master_key
from tests.store.metadata.kit import EVENT_SECONDS, ledger


class Store(MemoryStore):
    """Does not answer while it is down."""

    down = False

    def read_ledger(self, ledger_id):
        self.check()
        return super().read_ledger(ledger_id)

    def watch_ledger(self, ledger_id, changed):
        self.check()
        super().watch_ledger(ledger_id, changed)

    def check(self):
        if self.down:
            raise MetadataStoreError("no answer from ZooKeeper")


class Bookies:
    """Requests of which each is answered with what ``asked`` tells of the entry: its LAC and the entry, or nothing yet."""

    def __init__(self, asked):
        self.asked = asked

    def read_lac(self, action, put, wait_seconds=0.0):
        told = self.asked()
        if told is not None:
            entry = SimpleNamespace(entry=lambda entry_id: f"e{entry_id}")
            put(LacAnswered(action.bookie, Positive(), told, -1, [entry]))


@pytest.fixture
def store():
    store = Store()
    store.create_ledger(ledger(1))
    yield store
    store.down = False
    store.close()


def opened(store, asked=lambda: None):
    context = SimpleNamespace(
        store=store,
        runtime=SimpleNamespace(ledger_watches=LedgerWatches(store)),
        requests=lambda metadata, password: Bookies(asked),
    )
    return ReadHandle(context, *store.read_ledger(1), b"")


def test_an_entry_is_heard_of_although_the_metadata_store_does_not_answer(store):
    reader = opened(store, lambda: 0)
    store.down = True
    assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (0, "e0")


def test_a_reader_with_proof_of_an_entry_asks_no_bookie_and_watches_nothing(store, monkeypatch):
    """Each piece of a log's plan cost a second question to ZooKeeper and one to each bookie of the ledger."""
    monkeypatch.setattr(store, "watch_ledger", lambda *_: pytest.fail("watched"))
    reads, read = [], store.read_ledger
    monkeypatch.setattr(store, "read_ledger", lambda ledger_id: (reads.append(ledger_id), read(ledger_id))[1])
    context = SimpleNamespace(store=store, requests=lambda *_: pytest.fail("asked"))
    store.create_ledger(ledger(2, master_key=master_key(b"right")))
    reader = open_without_recovery(context, 2, b"right", confirmed=7)
    assert (reader.last_add_confirmed, reads) == (7, [2])
    with pytest.raises(ReadError, match="entry 8 is beyond the last confirmed one, 7"):
        reader.read(0, 8)
    with pytest.raises(UnauthorizedAccessError):
        open_without_recovery(context, 2, b"wrong", confirmed=7)


def test_the_lac_is_read_although_the_metadata_store_does_not_answer(store):
    """Each read waited for the store's deadline, and failed."""
    reader = opened(store, lambda: 7)
    reader._context.config = ClientConfig()
    store.down = True
    assert reader.read_last_add_confirmed() == 7
    store.down = False
    store.write_ledger(ledger(1).in_recovery().close_at(9, 90), 0)
    reader._follow_at = 0.0
    assert reader.read_last_add_confirmed() == 9


def test_a_metadata_store_that_does_not_answer_is_waited_for_seldom_and_not_long(store, monkeypatch):
    """Each wait holds up a reader. A store that is merely slow is followed nevertheless."""
    waits, now = [], [1000.0]
    reader = opened(store)

    def check():
        waits.append((now[0] - 1000.0, patience_seconds()))
        raise MetadataStoreError("no answer from ZooKeeper")

    monkeypatch.setattr(store, "check", check)
    monkeypatch.setattr(read_handle, "time", SimpleNamespace(monotonic=lambda: now[0]))
    while now[0] < 1035.0:
        assert not reader._follow()
        now[0] += 0.5
    assert waits == [(0.0, 1.0), (2.5, 0.25), (7.5, 0.5), (17.5, 1.0), (27.5, 1.0)]


def test_a_long_poll_goes_on_when_its_watch_is_lost_with_the_metadata_store(store):
    def asked():
        if not store.down:
            store.down = True
            reader._metadata_changed(None)
        return 0

    reader = opened(store, asked)
    assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (0, "e0")


def test_a_long_poll_goes_over_to_new_bookies_before_its_watch_tells_of_them(store, monkeypatch):
    """The connections to those that died end at once; the metadata store may take its time."""
    monkeypatch.setattr(store, "watch_ledger", lambda ledger_id, changed: None)
    new = ("bookie-4", "bookie-5", "bookie-6")

    def read_lac(self, action, put, wait_seconds):
        if action.bookie in new:
            read_lac_of_new(self, action, put, wait_seconds)
        else:
            if store.read_ledger(1).version == 0:
                store.write_ledger(ledger(1).with_ensemble(0, new), 0)
            put(LacAnswered(action.bookie, Unknown(UnknownReason.UNREACHABLE), -1, -1, []))

    read_lac_of_new = Bookies.read_lac
    monkeypatch.setattr(Bookies, "read_lac", read_lac)
    reader = opened(store, lambda: 0)
    assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (0, "e0")


def test_a_close_is_heard_of_once_the_metadata_store_answers_again(store, monkeypatch):
    monkeypatch.setattr(read_handle, "UNFOLLOWED_SECONDS", 0.0)

    def asked():
        if store.down:
            store.down = False
            store.write_ledger(ledger(1).in_recovery().close_at(-1, 0), 0)

    reader = opened(store, asked)
    store.down = True
    assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (-1, None)
    assert reader.metadata.closed


def test_a_ledger_that_was_deleted_is_not_waited_for(store):
    reader = opened(store)
    store.delete_ledger(1)
    with pytest.raises(NoSuchLedgerError):
        reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS)

"""A reader that waits for the next entry while the metadata store answers or is silent."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.errors import MetadataStoreError, NoSuchLedgerError, ReadError, UnauthorizedAccessError
from bookspark.protocol.ledger.actions import LacAnswered
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.store.client import BookKeeper
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.reading import read_handle
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.runtime.runtime import LedgerWatches
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.short_waits import patience_seconds
from bookspark.store.wire.digests import master_key
from bookspark.support.threads import Latch, end_of_polls, polls_end_with
from tests.store.metadata.kit import EVENT_SECONDS, ledger


class Store(MemoryStore):
    """A store that does not answer while it is down."""

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
    """Requests answered with the LAC (last-add-confirmed) that ``asked`` returns, and the entry; None: no answer yet."""

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


def test_long_poll_returns_its_entry_while_the_metadata_store_is_down(store):
    reader = opened(store, lambda: 0)
    store.down = True
    assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (0, "e0")


def test_long_poll_ends_when_its_caller_has_other_news(store):
    reader, news = opened(store, lambda: news.set()), Latch()
    with polls_end_with(news):
        assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (-1, None)
        assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (-1, None)
    assert not end_of_polls().is_set() and not reader._polls


def test_reader_opened_with_a_known_lac_sends_no_request_and_sets_no_watch(store, monkeypatch):
    """Each ledger in the plan of a log's read cost a second request to ZooKeeper and a request to each of its bookies."""
    monkeypatch.setattr(store, "watch_ledger", lambda *_: pytest.fail("watched"))
    reads, read = [], store.read_ledger
    monkeypatch.setattr(store, "read_ledger", lambda ledger_id: (reads.append(ledger_id), read(ledger_id))[1])
    client = BookKeeper("memory:1")
    client.context = SimpleNamespace(store=store, requests=lambda *_: pytest.fail("asked"))
    store.create_ledger(ledger(2, master_key=master_key(b"right")))
    reader = client.open_ledger_no_recovery(2, b"right", confirmed=7)
    assert (reader.last_add_confirmed, reads) == (7, [2])
    with pytest.raises(ReadError, match="entry 8 is beyond the last confirmed one, 7"):
        reader.read(0, 8)
    with pytest.raises(UnauthorizedAccessError):
        client.open_ledger_no_recovery(2, b"wrong", confirmed=7)


def test_lac_is_read_while_the_metadata_store_is_down(store):
    """Each read waited for the store's deadline, and failed."""
    reader = opened(store, lambda: 7)
    reader._context.config = ClientConfig()
    store.down = True
    assert reader.read_last_add_confirmed() == 7
    store.down = False
    store.write_ledger(ledger(1).in_recovery().close_at(9, 90), 0)
    reader._follow_at = 0.0
    assert reader.read_last_add_confirmed() == 9


def test_reader_waits_rarely_and_briefly_for_a_silent_metadata_store(store, monkeypatch):
    """Each wait delays a reader. A merely slow store is still followed."""
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


def test_long_poll_continues_when_its_watch_is_lost_with_the_metadata_store(store):
    def asked():
        if not store.down:
            store.down = True
            reader._metadata_changed(None)
        return 0

    reader = opened(store, asked)
    assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (0, "e0")


def test_long_poll_moves_to_replacement_bookies_before_its_watch_fires(store, monkeypatch):
    """Connections to dead bookies end at once, but the metadata store may be slow."""
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


def test_long_poll_sees_a_close_when_the_metadata_store_answers_again(store, monkeypatch):
    monkeypatch.setattr(read_handle, "UNFOLLOWED_SECONDS", 0.0)

    def asked():
        if store.down:
            store.down = False
            store.write_ledger(ledger(1).in_recovery().close_at(-1, 0), 0)

    reader = opened(store, asked)
    store.down = True
    assert reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS) == (-1, None)
    assert reader.metadata.closed


def test_long_poll_on_a_deleted_ledger_raises(store):
    reader = opened(store)
    store.delete_ledger(1)
    with pytest.raises(NoSuchLedgerError):
        reader.read_last_add_confirmed_and_entry(0, timeout=EVENT_SECONDS)

"""The public API over real bookies, without faults."""

from __future__ import annotations

import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from bookspark import DigestType, LedgerState, errors
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX
from tests.awaiting import SECONDS_MAX, await_that


@pytest.fixture
def ledger(bookkeeper):
    with bookkeeper.create_ledger() as handle:
        yield handle


def payloads_of(reader):
    return [entry.payload for entry in reader.read()]


def test_appended_entries_are_read_back_after_close(bookkeeper):
    ledger = bookkeeper.create_ledger()
    payloads = [b"", b"one", b"x" * 100_000, "zwölf".encode()]
    assert [ledger.append(payload) for payload in payloads] == [0, 1, 2, 3]
    ledger.close()
    reader = bookkeeper.open_ledger(ledger.ledger_id)
    entries = list(reader.read())
    assert [entry.payload for entry in entries] == payloads
    assert [entry.entry_id for entry in entries] == [0, 1, 2, 3]
    assert [entry.length for entry in entries] == [0, 3, 100_003, 100_009]
    assert reader.metadata.state is LedgerState.CLOSED
    assert (reader.metadata.last_entry_id, reader.metadata.length) == (3, 100_009)


def test_an_empty_ledger_closes_at_minus_one(bookkeeper, ledger):
    ledger.close()
    ledger.close()
    reader = bookkeeper.open_ledger(ledger.ledger_id)
    assert (reader.last_add_confirmed, list(reader.read())) == (-1, [])
    assert reader.read_batches().read_all().num_rows == 0


def test_many_appends_in_flight_are_acknowledged_with_their_callbacks(bookkeeper, ledger):
    done = []
    futures = [ledger.append_async(b"%d" % i) for i in range(5000)]
    for future in futures:
        future.add_done_callback(lambda f: done.append(f.entry_id))
    assert [future.result(SECONDS_MAX) for future in futures] == list(range(5000))
    assert all(future.done() for future in futures)
    assert ledger.last_add_confirmed == 4999
    ledger.close()
    await_that(lambda: len(done) >= 5000)
    assert sorted(done) == list(range(5000)), "each callback once; in order are those that were there before"
    assert payloads_of(bookkeeper.open_ledger(ledger.ledger_id)) == [b"%d" % i for i in range(5000)]


def test_each_entry_carries_the_lac_at_its_append(bookkeeper, ledger):
    for i in range(5):
        ledger.append(b"%d" % i)
    ledger.close()
    assert [entry.last_add_confirmed for entry in bookkeeper.open_ledger(ledger.ledger_id).read()] == [-1, 0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["list", "binary", "string", "large", "sliced", "chunked"])
def test_append_batch_takes_lists_and_arrow_arrays(bookkeeper, ledger, kind):
    values = [b"entry %d " % i * (i % 7) for i in range(20_000)]
    arrays = {
        "list": lambda: values,
        "binary": lambda: pa.array(values, pa.binary()),
        "string": lambda: pa.array([v.decode() for v in values]),
        "large": lambda: pa.array(values, pa.large_binary()),
        "sliced": lambda: pa.array([b"before", *values, b"after"], pa.binary())[1:-1],
        "chunked": lambda: pa.chunked_array([values[:7], values[7:]], pa.binary()),
    }
    assert ledger.append(b"first") == 0
    assert ledger.append_batch(arrays[kind]()) == range(1, 20_001)
    assert ledger.append_batch([]) == range(0)
    assert ledger.append(b"last") == 20_001
    ledger.close()
    table = bookkeeper.open_ledger(ledger.ledger_id).read_batches().read_all()
    assert table["payload"].to_pylist() == [b"first", *values, b"last"]
    assert table["entry_id"].to_pylist() == list(range(20_002))


def test_each_of_concurrent_batches_gets_consecutive_ids(bookkeeper, ledger):
    ranges = {}

    def append(name):
        ranges[name] = [ledger.append_batch([name] * 3000) for _ in range(3)]

    threads = [threading.Thread(target=append, args=(b"%d" % i * 50,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS_MAX)
    ledger.close()
    payloads = payloads_of(bookkeeper.open_ledger(ledger.ledger_id))
    assert len(payloads) == 4 * 3 * 3000
    for name, given in ranges.items():
        for ids in given:
            assert set(payloads[ids.start : ids.stop]) == {name}


def test_batch_with_a_null_is_refused_as_a_whole(ledger):
    with pytest.raises(ValueError, match="null"):
        ledger.append_batch(pa.array([b"a", None], pa.binary()))
    with pytest.raises(TypeError, match="int64"):
        ledger.append_batch(pa.array([1, 2]))
    assert ledger.append(b"next") == 0


def test_too_large_entry_is_refused_and_the_ledger_stays_usable(ledger):
    with pytest.raises(errors.EntryTooLargeError, match="split it"):
        ledger.append(bytes(PAYLOAD_BYTES_MAX + 1))
    with pytest.raises(errors.EntryTooLargeError):
        ledger.append_batch([b"small", bytes(PAYLOAD_BYTES_MAX + 1)])
    assert ledger.append(bytes(PAYLOAD_BYTES_MAX)) == 0


@pytest.mark.parametrize("digest_type", DigestType)
def test_ledger_is_read_back_with_every_digest_type_and_a_password(bookkeeper, digest_type):
    ledger = bookkeeper.create_ledger(digest_type=digest_type, password=b"secret")
    ledger.append_batch([b"a", b"", b"c" * 300_000])
    ledger.close()
    assert payloads_of(bookkeeper.open_ledger(ledger.ledger_id, b"secret")) == [b"a", b"", b"c" * 300_000]


def test_callback_can_wait_for_other_appends(bookkeeper):
    """In the I/O thread such a callback waited forever, and with it every ledger of the client; later it was refused to wait."""
    ledger, other = bookkeeper.create_ledger(), bookkeeper.create_ledger()
    told, later = queue.SimpleQueue(), queue.SimpleQueue()

    def appended(future):
        next_one = ledger.append_async(b"1")
        waiting = (lambda: ledger.append(b"2"), lambda: ledger.append_batch([b"3"]), next_one.result, future.result)
        for call in waiting:
            told.put(call())
        next_one.add_done_callback(lambda future: later.put(future.result()))
        ledger.close()
        told.put("closed")

    ledger.append_async(b"0").add_done_callback(appended)
    assert [told.get(timeout=SECONDS_MAX) for _ in range(5)] == [2, range(3, 4), 1, 0, "closed"]
    assert later.get(timeout=SECONDS_MAX) == 1
    assert other.append_async(b"0").result(SECONDS_MAX) == 0
    assert payloads_of(bookkeeper.open_ledger(ledger.ledger_id)) == [b"0", b"1", b"2", b"3"]


def test_wrong_password_neither_opens_nor_fences_the_ledger(bookkeeper):
    """Trap 9 of docs/decisions/traps.md."""
    ledger = bookkeeper.create_ledger(password=b"secret")
    ledger.append(b"a")
    for open_it in (bookkeeper.open_ledger, bookkeeper.open_ledger_no_recovery):
        with pytest.raises(errors.UnauthorizedAccessError, match="password"):
            open_it(ledger.ledger_id, b"guess")
    assert ledger.append(b"b") == 1
    ledger.close()


@pytest.mark.parametrize(("e", "wq", "aq"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (3, 1, 1), (3, 3, 3)])
def test_ledger_is_read_back_with_every_kind_of_quorum(bookkeeper, e, wq, aq):
    ledger = bookkeeper.create_ledger(e, wq, aq)
    values = [b"%d" % i for i in range(50)]
    ledger.append_batch(values)
    futures = [ledger.append_async(value) for value in values]
    assert futures[-1].result(SECONDS_MAX) == 99
    ledger.close()
    reader = bookkeeper.open_ledger(ledger.ledger_id)
    assert payloads_of(reader) == values * 2
    assert [entry.entry_id for entry in reader.read(17, 23)] == list(range(17, 24))


def test_open_without_recovery_does_not_fence_the_writer(bookkeeper, ledger):
    ledger.append_batch([b"a", b"b"])
    ledger.flush_last_add_confirmed()
    reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
    assert reader.last_add_confirmed == 1
    assert payloads_of(reader) == [b"a", b"b"]
    assert ledger.append(b"c") == 2
    with pytest.raises(errors.ReadError, match="beyond"):
        reader.read(0, 2)
    ledger.flush_last_add_confirmed()
    assert reader.read_last_add_confirmed() == 2
    assert payloads_of(reader) == [b"a", b"b", b"c"]


def test_read_unconfirmed_returns_entries_beyond_the_lac(bookkeeper, ledger):
    ledger.append(b"a")
    ledger.append(b"b")
    reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
    assert [entry.payload for entry in reader.read_unconfirmed(0, 1)] == [b"a", b"b"]
    with pytest.raises(errors.NoSuchEntryError):
        list(reader.read_unconfirmed(2, 2))


def test_idle_writer_sends_the_lac_of_its_last_entry(bookkeeper, ledger):
    reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
    ledger.append(b"the last")
    lac, entry = reader.read_last_add_confirmed_and_entry(0, timeout=SECONDS_MAX)
    assert (lac, entry.payload) == (0, b"the last")


def test_long_poll_ends_with_the_entry_the_timeout_or_the_close(bookkeeper, ledger):
    reader = bookkeeper.open_ledger_no_recovery(ledger.ledger_id)
    assert reader.read_last_add_confirmed_and_entry(0, timeout=0.3) == (-1, None)
    threading.Timer(0.2, ledger.append, [b"a"]).start()
    lac, entry = reader.read_last_add_confirmed_and_entry(0, timeout=SECONDS_MAX)
    assert (lac, entry.payload) == (0, b"a")
    threading.Timer(0.2, ledger.close).start()
    assert reader.read_last_add_confirmed_and_entry(1, timeout=SECONDS_MAX) == (0, None)
    assert reader.metadata.closed


def test_open_fences_the_writer_and_keeps_acknowledged_entries(bookkeeper, ledger):
    ids = ledger.append_batch([b"%d" % i for i in range(2000)])
    reader = bookkeeper.open_ledger(ledger.ledger_id)
    assert payloads_of(reader)[: len(ids)] == [b"%d" % i for i in range(2000)]
    with pytest.raises(errors.LedgerFencedError, match="fenced"):
        ledger.append(b"too late")
    with pytest.raises(errors.LedgerFencedError):
        ledger.close()
    ledger.close = lambda: None


def test_close_succeeds_after_a_recovery_with_the_same_last_entry(bookkeeper, ledger):
    ledger.append(b"a")
    assert bookkeeper.open_ledger(ledger.ledger_id).last_add_confirmed == 0
    ledger.close()
    assert ledger.metadata.closed


@pytest.mark.parametrize("attempt", range(5))
def test_concurrent_recoveries_close_the_ledger_at_the_same_entry(bookkeeper, attempt):
    """Trap 5 of docs/decisions/traps.md."""
    ledger = bookkeeper.create_ledger()
    for i in range(20):
        ledger.append_async(b"%d" % i)
    with ThreadPoolExecutor(4) as pool:
        opened = [pool.submit(bookkeeper.open_ledger, ledger.ledger_id) for _ in range(4)]
        ends = {(m.last_entry_id, m.length) for m in (future.result(SECONDS_MAX).metadata for future in opened)}
    assert len(ends) == 1


def test_ledger_is_listed_described_and_deleted(bookkeeper):
    ledger = bookkeeper.create_ledger(custom_metadata={"application": b"test"})
    ledger.append(b"a")
    ledger.close()
    metadata = bookkeeper.get_ledger_metadata(ledger.ledger_id)
    assert dict(metadata.custom_metadata) == {"application": b"test"}
    assert abs(metadata.ctime_ms / 1000 - time.time()) < 3600
    assert metadata.c_token > 0
    assert metadata.fragments[0].first_entry_id == 0
    assert set(metadata.fragments[0].ensemble) == set(bookkeeper.metadata.bookies())
    assert ledger.ledger_id in bookkeeper.list_ledgers()
    bookkeeper.delete_ledger(ledger.ledger_id)
    assert ledger.ledger_id not in bookkeeper.list_ledgers()
    for call in (bookkeeper.delete_ledger, bookkeeper.open_ledger, bookkeeper.get_ledger_metadata):
        with pytest.raises(errors.NoSuchLedgerError, match=str(ledger.ledger_id)):
            call(ledger.ledger_id)


def test_append_to_a_closed_handle_is_refused(ledger):
    ledger.close()
    with pytest.raises(errors.LedgerClosedError, match="append to a new one"):
        ledger.append(b"a")


def test_ledger_with_too_many_bookies_or_wrong_quorums_is_refused(bookkeeper):
    with pytest.raises(errors.NotEnoughBookiesError, match="there are 3"):
        bookkeeper.create_ledger(ensemble_size=5)
    with pytest.raises(errors.ConfigurationError, match="ack_quorum"):
        bookkeeper.create_ledger(write_quorum=2, ack_quorum=3)


def test_ranges_list_only_entries_of_the_ledger(bookkeeper, cluster, ledger):
    ledger.append_batch([b"x" * 1000] * 1500)
    ledger.append(b"y")
    for bookie in cluster.bookies:
        table = bookkeeper.list_ranges(bookie.bookie_id, ledger.ledger_id)
        held = set()
        for row in table.to_pylist():
            held.update(range(row["first_entry_id"], row["last_entry_id"] + 1))
            assert row["ledger_id"] == ledger.ledger_id
        # The third copy may still be in flight when an append returns.
        assert held <= set(range(1501))
    everywhere = bookkeeper.list_ranges(cluster.bookies[0].bookie_id)
    assert ledger.ledger_id in everywhere["ledger_id"].to_pylist()


def test_error_for_an_unknown_client_option_names_the_nearest(cluster):
    with pytest.raises(errors.ConfigurationError, match="add_timeout_seconds"):
        cluster.bookkeeper(add_timeout_second=3)


def test_unreachable_metadata_store_is_an_error_within_its_timeout(monkeypatch):
    from bookspark import BookKeeper

    # tests/conftest.py gives ZooKeeper a minute.
    monkeypatch.setitem(ZooKeeperStore.__init__.__kwdefaults__, "start_timeout_seconds", 1.0)
    unreachable = BookKeeper("127.0.0.1:1", metadata_timeout_seconds=1)
    with pytest.raises(errors.MetadataStoreError, match=r"127\.0\.0\.1:1"), unreachable as client:
        client.list_ledgers()

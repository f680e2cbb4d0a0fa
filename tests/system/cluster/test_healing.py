"""Phase two of a lossy boot: a bookie without a journal gets its lost entries back while it serves."""

from __future__ import annotations

import pytest

from bookspark import DigestType, errors
from bookspark.local import LocalCluster
from tests.awaiting import await_that

SECONDS_MAX = 60.0


@pytest.fixture(scope="module")
def cluster(new_chroot):
    options = {"journal_write_data": False, "stamp_missing_cookies": True}
    later = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}
    with LocalCluster(bookies=3, **options, **later, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture
def bookkeeper(cluster):
    # An idle writer would send its LAC, and with that record a bookie syncs the data that a power cut should take.
    with cluster.bookkeeper(explicit_lac_interval_seconds=3600.0) as client:
        yield client


def status_of(bookkeeper, bookie):
    """The bookie's status. A connection attempt to its killed process may still be under way, and answers the first question."""
    return await_that(lambda: bookkeeper.bookie_status(bookie.bookie_id), despite=errors.ReadError)


def await_healed(bookkeeper, bookie):
    """Wait until the bookie has no ledger in limbo and has finished phase two."""

    def healed():
        status = status_of(bookkeeper, bookie)
        return status if status.healed_boot == status.lossy_boot > 0 else None

    status = await_that(healed)
    assert status.limbo_ledgers == 0
    return status


def held(bookkeeper, bookie, ledger_id):
    ids = set()
    for row in bookkeeper.list_ranges(bookie.bookie_id, ledger_id).to_pylist():
        ids.update(range(row["first_entry_id"], row["last_entry_id"] + 1))
    return ids


@pytest.mark.parametrize("loss", ["unsynced entries", "the disk"])
def test_bookie_heals_after_losing_unsynced_entries_or_its_disk(cluster, bookkeeper, loss):
    # so that each acknowledgement includes this bookie's
    closed = bookkeeper.create_ledger(3, 3, 3, digest_type=DigestType.HMAC, password=b"secret")
    closed.append_batch([b"%d" % i for i in range(500)])
    closed.close()
    striped = bookkeeper.create_ledger(3, 2, 2)
    striped.append_batch([b"%d" % i for i in range(20)])
    striped.close()
    empty = bookkeeper.create_ledger()
    written = bookkeeper.create_ledger(3, 3, 3)
    written.append_batch([b"%d" % i for i in range(700)])
    deleted = bookkeeper.create_ledger()
    bookkeeper.delete_ledger(deleted.ledger_id)
    bookie = cluster.bookies[0]
    before = {ledger.ledger_id: held(bookkeeper, bookie, ledger.ledger_id) for ledger in (closed, striped, written)}
    bookie.kill()
    bookie.wipe() if loss == "the disk" else bookie.lose_unsynced()
    bookie.start()
    await_healed(bookkeeper, bookie)
    for ledger_id, ids in before.items():
        assert held(bookkeeper, bookie, ledger_id) == ids != set()
    for ledger in (empty, written):
        assert bookkeeper.get_ledger_metadata(ledger.ledger_id).closed, "what was being written is recovered"
        with pytest.raises(errors.BookKeeperError):
            ledger.append(b"more")
    others = cluster.bookies[1:]
    for other in others:
        other.stop()
    reader = bookkeeper.open_ledger(closed.ledger_id, b"secret")
    assert [entry.payload for entry in reader.read()] == [b"%d" % i for i in range(500)], "the copies are whole"
    for other in others:
        other.start()


def test_healing_copies_only_entries_written_since_the_clean_stop(cluster, bookkeeper):
    """A clean stop syncs everything, so earlier entries are neither read nor copied."""
    safe = bookkeeper.create_ledger(3, 3, 3)
    safe.append_batch([b"safe"] * 300)
    safe.close()
    bookie = cluster.bookies[0]
    bookie.stop()
    bookie.start()
    unsafe = bookkeeper.create_ledger(3, 3, 3)
    unsafe.append_batch([b"unsafe"] * 7)
    unsafe.close()
    bookie.kill()
    bookie.lose_unsynced()
    bookie.start()
    healing = await_healed(bookkeeper, bookie).healing
    assert (healing.ledgers_left, healing.entries_copied) == (0, 7)
    assert healing.ledgers == len(bookkeeper.list_ledgers())
    assert healing.bytes_copied >= 7 * len(b"unsafe")


def test_healing_continues_after_a_kill_and_waits_for_peers(cluster, bookkeeper):
    ledger = bookkeeper.create_ledger(3, 3, 3)  # so that this bookie has acknowledged the entries that it will lose
    ledger.append_batch([b"%d" % i for i in range(100)])
    bookie, *others = cluster.bookies
    for other in others:
        other.suspend()
    bookie.kill()
    bookie.lose_unsynced()
    bookie.start()
    assert status_of(bookkeeper, bookie).limbo_ledgers >= 1
    bookie.kill()  # in the middle of its attempts
    bookie.start()
    assert status_of(bookkeeper, bookie).limbo_ledgers >= 1
    for other in others:
        other.resume()
    await_healed(bookkeeper, bookie)
    assert held(bookkeeper, bookie, ledger.ledger_id) == set(range(100))

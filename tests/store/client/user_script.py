"""A user's script that uses the whole documented API; it is not run, but ``test_user_script`` checks it with ``mypy --strict``.

``assert_type`` fails the check where a name lost its type: an ``Any`` hides every mistake.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_type

from bookspark import (
    BookKeeper,
    DigestType,
    Entry,
    LedgerHandle,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    ReadHandle,
    errors,
)
from bookspark.local import LocalBookie, LocalCluster
from bookspark.spark import BookieService, session
from bookspark.store.client import AppendFuture, SyncFuture
from bookspark.testing import FaultyCluster, History, Kind, Park, RecordedReader, RecordedWriter


def write(bookkeeper: BookKeeper) -> int:
    ledger = bookkeeper.create_ledger(
        ensemble_size=3,
        write_quorum=3,
        ack_quorum=2,
        digest_type=DigestType.CRC32C,
        password=b"",
        custom_metadata={"made by": b"a user"},
        ledger_type=LedgerType.PD_JOURNAL,
        replication="best_effort",
    )
    assert_type(ledger, LedgerHandle)
    assert_type(ledger.append(b"one"), int)
    future = ledger.append_async(b"two")
    assert_type(future, AppendFuture)
    future.add_done_callback(told)
    assert_type(future.done(), bool)
    assert_type(future.result(timeout=10.0), int)
    assert_type(future.exception(), errors.BookKeeperError | None)
    assert_type(ledger.append_batch([b"three", b"four"]), range)
    assert_type(ledger.append_batch_async([b"five"]), AppendFuture)
    assert_type(ledger.sync(), int)
    assert_type(ledger.sync_async(), SyncFuture)
    assert_type(ledger.flush_last_add_confirmed(), int)
    known: list[int] = [
        ledger.ledger_id,
        ledger.last_add_confirmed,
        ledger.last_add_pushed,
        ledger.last_add_synced,
        ledger.last_add_fully_replicated,
        ledger.length,
    ]
    print(known)
    ledger.close(wait=True, timeout=None)
    return ledger.ledger_id


def told(future: AppendFuture) -> None:
    error = future.exception()
    if error is not None:
        print("not appended:", error, error.unconfirmed)


def write_in_a_with_statement(bookkeeper: BookKeeper) -> None:
    with bookkeeper.create_ledger(ledger_type="VD_JOURNAL", replication="guaranteed") as ledger:
        assert_type(ledger, LedgerHandle)
        ledger.append(b"x")


def read(bookkeeper: BookKeeper, ledger_id: int) -> list[bytes]:
    with bookkeeper.open_ledger(ledger_id, password=b"") as reader:
        assert_type(reader, ReadHandle)
        entries = reader.read(0, reader.last_add_confirmed)
        assert_type(entries, Iterator[Entry])
        payloads = [entry.payload for entry in entries]
        reader.read_batches(0, 1).read_all()
    following = bookkeeper.open_ledger_no_recovery(ledger_id)
    assert_type(following, ReadHandle)
    assert_type(following.read_unconfirmed(0, 5), Iterator[Entry])
    assert_type(following.read_last_add_confirmed(), int)
    confirmed, entry = following.read_last_add_confirmed_and_entry(following.last_add_confirmed + 1, timeout=1.0)
    assert_type(confirmed, int)
    assert_type(entry, Entry | None)
    if entry is not None:
        assert_type(
            (entry.ledger_id, entry.entry_id, entry.last_add_confirmed, entry.length), tuple[int, int, int, int]
        )
        assert_type(entry.payload, bytes)
    return payloads


def describe(metadata: LedgerMetadata) -> None:
    assert_type(metadata.state, LedgerState)
    assert_type((metadata.last_entry_id, metadata.length), tuple[int, int])
    for fragment in metadata.fragments:
        assert_type(fragment.first_entry_id, int)
        assert_type(fragment.ensemble, tuple[str, ...])


def manage(bookkeeper: BookKeeper, ledger_id: int) -> None:
    assert_type(bookkeeper.list_ledgers(), list[int])
    describe(bookkeeper.get_ledger_metadata(ledger_id))
    assert_type(bookkeeper.bookie_status("bookie-1").free_bytes, int)
    print(bookkeeper.list_entry_logs("bookie-1"), bookkeeper.list_limbo("bookie-1"), bookkeeper.list_ranges("bookie-1"))
    try:
        bookkeeper.delete_ledger(ledger_id)
    except errors.NoSuchLedgerError:
        pass
    except (
        errors.LedgerFencedError,
        errors.LedgerClosedError,
        errors.NoSuchEntryError,
        errors.ReadError,
        errors.NotEnoughBookiesError,
        errors.UnauthorizedAccessError,
        errors.DigestMismatchError,
        errors.MetadataVersionError,
        errors.LedgerRecoveryError,
        errors.EntryTooLargeError,
        errors.InvalidCookieError,
        errors.TooManyRequestsError,
    ) as error:
        assert_type(error.unconfirmed, range)


def local() -> None:
    with LocalCluster(bookies=5, autorecovery=False, journal_write_data=False) as cluster:
        assert_type(cluster, LocalCluster)
        assert_type(cluster.zookeeper, str)
        with cluster.bookkeeper(add_timeout_seconds=10.0) as bookkeeper:
            assert_type(bookkeeper, BookKeeper)
            print(read(bookkeeper, write(bookkeeper)))
        bookie = cluster.bookies[0]
        assert_type(bookie, LocalBookie)
        assert_type((bookie.bookie_id, bookie.address), tuple[str, str])
        assert_type(bookie.pid, int | None)
        assert_type(bookie.directories, tuple[str, ...])
        bookie.kill()
        bookie.lose_unsynced()
        bookie.wipe()
        bookie.start()
        bookie.suspend()
        bookie.resume()
        bookie.stop()
        assert_type(cluster.add_bookie(rack="r1"), LocalBookie)


def faults() -> None:
    history = History()
    with FaultyCluster(bookies=3) as cluster:
        assert_type(cluster, FaultyCluster)
        bookkeeper = cluster.bookkeeper(client_name="writer")
        with cluster.wire.park(Kind.ADD, client="writer") as park, cluster.wire.cut(cluster.bookies[0].bookie_id):
            assert_type(park, Park)
            writer = RecordedWriter(history, "writer", bookkeeper.create_ledger())
            assert_type(writer.append_async(b"x"), AppendFuture)
        reader = RecordedReader(history, "reader", bookkeeper.open_ledger_no_recovery(writer.handle.ledger_id))
        assert_type(reader.read(0, 0), int)
    print(history.violations)


def with_spark() -> None:
    spark = session("app", master=None, zookeeper="127.0.0.1:2181")
    service = BookieService(spark, bookies=3, directories=["/data/bookies"], zookeeper="embedded")
    service.start()
    print(service.zookeeper, service.bookies)
    service.stop()


if __name__ == "__main__":
    with BookKeeper("127.0.0.1:2181", add_timeout_seconds=10.0) as client:
        assert_type(client, BookKeeper)
        write_in_a_with_statement(client)
        manage(client, write(client))
    local()
    faults()
    with_spark()

"""Inspection of a bookie by a client: its logs, its ledgers in limbo, and each stored copy."""

from __future__ import annotations

import pytest

from bookspark.errors import ReadError
from bookspark.local import LocalCluster
from bookspark.store.client.inspection.copies import Unreadable, copies_on
from bookspark.store.wire.entry_batch import EntryBatch
from tests.surgery import remove_entries, turn_a_bit
from tests.system.cluster.copies import cut_power


@pytest.fixture
def cluster(new_chroot):
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as running:
        yield running


def written(bookkeeper, batches, entries=10, **options):
    """A closed ledger of ``batches`` batches, durable on every bookie that has a copy."""
    with bookkeeper.create_ledger(**{"ack_quorum": 3} | options) as ledger:
        for _ in range(batches):
            ledger.append_batch([b"entry"] * entries)
    return ledger.ledger_id


def rows_of(bookkeeper, bookie, ledger_id):
    ranges = bookkeeper.list_ranges(bookie.bookie_id, ledger_id).to_pylist()
    return [(row["first_entry_id"], row["last_entry_id"]) for row in ranges]


def told(bookkeeper, bookie, ledger_id):
    """Ids of the readable copies, and the unreadable ranges."""
    found = list(copies_on(bookkeeper.context, bookie.bookie_id, ledger_id, rows_of(bookkeeper, bookie, ledger_id)))
    readable = [entry.entry_id for batch in found if isinstance(batch, EntryBatch) for entry in batch.entries()]
    return readable, [one for one in found if isinstance(one, Unreadable)]


def test_every_copy_is_returned_or_reported_unreadable(cluster):
    bookkeeper, bookie = cluster.bookkeeper(), cluster.bookies[0]
    ledger_id = written(bookkeeper, 10)
    large = written(bookkeeper, 40, 1000)  # more than a response has room for
    striped = written(bookkeeper, 5, ensemble_size=3, write_quorum=2, ack_quorum=2, password=b"secret")
    assert told(bookkeeper, bookie, ledger_id) == (list(range(100)), [])
    assert told(bookkeeper, bookie, large) == (list(range(40_000)), [])
    held = [entry for first, last in rows_of(bookkeeper, bookie, striped) for entry in range(first, last + 1)]
    assert told(bookkeeper, bookie, striped) == (held, []) and 30 <= len(held) <= 35

    batches = bookkeeper.list_ranges(bookie.bookie_id, ledger_id).to_pylist()
    turn_a_bit(bookie, batches[3])
    assert told(bookkeeper, bookie, ledger_id) == ([*range(30), *range(40, 100)], [Unreadable(30, 39)])
    turn_a_bit(bookie, batches[4])
    turn_a_bit(bookie, batches[9])
    unreadable = [Unreadable(40, 49), Unreadable(90, 99)]
    assert told(bookkeeper, bookie, ledger_id) == ([*range(30), *range(50, 90)], unreadable)
    assert told(bookkeeper, bookie, ledger_id) == ([*range(30), *range(50, 90)], []), "what was found bad is not listed"
    status = bookkeeper.bookie_status(bookie.bookie_id)
    assert (status.lost_copies, status.lacking_ledgers) == (3, 1)

    with pytest.raises(ReadError, match="did not tell what it has of ledger"):
        list(copies_on(bookkeeper.context, "nobody", ledger_id, [(0, 9)]))


def test_removed_entries_are_not_listed_and_an_unknown_ledger_has_no_copies(cluster):
    bookkeeper, bookie = cluster.bookkeeper(), cluster.bookies[0]
    ledger_id = written(bookkeeper, 10)
    bookie.stop()
    assert remove_entries(bookie, ledger_id, 30, 49) == 2
    bookie.start()
    assert rows_of(bookkeeper, bookie, ledger_id)[3] == (50, 59)
    assert told(bookkeeper, bookie, ledger_id) == ([*range(30), *range(50, 100)], [])
    assert list(copies_on(bookkeeper.context, bookie.bookie_id, 4711, [(0, 9), (10, 19)])) == []


def test_entry_logs_are_listed_with_their_synced_size(cluster):
    bookkeeper, bookie = cluster.bookkeeper(), cluster.bookies[0]
    assert bookkeeper.list_entry_logs(bookie.bookie_id) == []
    written(bookkeeper, 3)
    (log,) = bookkeeper.list_entry_logs(bookie.bookie_id)
    assert log.path.startswith(bookie.directories[0]) and not log.sealed and not log.rewritten
    batches = bookkeeper.list_ranges(bookie.bookie_id).to_pylist()
    assert log.size == log.synced == batches[-1]["position"] + batches[-1]["bytes"]
    assert {row["log"] for row in batches} == {log.number}
    bookie.stop()
    bookie.start()
    (log,) = bookkeeper.list_entry_logs(bookie.bookie_id)
    assert log.sealed


def test_ledgers_in_limbo_are_listed_with_their_lossy_boot(new_chroot):
    never = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40, "heal_lossy_boots": False}
    with LocalCluster(bookies=3, journal_write_data=False, **never, zookeeper=new_chroot()) as cluster:
        # An idle writer sends its LAC, and with that record a bookie syncs the data that the power cut should take.
        bookkeeper, bookie = cluster.bookkeeper(explicit_lac_interval_seconds=3600.0), cluster.bookies[0]
        written(bookkeeper, 1)
        ledger = bookkeeper.create_ledger(ack_quorum=3)
        ledger.append(b"not synced")
        assert bookkeeper.list_limbo(bookie.bookie_id) == {}
        cut_power(bookie)
        boot = bookkeeper.bookie_status(bookie.bookie_id).lossy_boot
        assert bookkeeper.list_limbo(bookie.bookie_id) == {ledger.ledger_id: boot} and boot > 0

"""``bookspark ledger recover --accept-loss``, for a ledger whose entries are in limbo after a lossy boot."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from bookspark.local import LocalCluster
from tests.awaiting import await_that
from tests.clocks import keep_steady
from tests.operations.cli.conftest import Run
from tests.system.cluster.copies import cut_power

_NEVER = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(
        bookies=3, journal_write_data=False, heal_lossy_boots=False, **_NEVER, zookeeper=new_chroot()
    ) as cluster:
        yield cluster


@pytest.fixture
def ledger_id(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> int:
    """A ledger with ack quorum 1 whose writer is gone; one of its three bookies lost unsynced entries."""
    keep_steady(monkeypatch)
    # An idle writer sends its LAC, and with that record the bookie would sync the entries that the power cut must take.
    with cluster.bookkeeper(explicit_lac_interval_seconds=3600.0) as bookkeeper:
        ledger = bookkeeper.create_ledger(3, 3, 1)
        ledger.append(b"kept")
        # A bookie syncs what it writes together with the control record of a new ledger. The entries after these are unsynced.
        with bookkeeper.create_ledger(3, 3, 3) as other:
            other.append(b"synced")
        ledger.append_batch([b"kept"] * 9)
        # Wait until all three bookies have the entries: with ack quorum 1 the append returns at the first acknowledgement,
        # and a bookie without entries loses nothing.
        for bookie in cluster.bookies:
            await_that(
                lambda bookie_id=bookie.bookie_id: (
                    bookkeeper.list_ranges(bookie_id, ledger.ledger_id).column("last_entry_id").to_pylist()[-1:] == [9]
                )
            )
    cut_power(cluster.bookies[0])
    return ledger.ledger_id


def test_recover_is_refused_without_accept_loss_and_the_loss_is_recorded_with_it(
    on_cluster: Run, cluster: LocalCluster, ledger_id: int
) -> None:
    limbo = cluster.bookies[0].bookie_id
    refused = on_cluster("ledger", "recover", str(ledger_id))
    assert refused.status == 2
    assert "Nothing was truncated" in refused.err and f"{limbo}: in limbo" in refused.err
    declined = on_cluster("ledger", "recover", str(ledger_id), "--accept-loss", stdin=b"n\n")
    assert declined.status == 2
    bookkeeper = cluster.bookkeeper()
    assert not bookkeeper.get_ledger_metadata(ledger_id).closed
    done = on_cluster("ledger", "recover", str(ledger_id), "--accept-loss", "--yes")
    assert done.status == 0, done.err
    assert done.text == f"ledger {ledger_id} is recovered and closed: 10 entries, 40 bytes\n"
    assert "accepted as lost" in done.err and f"{limbo}: in limbo" in done.err
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    loss = metadata.accepted_loss
    assert loss is not None and "@" in loss.by and loss.at_ms > metadata.ctime_ms
    shown = json.loads(on_cluster("ledger", "metadata", str(ledger_id)).out)
    fence, end = shown["accepted_loss"]["losses"]
    assert fence == {"kind": "fence", "first_entry_id": -1, "last_entry_id": -1, "bookies": [limbo]}
    assert end == {"kind": "end", "first_entry_id": 10, "last_entry_id": 10, "bookies": [limbo]}
    read = on_cluster("ledger", "read", str(ledger_id))
    assert read.out == b"kept\n" * 10


def test_acknowledged_entries_after_a_lost_entry_are_kept(on_cluster: Run, cluster: LocalCluster) -> None:
    """Each entry was on one bookie. Once, recovery closed the ledger before the first lost entry and so cut off all later
    entries, although acknowledged and whole on bookies that had lost nothing."""
    with cluster.bookkeeper(explicit_lac_interval_seconds=3600.0) as bookkeeper:
        ledger = bookkeeper.create_ledger(3, 1, 1)
        # One batch, so that no entry carries a LAC that confirms an earlier entry.
        ledger.append_batch([b"%d" % entry_id for entry_id in range(9)])
        [holder] = bookkeeper.get_ledger_metadata(ledger.ledger_id).write_set_of(0)
    cut_power(next(bookie for bookie in cluster.bookies if bookie.bookie_id == holder))
    done = on_cluster("ledger", "recover", str(ledger.ledger_id), "--accept-loss", "--yes")
    assert done.status == 0, done.err
    shown = json.loads(on_cluster("ledger", "metadata", str(ledger.ledger_id)).out)
    _, *losses = shown["accepted_loss"]["losses"]
    assert [(one["kind"], one["first_entry_id"], one["last_entry_id"]) for one in losses] == [
        *(("entries", entry_id, entry_id) for entry_id in (0, 3, 6)),
        ("end", 9, 9),
    ]
    with cluster.bookkeeper() as bookkeeper:
        reader = bookkeeper.open_ledger(ledger.ledger_id)
        assert reader.last_add_confirmed == 8
        for first in (1, 4, 7):
            found = [entry.payload for entry in reader.read(first, first + 1)]
            assert found == [b"%d" % first, b"%d" % (first + 1)]


def test_accept_loss_records_no_loss_if_recovery_loses_nothing(on_cluster: Run, cluster: LocalCluster) -> None:
    with cluster.bookkeeper() as bookkeeper:
        ledger = bookkeeper.create_ledger(3, 3, 2)
        ledger.append(b"kept")
    done = on_cluster("ledger", "recover", str(ledger.ledger_id), "--accept-loss")
    assert (done.status, done.err) == (0, "")
    assert cluster.bookkeeper().get_ledger_metadata(ledger.ledger_id).accepted_loss is None


def test_entries_of_stopped_bookies_are_cut_off_only_if_they_are_named(on_cluster: Run, cluster: LocalCluster) -> None:
    """Once, 100 acknowledged entries were cut off because their bookies were stopped."""
    with cluster.bookkeeper() as bookkeeper:
        ledger = bookkeeper.create_ledger(3, 3, 2)
        ledger.append_batch([b"kept"] * 100)
    recover = ("ledger", "recover", str(ledger.ledger_id))
    ids = sorted(bookie.bookie_id for bookie in cluster.bookies)
    alone = on_cluster(*recover, ids[0])
    assert alone.status == 2 and "together with --accept-loss" in alone.err
    unknown = on_cluster(*recover, "--accept-loss", "nobody")
    assert unknown.status == 2 and "nobody" in unknown.err and ids[0] in unknown.err
    for bookie in cluster.bookies[1:]:
        bookie.stop()
    try:
        away = sorted(bookie.bookie_id for bookie in cluster.bookies[1:])
        refused = on_cluster(*recover, "--accept-loss", "--yes")
        assert refused.status == 2
        assert f"bookspark ledger recover {ledger.ledger_id} --accept-loss" in refused.err
        assert all(bookie in refused.err.rpartition("--accept-loss")[2] for bookie in away)
        one_named = on_cluster(*recover, "--accept-loss", away[0], "--yes")
        assert one_named.status == 2 and f"{away[1]} did not say that it is lost" in one_named.err
        assert not cluster.bookkeeper().get_ledger_metadata(ledger.ledger_id).closed
    finally:
        for bookie in cluster.bookies[1:]:
            bookie.start()
    done = on_cluster(*recover, "--accept-loss")
    assert (done.status, done.err) == (0, "")
    assert done.text.startswith(f"ledger {ledger.ledger_id} is recovered and closed: 100 entries")


def test_users_own_accepted_loss_label_is_kept_and_does_no_harm(on_cluster: Run, cluster: LocalCluster) -> None:
    """Once, ``open_ledger`` closed the ledger and then failed with a JSONDecodeError."""
    with cluster.bookkeeper() as bookkeeper:
        label = {"bookspark.accepted_loss": b"mine"}
        ledger = bookkeeper.create_ledger(3, 3, 2, custom_metadata=label)
        ledger.append(b"kept")
    done = on_cluster("ledger", "recover", str(ledger.ledger_id))
    assert (done.status, done.err) == (0, "")
    assert cluster.bookkeeper().get_ledger_metadata(ledger.ledger_id).custom_metadata == label

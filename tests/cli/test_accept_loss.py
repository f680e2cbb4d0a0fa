"""``bookspark ledger recover --accept-loss``: a ledger of which a lossy boot took what nobody can tell any more."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from bookspark.local import LocalCluster
from bookspark.protocol.ledger.accepted_loss import accepted_loss_of
from tests.awaiting import await_that
from tests.cli.conftest import Run
from tests.cluster.copies import cut_power

_NEVER = {"background_sync_interval_ms": 3_600_000, "background_sync_bytes": 1 << 40}


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(
        bookies=3, journal_write_data=False, heal_lossy_boots=False, **_NEVER, zookeeper=new_chroot()
    ) as cluster:
        yield cluster


@pytest.fixture
def ledger_id(cluster: LocalCluster) -> int:
    """Ack quorum 1, and one of three bookies lost what it had not synced; the writer is gone."""
    with cluster.bookkeeper() as bookkeeper:
        ledger = bookkeeper.create_ledger(3, 3, 1)
        ledger.append_batch([b"kept"] * 10)
        # One of them has acknowledged it. One that has not got it yet loses nothing, and what the client has not sent yet is
        # cut off with it.
        for bookie in cluster.bookies:
            await_that(lambda bookie_id=bookie.bookie_id: bookkeeper.list_ranges(bookie_id, ledger.ledger_id).num_rows)
    cut_power(cluster.bookies[0])
    return ledger.ledger_id


def test_it_is_the_way_out_and_leaves_a_note(on_cluster: Run, cluster: LocalCluster, ledger_id: int) -> None:
    limbo = cluster.bookies[0].bookie_id
    refused = on_cluster("ledger", "recover", str(ledger_id))
    assert refused.status == 1
    assert "Nothing was truncated" in refused.err and f"{limbo}: in limbo" in refused.err
    declined = on_cluster("ledger", "recover", str(ledger_id), "--accept-loss", stdin=b"n\n")
    assert declined.status == 1
    bookkeeper = cluster.bookkeeper()
    assert not bookkeeper.get_ledger_metadata(ledger_id).closed
    done = on_cluster("ledger", "recover", str(ledger_id), "--accept-loss", "--yes")
    assert done.status == 0, done.err
    assert done.text == f"ledger {ledger_id} is recovered and closed: 10 entries, 40 bytes\n"
    assert "accepted as lost" in done.err and f"{limbo}: in limbo" in done.err
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    loss = accepted_loss_of(metadata)
    assert loss is not None and "@" in loss.by and loss.at_ms > metadata.ctime_ms
    shown = json.loads(on_cluster("ledger", "metadata", str(ledger_id)).out)
    assert "entry 10" in shown["custom_metadata"]["bookspark.accepted_loss"]
    read = on_cluster("ledger", "read", str(ledger_id))
    assert read.out == b"kept\n" * 10


def test_a_ledger_that_can_be_recovered_is_not_noted(on_cluster: Run, cluster: LocalCluster) -> None:
    with cluster.bookkeeper() as bookkeeper:
        ledger = bookkeeper.create_ledger(3, 3, 2)
        ledger.append(b"kept")
    done = on_cluster("ledger", "recover", str(ledger.ledger_id), "--accept-loss")
    assert (done.status, done.err) == (0, "")
    assert accepted_loss_of(cluster.bookkeeper().get_ledger_metadata(ledger.ledger_id)) is None

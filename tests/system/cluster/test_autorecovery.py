"""Autorecovery processes beside bookie processes."""

from __future__ import annotations

import os

import pytest

from bookspark.errors import BookieError, ConfigurationError
from bookspark.local import LocalCluster
from bookspark.protocol.ledger.placement import PlacementRule
from bookspark.store.metadata.placement_rule import write_placement
from tests.awaiting import await_that

pytestmark = pytest.mark.acceptance

BATCHES_MAX = 60
LEDGERS_MAX = 100
SMALL = {"entry_log_bytes_max": 256 << 10, "directory_bytes_max": 4 << 20, "disk_check_interval_seconds": 0.2}
OPTIONS = {
    "client": {"metadata_session_timeout_seconds": 4.0},
    "lost_bookie_delay_seconds": 0.0,
    "check_interval_hours": 0.0,
    "check_confirm_seconds": 0.1,
    "poll_seconds": 1.0,
    "retry_seconds": 0.5,
}


@pytest.fixture(scope="module")
def cluster(new_chroot):
    bookies = [{"labels": {"zone": zone}} for zone in "11234"]
    bookies[4] |= SMALL
    with LocalCluster(
        bookies, autorecovery=OPTIONS, zookeeper_session_timeout_seconds=4.0, zookeeper=new_chroot()
    ) as running:
        running.add_autorecovery(**OPTIONS)
        yield running


@pytest.fixture
def bookkeeper(cluster):
    with cluster.bookkeeper() as client:
        yield client
    for bookie in cluster.bookies:
        bookie.start()
    for process in cluster.autorecovery:
        process.start()


def members(bookkeeper, ledger_id):
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    return {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}


def written(bookkeeper):
    ledger = bookkeeper.create_ledger()
    ledger.append_batch([b"%d" % i for i in range(50)])
    ledger.close()
    return ledger.ledger_id


def lose_one(cluster, bookkeeper, ledger_id):
    """Kill a bookie of the ledger, and wait until another bookie has its copies."""
    lost = next(b for b in cluster.bookies if b.bookie_id in members(bookkeeper, ledger_id))
    lost.kill()
    await_that(lambda: lost.bookie_id not in members(bookkeeper, ledger_id))
    await_that(lambda: not bookkeeper.metadata.underreplication.list_tasks())
    reader = bookkeeper.open_ledger(ledger_id)
    assert [entry.payload for entry in reader.read()] == [b"%d" % i for i in range(50)]


def test_ledgers_of_a_killed_bookie_are_copied_automatically(cluster, bookkeeper):
    lose_one(cluster, bookkeeper, written(bookkeeper))


def test_copy_that_breaks_the_placement_policy_is_moved(cluster, bookkeeper):
    together = {bookie.bookie_id for bookie in cluster.bookies[:2]}
    write_placement(bookkeeper.metadata, PlacementRule("random"))
    ledger_id = next(one for _ in range(LEDGERS_MAX) if together <= members(bookkeeper, one := written(bookkeeper)))
    write_placement(bookkeeper.metadata, PlacementRule("one_per_zone"))
    bookkeeper.metadata.auditors.trigger()
    await_that(lambda: not together <= members(bookkeeper, ledger_id))
    write_placement(bookkeeper.metadata, PlacementRule("random"))
    reader = bookkeeper.open_ledger(ledger_id)
    assert [entry.payload for entry in reader.read()] == [b"%d" % i for i in range(50)]


def test_another_process_becomes_auditor_when_the_auditor_is_killed(cluster, bookkeeper):
    auditors = bookkeeper.metadata.auditors
    names = [process.name for process in cluster.autorecovery]
    first = await_that(auditors.auditor)
    assert first in names and len(set(names)) == 2
    cluster.autorecovery[names.index(first)].kill()
    second = await_that(lambda: auditors.auditor() not in (first, None) and auditors.auditor())
    assert second in names
    await_that(auditors.state)
    lose_one(cluster, bookkeeper, written(bookkeeper))


def test_read_only_bookie_is_not_treated_as_lost(cluster, bookkeeper):
    store, small = bookkeeper.metadata, cluster.bookies[4].bookie_id
    ledger = bookkeeper.create_ledger(5, 5, 2)
    for _ in range(BATCHES_MAX):  # until the bookie is full, or longer, as no bookie can replace it
        if store.bookies()[small].read_only:
            break
        ledger.append_batch([os.urandom(16_000) for _ in range(10)])
    await_that(lambda: store.bookies()[small].read_only)
    reader = bookkeeper.open_ledger(ledger.ledger_id)
    assert small in members(bookkeeper, ledger.ledger_id)
    before = store.auditors.last_check()
    store.auditors.trigger()
    await_that(lambda: store.auditors.triggered() is None)
    report = store.auditors.last_check()
    assert report != before and small not in report.skipped
    assert store.auditors.state().lost == () and store.auditors.state().waiting == {}
    assert small in members(bookkeeper, ledger.ledger_id) and reader.last_add_confirmed >= 0


def test_wrong_autorecovery_options_are_refused_at_construction():
    with pytest.raises(ConfigurationError, match="grace"):
        LocalCluster(autorecovery={"grace_second": 1})
    with pytest.raises(ConfigurationError, match="poll_seconds"):
        LocalCluster(autorecovery={"poll_seconds": 0})


def test_error_of_an_autorecovery_process_that_cannot_start_gives_the_reason(cluster):
    with pytest.raises(BookieError, match="answer_timeout_seconds"):
        cluster.add_autorecovery(client={"answer_timeout": 1})

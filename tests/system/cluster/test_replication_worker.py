"""Replication workers over real bookies."""

from __future__ import annotations

import contextlib

import pytest

from bookspark.errors import BookieError, InvalidCookieError
from bookspark.local import LocalCluster
from bookspark.protocol.ledger.ledger_metadata import LedgerState
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.autorecovery.decommission import decommission
from bookspark.store.autorecovery.worker import ReplicationWorker
from tests.awaiting import SECONDS_MAX, await_that, stays
from tests.clocks import keep_steady
from tests.system.cluster.copies import await_copies, held_by, start_all

pytestmark = pytest.mark.acceptance

SLOW = 400_000
"""Bytes a second: the ledger of ``large`` then takes some seconds."""


@pytest.fixture(scope="module")
def cluster(new_chroot):
    options = {"journal_write_data": False, "stamp_missing_cookies": True, "heal_lossy_boots": False}
    with LocalCluster(bookies=5, **options, zookeeper=new_chroot()) as running:
        yield running


@pytest.fixture(autouse=True)
def steady(monkeypatch):
    """A failed task is postponed by the wall clock."""
    keep_steady(monkeypatch)


@pytest.fixture
def bookkeeper(cluster):
    with cluster.bookkeeper(answer_timeout_seconds=5.0, add_timeout_seconds=30.0) as client:
        yield client
        for ledger_id in client.list_ledgers():
            client.delete_ledger(ledger_id)
    start_all(*cluster.bookies)


@pytest.fixture
def worker(cluster):
    """Starts a worker with its own client."""
    with contextlib.ExitStack() as stack:

        def started(**options):
            client = stack.enter_context(cluster.bookkeeper(answer_timeout_seconds=5.0))
            config = AutorecoveryConfig(**{"poll_seconds": 0.2, "retry_seconds": 0.2, "grace_seconds": 0.5} | options)
            running = ReplicationWorker(client, config)
            running.start()
            stack.callback(running.stop)
            return running

        yield started


def await_repaired(bookkeeper):
    await_that(lambda: not bookkeeper.metadata.underreplication.list_tasks())


def written(bookkeeper, quorums=(3, 3, 2), entries=50, payload=b"x" * 100):
    ledger = bookkeeper.create_ledger(*quorums)
    if entries:
        ledger.append_batch([b"%d %s" % (i, payload) for i in range(entries)])
    return ledger


def closed(bookkeeper, quorums=(3, 3, 2), entries=50, payload=b"x" * 100):
    """A closed ledger with all copies written."""
    ledger = written(bookkeeper, quorums, entries, payload)
    ledger.close()
    await_copies(bookkeeper, ledger.ledger_id)
    return ledger.ledger_id


def large(bookkeeper):
    return closed(bookkeeper, entries=4000, payload=b"x" * 1000)


def member(cluster, bookkeeper, ledger_id, position=0):
    bookie_id = bookkeeper.get_ledger_metadata(ledger_id).last_fragment.ensemble[position]
    return next(bookie for bookie in cluster.bookies if bookie.bookie_id == bookie_id)


def mark(bookkeeper, bookies, *ledger_ids, reason=Reason.LOST):
    named = {bookie.bookie_id: reason for bookie in bookies}
    bookkeeper.metadata.underreplication.mark(Mark(ledger_id, named, "by a test") for ledger_id in ledger_ids)


def assert_whole(bookkeeper, ledger_id, lost):
    """Every entry has all its copies, and no fragment names ``lost``."""
    metadata = bookkeeper.get_ledger_metadata(ledger_id)
    assert metadata.closed
    assert not any(lost.bookie_id in fragment.ensemble for fragment in metadata.fragments)
    await_copies(bookkeeper, ledger_id)


def test_ledgers_of_a_lost_bookie_are_replicated_while_a_writer_continues(cluster, bookkeeper, worker):
    """Including closed ledgers of several quorums, and the ledger of the running writer once it is closed."""
    writer = written(bookkeeper)
    lost = member(cluster, bookkeeper, writer.ledger_id)
    ledgers = [closed(bookkeeper, quorums) for quorums in ((3, 3, 2), (4, 2, 2), (4, 3, 2), (3, 2, 1))]
    ledgers.append(closed(bookkeeper, entries=0))
    before = {i: [e.payload for e in bookkeeper.open_ledger(i).read()] for i in ledgers[:-1]}
    lost.stop()
    running = worker(grace_seconds=10 * SECONDS_MAX)
    mark(bookkeeper, [lost], writer.ledger_id, *ledgers)
    await_that(lambda: running.progress().ledgers >= len(ledgers))
    assert bookkeeper.get_ledger_metadata(writer.ledger_id).state is LedgerState.OPEN
    for _ in range(50):
        writer.append(b"more")  # the writer replaces the bookie itself
    writer.close()
    await_repaired(bookkeeper)  # including the writer's ledger, without waiting for the rest of the grace time
    assert writer.metadata.last_entry_id == 99
    for ledger_id in (*ledgers, writer.ledger_id):
        assert_whole(bookkeeper, ledger_id, lost)
    for ledger_id, payloads in before.items():
        assert [entry.payload for entry in bookkeeper.open_ledger(ledger_id).read()] == payloads


def test_ledger_without_a_readable_copy_keeps_its_reason_and_blocks_no_other(cluster, bookkeeper, worker):
    single = closed(bookkeeper, (1, 1, 1))
    lost = member(cluster, bookkeeper, single)
    other = closed(bookkeeper, (5, 3, 2))
    lost.stop()
    running = worker(ledgers_at_once=1, retry_seconds_max=0.5)
    mark(bookkeeper, [lost], single)
    tasks = bookkeeper.metadata.underreplication
    task = await_that(lambda: (found := tasks.task(single)) and found.attempts >= 2 and found)
    assert "could not be read" in task.error and "not registered" in task.error
    assert task.not_before_ms > task.marked_at_ms
    spare = cluster.add_bookie()
    try:
        mark(bookkeeper, [lost], other)
        await_that(lambda: tasks.task(other) is None)
        assert_whole(bookkeeper, other, lost)
        # A worker that listed the bookies before the lost bookie was back may read from it and copy all the same: harmless,
        # but another case.
        running.stop()
        lost.start()
        worker(ledgers_at_once=1, retry_seconds_max=0.5)
        await_that(lambda: tasks.task(single) is None)
        # The copy was not lost: nothing is missing, and the metadata keeps its bookie.
        assert bookkeeper.get_ledger_metadata(single).last_fragment.ensemble == (lost.bookie_id,)
    finally:
        spare.stop()
        cluster.bookies.remove(spare)


def test_task_ends_if_its_ledger_is_deleted_or_no_longer_names_the_bookie(cluster, bookkeeper, worker):
    ledger_id = closed(bookkeeper)
    lost = member(cluster, bookkeeper, ledger_id)
    mark(bookkeeper, [lost], ledger_id)
    lost.stop()
    bookkeeper.delete_ledger(ledger_id)
    other = Mark(closed(bookkeeper), {"bookie-gone": Reason.LACKS, "bookie-lost": Reason.LOST})
    bookkeeper.metadata.underreplication.mark([other])
    running = worker()
    await_repaired(bookkeeper)
    assert running.progress().entries == 0


def test_entries_that_a_bookie_lacks_are_copied_to_that_bookie(cluster, bookkeeper, worker):
    ledgers = [closed(bookkeeper, quorums) for quorums in ((3, 3, 2), (5, 2, 2))]
    for bookie in cluster.bookies[:3]:
        before = {ledger_id: held_by(bookkeeper, bookie.bookie_id, ledger_id) for ledger_id in ledgers}
        if any(before.values()):
            break
    metadata = [bookkeeper.get_ledger_metadata(ledger_id) for ledger_id in ledgers]
    bookie.kill()
    bookie.wipe()
    bookie.start()
    assert not any(held_by(bookkeeper, bookie.bookie_id, ledger_id) for ledger_id in ledgers)
    worker()
    mark(bookkeeper, [bookie], *ledgers, reason=Reason.LACKS)
    await_repaired(bookkeeper)
    assert {ledger_id: held_by(bookkeeper, bookie.bookie_id, ledger_id) for ledger_id in ledgers} == before
    assert [bookkeeper.get_ledger_metadata(ledger_id) for ledger_id in ledgers] == metadata


def test_abandoned_ledger_is_closed_after_the_grace_time_and_blocks_no_other(cluster, bookkeeper, worker):
    with cluster.bookkeeper() as gone:
        left = written(gone).ledger_id
    lost = member(cluster, bookkeeper, left)
    other = closed(bookkeeper, (4, 4, 2))
    lost.stop()
    running = worker(ledgers_at_once=1, grace_seconds=SECONDS_MAX)
    mark(bookkeeper, [lost], left)
    tasks = bookkeeper.metadata.underreplication
    await_that(lambda: left in tasks.holders())
    mark(bookkeeper, [lost], other)
    await_that(lambda: tasks.task(other) is None)
    assert bookkeeper.get_ledger_metadata(left).state is LedgerState.OPEN
    assert running.stop()
    assert tasks.holders() == {}, "what it held is given back"
    worker(grace_seconds=0.5)
    await_repaired(bookkeeper)
    assert_whole(bookkeeper, left, lost)
    assert bookkeeper.get_ledger_metadata(left).last_entry_id == 49


def test_bookie_marked_during_a_repair_is_repaired_too(cluster, bookkeeper, worker):
    ledger_id = large(bookkeeper)
    lost, damaged = (member(cluster, bookkeeper, ledger_id, position) for position in (0, 1))
    before = held_by(bookkeeper, damaged.bookie_id, ledger_id)
    lost.stop()
    damaged.kill()
    damaged.wipe()
    damaged.start()
    running = worker(copy_bytes_per_second=SLOW)
    mark(bookkeeper, [lost], ledger_id)
    await_that(lambda: running.progress().entries)
    mark(bookkeeper, [damaged], ledger_id, reason=Reason.LACKS)
    assert ledger_id in bookkeeper.metadata.underreplication.holders(), "the first repair is under way"
    await_repaired(bookkeeper)
    assert_whole(bookkeeper, ledger_id, lost)
    assert held_by(bookkeeper, damaged.bookie_id, ledger_id) == before


def test_task_of_a_killed_worker_is_taken_by_another(cluster, bookkeeper):
    ledger_id = large(bookkeeper)
    lost = member(cluster, bookkeeper, ledger_id)
    lost.stop()
    tasks = bookkeeper.metadata.underreplication
    options = {"check_interval_hours": 0.0, "poll_seconds": 0.2}
    first = cluster.add_autorecovery(copy_bytes_per_second=SLOW // 10, **options)
    mark(bookkeeper, [lost], ledger_id)
    await_that(lambda: any(worker.entries for worker in tasks.progress().values()))
    assert tasks.holders() == {ledger_id: first.name}
    first.kill()
    assert lost.bookie_id in bookkeeper.get_ledger_metadata(ledger_id).last_fragment.ensemble
    second = cluster.add_autorecovery(**options)
    await_repaired(bookkeeper)  # once the session of the first worker has ended, and its lock with it
    assert_whole(bookkeeper, ledger_id, lost)
    second.stop()


def test_worker_begins_no_repair_while_autorecovery_is_disabled(cluster, bookkeeper, worker):
    ledger_id = closed(bookkeeper)
    lost = member(cluster, bookkeeper, ledger_id)
    lost.stop()
    tasks = bookkeeper.metadata.underreplication
    tasks.disable()
    mark(bookkeeper, [lost], ledger_id)
    running = worker()
    assert tasks.wait(0.0)
    stays(lambda: (tasks.holders(), running.progress().entries) == ({}, 0), seconds=0.5)
    tasks.enable()
    await_repaired(bookkeeper)
    assert_whole(bookkeeper, ledger_id, lost)


def test_decommission_moves_all_copies_and_removes_the_cookie(cluster, bookkeeper, worker):
    leaving = cluster.add_bookie()
    try:
        ledgers = [closed(bookkeeper, (6, 3, 2)), closed(bookkeeper, (6, 6, 2), entries=0)]
        with pytest.raises(BookieError, match=r"is registered, at .*; stop it first"):
            decommission(bookkeeper, leaving.bookie_id, timeout_seconds=SECONDS_MAX)
        leaving.stop()
        spare = cluster.add_bookie()
        worker()
        told = []
        decommission(bookkeeper, leaving.bookie_id, timeout_seconds=SECONDS_MAX, progress=told.append)
        assert (told[0].ledgers, told[0].ledgers_left, told[-1].ledgers_left) == (2, 2, 0)
        for ledger_id in ledgers:
            assert_whole(bookkeeper, ledger_id, leaving)
        assert leaving.bookie_id not in bookkeeper.metadata.list_cookies()
        with pytest.raises(InvalidCookieError, match="there is no bookie"):
            decommission(bookkeeper, leaving.bookie_id, timeout_seconds=SECONDS_MAX)
        spare.stop()
        cluster.bookies.remove(spare)
    finally:
        cluster.bookies.remove(leaving)


def test_decommission_is_refused_for_only_copies_and_without_a_worker(cluster, bookkeeper):
    single = closed(bookkeeper, (1, 1, 1))
    bookie = member(cluster, bookkeeper, single)
    bookie.stop()
    with pytest.raises(
        BookieError,
        match=rf"ledgers {single} have entries of which {bookie.bookie_id} and bookies that are down hold the only copies",
    ):
        decommission(bookkeeper, bookie.bookie_id, timeout_seconds=SECONDS_MAX)
    assert bookie.bookie_id in bookkeeper.metadata.list_cookies()
    assert bookkeeper.metadata.underreplication.list_tasks() == []
    bookkeeper.delete_ledger(single)
    other = closed(bookkeeper, (4, 4, 2))
    lost = member(cluster, bookkeeper, other)
    lost.stop()
    with pytest.raises(BookieError, match=r"1 of 1 ledgers still name .* is autorecovery running and enabled"):
        decommission(bookkeeper, lost.bookie_id, timeout_seconds=0.0)
    bookkeeper.delete_ledger(other)
    bookkeeper.metadata.underreplication.done(bookkeeper.metadata.underreplication.take(other, "a test"))


def test_worker_keeps_its_bandwidth_limit(cluster, bookkeeper, worker):
    ledger_id = large(bookkeeper)
    lost = member(cluster, bookkeeper, ledger_id)
    lost.stop()
    running = worker(copy_bytes_per_second=1_000_000)
    mark(bookkeeper, [lost], ledger_id)
    await_repaired(bookkeeper)
    copied = await_that(lambda: (found := running.progress()).ledgers and found)
    assert copied.bytes > 2_000_000
    assert copied.seconds > 1.0, "the second megabyte waited for the first"

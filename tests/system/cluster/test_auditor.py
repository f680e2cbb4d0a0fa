"""The auditor over real bookies, without any worker that repairs."""

from __future__ import annotations

import contextlib

import pytest

from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.store.autorecovery.auditor import Auditor
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.wire.header import Kind
from tests.awaiting import await_that
from tests.system.cluster.copies import replication_factors

pytestmark = [pytest.mark.acceptance, pytest.mark.cluster(bookies=5, zookeeper_session_timeout_seconds=4.0)]
FOR_EVER = 3600.0


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


@pytest.fixture
def bookkeeper(cluster):
    options = {"answer_timeout_seconds": 10.0, "add_timeout_seconds": 30.0, "delay_ensemble_change": True}
    with cluster.bookkeeper(client_name="writer", **options) as client:
        yield client
        for ledger_id in client.list_ledgers():
            client.delete_ledger(ledger_id)
        tasks = client.metadata.underreplication
        for ledger_id in tasks.list_tasks():
            assert tasks.done(tasks.take(ledger_id, "the test's end"))
        client.metadata.auditors.set_delay(None)
        tasks.enable()


@pytest.fixture
def tasks(bookkeeper):
    return bookkeeper.metadata.underreplication


@pytest.fixture
def auditors(bookkeeper):
    return bookkeeper.metadata.auditors


@pytest.fixture
def auditor(cluster):
    """Starts an auditor with its own client, and returns after its first look at the cluster."""
    with contextlib.ExitStack() as stack:

        def started(**options):
            client = stack.enter_context(cluster.bookkeeper())
            defaults = {
                "lost_bookie_delay_seconds": FOR_EVER,
                "check_interval_hours": 0.0,
                "check_confirm_seconds": 0.1,
            }
            running = Auditor(client, AutorecoveryConfig(**defaults | {"poll_seconds": 1.0} | options), "auditor")
            running.start()
            stack.callback(running.stop)
            await_that(client.metadata.auditors.state)
            return running

        yield started


@pytest.fixture
def check(auditors):
    """Triggers an exact check, and returns its report."""

    def made():
        before = auditors.last_check()
        auditors.trigger()
        await_that(lambda: auditors.triggered() is None)
        report = auditors.last_check()
        assert report != before
        return report

    return made


def written(bookkeeper, ensemble_size=3, entries=20):
    """A closed ledger with all copies written."""
    ledger = bookkeeper.create_ledger(ensemble_size, 3, 3)
    ledger.append_batch([b"%d" % i for i in range(entries)])
    ledger.close()
    return ledger.metadata


def members(metadata):
    return {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}


def naming(ledgers, *bookies):
    return sorted(metadata.ledger_id for metadata in ledgers if members(metadata) & {b.bookie_id for b in bookies})


def test_ledgers_of_a_lost_bookie_are_marked_only_after_the_delay(cluster, bookkeeper, auditor, auditors, tasks):
    ledgers = [written(bookkeeper) for _ in range(6)]
    auditor()
    lost = cluster.bookies[0]
    lost.kill()
    state = await_that(lambda: auditors.state().waiting and auditors.state())
    assert set(state.waiting) == {lost.bookie_id} and state.lost == () and tasks.list_tasks() == []
    auditors.set_delay(0)
    await_that(lambda: auditors.state().lost == (lost.bookie_id,))
    await_that(lambda: tasks.list_tasks() == naming(ledgers, lost))
    for ledger_id in tasks.list_tasks():
        assert tasks.task(ledger_id).of(Reason.LOST) == (lost.bookie_id,)
    assert auditors.state().waiting == {}


def test_bookie_that_returns_within_the_delay_is_not_lost(cluster, bookkeeper, auditor, auditors, tasks, check):
    written(bookkeeper, 5)
    auditor()
    bookie = cluster.bookies[0]
    bookie.stop()
    await_that(lambda: auditors.state().waiting)
    bookie.start()
    await_that(lambda: not auditors.state().waiting)
    assert check().marked == 0 and auditors.state().lost == () and tasks.list_tasks() == []


def test_a_rolling_restart_marks_nothing(cluster, bookkeeper, auditor, auditors, tasks, check):
    written(bookkeeper, 5)
    auditor()
    for bookie in cluster.bookies:
        bookie.stop()
        await_that(lambda: auditors.state().waiting)
        bookie.start()
        await_that(lambda: not auditors.state().waiting)
    report = check()
    assert (report.marked, report.skipped) == (0, {}) and tasks.list_tasks() == []


def test_second_lost_bookie_during_the_delay_marks_ledgers_at_once(cluster, bookkeeper, auditor, auditors, tasks):
    ledgers = [written(bookkeeper) for _ in range(6)]
    auditor()
    first, second = cluster.bookies[:2]
    first.stop()
    await_that(lambda: auditors.state().waiting)
    assert tasks.list_tasks() == []
    second.stop()
    await_that(lambda: set(auditors.state().lost) == {first.bookie_id, second.bookie_id})
    await_that(lambda: tasks.list_tasks() == naming(ledgers, first, second))


def test_nothing_is_marked_while_autorecovery_is_disabled(cluster, bookkeeper, auditor, auditors, tasks):
    written(bookkeeper, 5)
    tasks.disable()
    auditor(lost_bookie_delay_seconds=0.0)
    cluster.bookies[0].stop()
    await_that(lambda: auditors.state().lost)
    assert tasks.list_tasks() == []
    tasks.enable()
    await_that(tasks.list_tasks)


def test_bookies_missing_when_an_auditor_starts_have_the_whole_delay(cluster, bookkeeper, auditor, auditors, tasks):
    written(bookkeeper, 5)
    for bookie in cluster.bookies[:2]:
        bookie.stop()
    auditor()
    assert set(await_that(lambda: auditors.state().waiting)) == {bookie.bookie_id for bookie in cluster.bookies[:2]}
    assert auditors.state().lost == () and tasks.list_tasks() == []


def test_exact_check_marks_only_the_range_missing_on_a_bookie(cluster, bookkeeper, auditor, auditors, tasks, check):
    whole = [written(bookkeeper, size) for size in (3, 5)]
    ledger = bookkeeper.create_ledger(5, 3, 2)
    ledger.append_batch([b"%d" % i for i in range(20)])
    victim = ledger.metadata.last_fragment.ensemble[0]
    with cluster.wire.drop(Kind.ADD, client="writer", bookie=victim):
        for i in range(20, 30):
            ledger.append(b"%d" % i)
    ledger.append_batch([b"%d" % i for i in range(30, 40)])
    ledger.close()
    lacking = [i for i in range(20, 30) if victim in ledger.metadata.write_set_of(i)]
    assert len(ledger.metadata.fragments) == 1 and lacking
    await_that(lambda: replication_factors(bookkeeper, ledger.metadata, 40) == [3 - (i in lacking) for i in range(40)])
    auditor()
    report = check()
    assert (report.ledgers, report.marked, report.skipped) == (len(whole) + 1, 1, {})
    assert tasks.list_tasks() == [ledger.ledger_id]
    task = tasks.task(ledger.ledger_id)
    assert task.bookies == {victim: Reason.LACKS} and str(lacking[0]) in task.detail


def test_exact_check_ignores_entries_being_written(cluster, bookkeeper, auditor, tasks, check):
    ledger = bookkeeper.create_ledger(3, 3, 2)
    ledger.append(b"confirmed")
    with cluster.wire.drop(Kind.ADD, client="writer", bookie=ledger.metadata.last_fragment.ensemble[0]):
        ledger.append(b"on two of three")
        auditor()
        assert check().marked == 0 and tasks.list_tasks() == []


def test_exact_check_reports_bookies_it_could_not_ask(cluster, bookkeeper, auditor, tasks, check):
    written(bookkeeper, 5)
    away, silent = cluster.bookies[:2]
    away.stop()
    auditor()
    with cluster.wire.drop(bookie=silent.bookie_id, kind=Kind.RANGES):
        report = check()
    assert report.skipped.keys() == {away.bookie_id, silent.bookie_id}
    assert report.marked == 0 and tasks.list_tasks() == []


def test_exact_check_runs_at_its_interval(bookkeeper, auditor, auditors, tasks):
    written(bookkeeper)
    before = auditors.last_check()
    auditor(check_interval_hours=1 / 3600)
    await_that(lambda: auditors.last_check() != before)
    second = auditors.last_check()
    await_that(lambda: auditors.last_check() != second)
    assert tasks.list_tasks() == []

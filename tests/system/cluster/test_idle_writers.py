"""Writers that append nothing while a bookie of theirs is lost: they replace it, and autorecovery does not fence them."""

from __future__ import annotations

from collections.abc import Callable

from bookspark import BookKeeper
from bookspark.local import LocalCluster
from bookspark.logs import create_log
from tests.awaiting import await_that


def test_writer_without_appends_replaces_a_dead_bookie_and_goes_on(new_chroot: Callable[[], str]) -> None:
    with (
        LocalCluster(bookies=4, zookeeper=new_chroot(), zookeeper_session_timeout_seconds=2.0) as cluster,
        BookKeeper(cluster.zookeeper, lost_bookie_delay_seconds=0.5) as bookkeeper,
    ):
        log = create_log(bookkeeper, "rows")
        producer = log.producer("p")
        producer.append(b"0")
        (appended,) = [one for one in bookkeeper.list_ledgers() if not bookkeeper.get_ledger_metadata(one).closed][-1:]
        fresh = bookkeeper.create_ledger()
        before = {
            one: bookkeeper.get_ledger_metadata(one).last_fragment.ensemble for one in (appended, fresh.ledger_id)
        }
        (victim, *_) = set(before[appended]) & set(before[fresh.ledger_id])
        next(bookie for bookie in cluster.bookies if bookie.bookie_id == victim).kill()
        for one in before:
            await_that(
                lambda one=one: victim not in bookkeeper.get_ledger_metadata(one).last_fragment.ensemble,
                what=f"ledger {one} without {victim}",
            )
        producer.append(b"1")
        assert fresh.append(b"0") == 0
        producer.close()
        assert len(log.reader(start="earliest").read()) == 2


def test_autorecovery_leaves_ledgers_to_writers_that_live_and_recovers_those_of_dead_ones(
    new_chroot: Callable[[], str],
) -> None:
    """No bookie is free, so the writers can't replace the dead one; the recovery of a dead writer's ledger needs none."""
    autorecovery = {"lost_bookie_delay_seconds": 1.0, "grace_seconds": 1.0, "check_interval_hours": 0}
    with (
        LocalCluster(
            bookies=3, zookeeper=new_chroot(), zookeeper_session_timeout_seconds=2.0, autorecovery=autorecovery
        ) as cluster,
        BookKeeper(cluster.zookeeper, lost_bookie_delay_seconds=0.5) as bookkeeper,
        BookKeeper(cluster.zookeeper, lost_bookie_delay_seconds=3600.0) as deaf,
        BookKeeper(cluster.zookeeper, lost_bookie_delay_seconds=3600.0) as dies,
    ):
        fresh, idle, left = bookkeeper.create_ledger(), deaf.create_ledger(), dies.create_ledger()
        assert (idle.append(b"0"), left.append(b"0")) == (0, 0)
        cluster.bookies[0].kill()
        tasks = bookkeeper.metadata.underreplication
        await_that(lambda: len(tasks.list_tasks()) == 3, what="all three ledgers marked")
        dies.close()
        await_that(
            lambda: bookkeeper.get_ledger_metadata(left.ledger_id).closed, what="the dead writer's ledger closed"
        )
        assert (fresh.append(b"0"), idle.append(b"1")) == (0, 1)

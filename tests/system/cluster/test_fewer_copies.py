"""A log goes on while bookies are missing, over those that there are, and its ledgers get their other copies afterwards."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from functools import partial

import pytest

from bookspark.errors import NotEnoughBookiesError, ReadError
from bookspark.local import LocalCluster
from bookspark.logs import LogOptions, LogRegistry, LogRun, create_log, open_log
from bookspark.logs.chain import log_run
from bookspark.protocol.ledger.placement import PlacementRule
from bookspark.store.metadata.placement_rule import write_placement
from tests.awaiting import await_that

pytestmark = pytest.mark.acceptance

OPTIONS = {
    "client": {"metadata_session_timeout_seconds": 4.0},
    "lost_bookie_delay_seconds": 3600.0,
    "check_interval_hours": 0.0,
    "poll_seconds": 0.5,
    "retry_seconds": 0.5,
    "retry_seconds_max": 1.0,
}


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with LocalCluster(
        3, autorecovery=OPTIONS, zookeeper_session_timeout_seconds=4.0, zookeeper=new_chroot()
    ) as running:
        yield running


@pytest.fixture
def bookkeeper(cluster):
    with cluster.bookkeeper(metadata_session_timeout_seconds=4.0) as client:
        yield client
    cluster.bookies[0].start()
    cluster.bookies[1].start()


def shape(bookkeeper, ledger_id):
    found = bookkeeper.get_ledger_metadata(ledger_id)
    return found.ensemble_size, found.write_quorum, found.ack_quorum, found.state.value


def is_whole(bookkeeper, ledger_id):
    return shape(bookkeeper, ledger_id) == (3, 3, 2, "CLOSED")


def newest(bookkeeper):
    return max(bookkeeper.list_ledgers())


def without(cluster, bookkeeper, *numbers):
    """Kill these bookies, and wait until ZooKeeper has noticed it."""
    for number in numbers:
        cluster.bookies[number].kill()
    await_that(lambda: len(bookkeeper.metadata.bookies()) == 3 - len(numbers))


def why(cluster, *question):
    command = [sys.executable, "-m", "bookspark", "why", *question, "--zookeeper", cluster.zookeeper]
    return subprocess.run(command, capture_output=True, text=True, timeout=120).stdout


def test_producers_and_new_logs_go_on_with_two_of_three_bookies_and_get_three_copies_later(cluster, bookkeeper):
    log = create_log(bookkeeper, "orders")
    early, acknowledged = log.producer("early"), []

    def append(producer, text):
        acknowledged.append((producer.lane, producer.append(text).position, text))

    append(early, b"before")
    without(cluster, bookkeeper, 0)
    append(early, b"in the open ledger")
    late = log.producer("late")
    append(late, b"over two bookies")
    small = newest(bookkeeper)
    assert shape(bookkeeper, small) == (2, 2, 2, "OPEN")
    append(create_log(bookkeeper, "made-meanwhile").producer("first"), b"x")
    acknowledged.pop()
    batch = log.producer("closed-meanwhile")
    append(batch, b"one more")
    few = newest(bookkeeper)
    batch.close()
    assert shape(bookkeeper, few) == (2, 2, 2, "CLOSED")
    await_that(lambda: bookkeeper.metadata.underreplication.task(few) is not None, what="a task")
    assert f"ledger {few} has 2 of 3 copies" in why(cluster, "under-replicated", str(few))
    assert re.search(r"rows of log orders have one copy less than wanted: bookie \S+ is down", why(cluster))
    cluster.bookies[0].start()

    def goes_on_in_a_whole_ledger():
        append(late, b"again")
        return shape(bookkeeper, small)[3] == "CLOSED" and shape(bookkeeper, newest(bookkeeper))[:2] == (3, 3)

    await_that(goes_on_in_a_whole_ledger)
    for ledger_id in (small, few):
        await_that(partial(is_whole, bookkeeper, ledger_id), what=partial(shape, bookkeeper, ledger_id))
        held = bookkeeper.list_ranges(cluster.bookies[0].bookie_id, ledger_id)
        last = bookkeeper.get_ledger_metadata(ledger_id).last_entry_id
        assert (held["first_entry_id"].to_pylist(), held["last_entry_id"].to_pylist()) == ([0], [last])
    await_that(lambda: bookkeeper.metadata.underreplication.task(few) is None)
    # The copies count: without one of the two bookies that wrote it the ledger is read as before.
    without(cluster, bookkeeper, 1)
    with log.reader() as reader:
        assert sorted((row.lane, row.position, row.value) for row in reader) == sorted(acknowledged)


def test_recovery_marks_the_ledger_of_a_bookie_that_it_could_not_fence(cluster, bookkeeper):
    """It asks nothing about confirmed entries: 129 of them had two copies until the next exact check, and all was well."""
    with cluster.bookkeeper() as writer:
        ledger = writer.create_ledger(3, 3, 2)
        ledger.append(b"0")
        without(cluster, bookkeeper, 0)
        ledger.append_batch([b"%d" % i for i in range(20)])
    gone = cluster.bookies[0].bookie_id
    with bookkeeper.open_ledger(ledger.ledger_id) as closed:
        assert closed.last_add_confirmed == 20
    assert f"{gone} did not answer when the ledger was recovered" in why(
        cluster, "under-replicated", str(ledger.ledger_id)
    )
    cluster.bookies[0].start()

    def has_all():
        held = bookkeeper.list_ranges(gone, ledger.ledger_id)
        return held["last_entry_id"].to_pylist()[-1:] == [20]

    await_that(has_all, despite=ReadError)


def test_log_without_fewer_copies_waits_for_its_bookies(cluster, bookkeeper):
    log = create_log(bookkeeper, "whole")
    assert LogRegistry(bookkeeper.metadata).get("whole").options.fewer_copies
    log.alter(fewer_copies=False)
    without(cluster, bookkeeper, 0)
    with pytest.raises(NotEnoughBookiesError, match="an ensemble of 3 needs 3 writable bookies, there are 2"):
        log.producer("p").append(b"x")
    with pytest.raises(NotEnoughBookiesError, match="an ensemble of 3 needs 3 writable bookies, there are 2"):
        bookkeeper.create_ledger()
    log.alter(fewer_copies=True)
    assert open_log(bookkeeper, "whole").producer("q").append(b"x").position == 0


def test_fewer_bookies_than_the_ack_quorum_are_too_few(cluster, bookkeeper):
    log = create_log(bookkeeper, "two")
    without(cluster, bookkeeper, 0, 1)
    with pytest.raises(NotEnoughBookiesError, match="an ensemble of 3 needs 3 writable bookies, there are 1"):
        log.producer("p").append(b"x")


def test_writer_makes_no_ledger_of_the_same_size_while_placement_has_no_larger_ensemble(new_chroot, monkeypatch):
    """Three bookies can be written, in two zones: with one bookie a zone, and striping over what there is, two are the most."""
    looks = []
    look = LogRun.larger_ledger
    monkeypatch.setattr(LogRun, "larger_ledger", lambda *arguments: looks.append(1) or look(*arguments))
    monkeypatch.setattr(log_run, "LARGER_MS", 1)
    zones = [{"labels": {"zone": zone}} for zone in ("a", "b", "b")]
    with LocalCluster(zones, zookeeper=new_chroot()) as cluster:
        write_placement(cluster.bookkeeper().metadata, PlacementRule("one_per_zone"))
        client = cluster.bookkeeper(opportunistic_striping=True)
        log = create_log(client, "zones", options=LogOptions(ensemble_size=3, write_quorum=2, ack_quorum=2))
        producer = log.producer("p")
        await_that(lambda: producer.append(b"a row") and len(looks) > 20)
        assert {shape(client, one)[:2] for one in client.list_ledgers()} == {(2, 2)}
        assert len(client.list_ledgers()) == 2, "a commit ledger, and one for rows"
        cluster.add_bookie(labels={"zone": "c"})

        def goes_on_in_a_larger_ledger():
            producer.append(b"again")
            return shape(client, newest(client))[:2] == (3, 2)

        await_that(goes_on_in_a_larger_ledger)


def test_option_is_set_by_command(cluster, bookkeeper):
    def run(*words):
        command = [sys.executable, "-m", "bookspark", "log", *words, "--zookeeper", cluster.zookeeper]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout

    run("create", "by-command", "--no-fewer-copies")
    assert json.loads(run("describe", "by-command", "--json"))["fewer_copies"] is False
    assert json.loads(run("alter", "by-command", "--fewer-copies", "--json"))["fewer_copies"] is True

"""Racks hold: repairs keep them, and misplaced copies are moved, by the cluster's placement rule and with no client's option."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bookspark.local import LocalCluster
from bookspark.operations.cli.main import command_line
from tests.awaiting import await_that

AUTORECOVERY = {
    "lost_bookie_delay_seconds": 0.5,
    "check_interval_hours": 0.0,
    "check_confirm_seconds": 0.1,
    "grace_seconds": 0.5,
    "poll_seconds": 0.5,
    "retry_seconds": 0.2,
    "retry_seconds_max": 1.0,
}


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with LocalCluster(
        bookies=[{"rack": "A"}] * 3, zookeeper_session_timeout_seconds=4.0, zookeeper=new_chroot()
    ) as running:
        yield running


@pytest.fixture(scope="module")
def bookkeeper(cluster):
    with cluster.bookkeeper() as client:
        yield client


def placement(cluster, *arguments):
    done = CliRunner().invoke(command_line(), ["cluster", "placement", *arguments, "--zookeeper", cluster.zookeeper])
    assert done.exit_code == 0, done.output
    return done.output


def written(bookkeeper, ensemble_size, write_quorum):
    ledger = bookkeeper.create_ledger(ensemble_size, write_quorum, write_quorum)
    ledger.append_batch([b"%d" % i for i in range(20)])
    ledger.close()
    return ledger.ledger_id


def racks(cluster, bookkeeper, ledger_id):
    rack_of = dict(zip([bookie.bookie_id for bookie in cluster.bookies], "AAABBCC", strict=False))
    (fragment,) = bookkeeper.get_ledger_metadata(ledger_id).fragments
    return [rack_of[bookie] for bookie in fragment.ensemble]


def spread(racks):
    """Are the copies of each entry on two racks, with a write quorum of two?"""
    return all(racks[place] != racks[place - 1] for place in range(len(racks)))


def test_ledgers_from_before_the_rule_are_moved_in_as_many_steps_as_they_need(cluster, bookkeeper):
    of_three, striped = written(bookkeeper, 3, 3), written(bookkeeper, 3, 2)
    assert racks(cluster, bookkeeper, of_three) == ["A", "A", "A"]
    for rack in "BB":
        cluster.add_bookie(rack=rack)
    told = CliRunner().invoke(command_line(), ["why", "--json", "--zookeeper", cluster.zookeeper]).output
    (trouble,) = [one for one in json.loads(told)["troubles"] if one["kind"] == "misplaced"]
    assert f"{of_three}" in trouble["subject"] and "copies of 2 ledgers are misplaced" in trouble["verdict"]
    cluster.add_autorecovery(**AUTORECOVERY)
    placement(cluster, "random")
    await_that(lambda: bookkeeper.metadata.auditors.triggered() is None)
    adjoining = [list("AABB"), list("ABBA"), list("BBAA"), list("BAAB")]
    with cluster.bookkeeper() as client:
        two_steps = next(one for _ in range(300) if racks(cluster, client, one := written(client, 4, 2)) in adjoining)
    placement(cluster, "rack_aware")
    await_that(lambda: spread(racks(cluster, bookkeeper, two_steps)))
    await_that(lambda: set(racks(cluster, bookkeeper, of_three)) == {"A", "B"})

    for rack in "CC":
        cluster.add_bookie(rack=rack)
    told = placement(cluster, "rack_aware", "--racks-min", "3")
    assert "rack_aware with racks_min 3" in told
    assert [line.split()[:2] for line in told.splitlines()[1:]] == [["rack", "A"], ["rack", "B"], ["rack", "C"]]
    await_that(lambda: set(racks(cluster, bookkeeper, of_three)) == {"A", "B", "C"})
    await_that(lambda: spread(racks(cluster, bookkeeper, striped)))
    assert [entry.payload for entry in bookkeeper.open_ledger(of_three).read()] == [b"%d" % i for i in range(20)]


def test_repair_keeps_copies_on_different_racks(cluster, bookkeeper):
    placement(cluster, "rack_aware", "--racks-min", "2")
    victim = cluster.bookies[3]
    ledgers = []
    while len(ledgers) < 6:
        ledger_id = written(bookkeeper, 2, 2)
        if victim.bookie_id in bookkeeper.get_ledger_metadata(ledger_id).bookies():
            ledgers.append(ledger_id)
    victim.kill()
    assert f"{victim.bookie_id} (down)" in await_that(
        lambda: victim.bookie_id not in bookkeeper.metadata.bookies() and placement(cluster)
    )
    for ledger_id in ledgers:
        await_that(lambda: victim.bookie_id not in bookkeeper.get_ledger_metadata(ledger_id).bookies())  # noqa: B023
        assert len(set(racks(cluster, bookkeeper, ledger_id))) == 2

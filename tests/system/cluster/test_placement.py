"""Placement of ledgers on real bookies of two racks, and bookies that move, pause and lose their sessions."""

from __future__ import annotations

import re
from functools import partial

import pytest
from typer.testing import CliRunner

from bookspark import errors
from bookspark.local import LocalCluster
from bookspark.operations.cli.main import command_line
from bookspark.store.client.network import free_space
from tests.awaiting import SECONDS_MAX, Changes, await_that
from tests.store.metadata.kit import end_session

pytestmark = pytest.mark.usefixtures("everyone_is_back")

SECONDS = SECONDS_MAX


@pytest.fixture(scope="module")
def cluster(new_chroot):
    with LocalCluster(
        bookies=[{"rack": rack, "labels": {"executor": f"{rack}-1"}} for rack in "AABB"], zookeeper=new_chroot()
    ) as running:
        yield running


@pytest.fixture
def short_session(cluster):
    """An additional bookie whose session expires soon when the process is suspended or starved."""
    made = cluster.add_bookie(rack="B", labels={"executor": "B-1"}, zookeeper_session_timeout_seconds=2.0)
    yield made
    made.stop()
    cluster.bookies.remove(made)


@pytest.fixture(autouse=True)
def default_rule(cluster):
    yield
    placement(cluster, "rack_aware")


def placement(cluster, *arguments):
    """The output of ``bookspark cluster placement``."""
    done = CliRunner().invoke(command_line(), ["cluster", "placement", *arguments, "--zookeeper", cluster.zookeeper])
    if done.exception is not None:
        raise done.exception
    return done.output


def refused(client, size, told):
    """The error of a running client, once it follows the rule; "" before."""
    try:
        client.create_ledger(size, size, size)
    except errors.NotEnoughBookiesError as error:
        return str(error) if re.search(told, str(error)) else ""
    return ""


def racks_of(client, ensemble):
    bookies = client.metadata.bookies()
    return {bookies[bookie_id].rack for bookie_id in ensemble}


def bookie(cluster, bookie_id):
    return next(bookie for bookie in cluster.bookies if bookie.bookie_id == bookie_id)


# -- policies


def test_copies_are_on_both_racks_also_after_an_ensemble_change(cluster):
    client = cluster.bookkeeper()
    placement(cluster, "rack_aware", "--racks-min=2")
    for _ in range(10):
        ledger = client.create_ledger(2, 2, 2)
        assert racks_of(client, ledger.metadata.last_fragment.ensemble) == {"A", "B"}
    ledger.append(b"0")
    bookie(cluster, ledger.metadata.last_fragment.ensemble[0]).kill()
    assert ledger.append(b"1") == 1
    assert len(ledger.metadata.fragments) == 2
    assert racks_of(client, ledger.metadata.last_fragment.ensemble) == {"A", "B"}
    ledger.close()


def test_placement_refusal_names_every_bookie_and_the_reason(cluster):
    client = cluster.bookkeeper()
    for rule, size, told in (
        (("rack_aware", "--racks-min=3"), 3, "on rack 'A'.*not enough on at least 3 racks"),
        (("one_per_host",), 2, "there are 1 .*shares host"),
        (("one_per_executor",), 3, "there are 2 .*shares executor [AB]-1 with"),
        (("one_per_zone",), 1, "there are 0 .*does not tell its zone"),
    ):
        placement(cluster, *rule)
        await_that(partial(refused, client, size, told))
        assert all(each.bookie_id in refused(client, size, told) for each in cluster.bookies)
    with pytest.raises(errors.ConfigurationError, match="one_per_<label>"):
        placement(cluster, "one per host")
    placement(cluster, "one_per_executor")
    ledger = cluster.bookkeeper().create_ledger(2, 2, 2)
    assert racks_of(client, ledger.metadata.last_fragment.ensemble) == {"A", "B"}


def test_opportunistic_striping_accepts_fewer_bookies_than_the_ensemble_size(cluster):
    with pytest.raises(errors.NotEnoughBookiesError, match="an ensemble of 6 needs 6 writable bookies, there are 4"):
        cluster.bookkeeper().create_ledger(6, 2, 2)
    client = cluster.bookkeeper(opportunistic_striping=True)
    ledger = client.create_ledger(6, 2, 2)
    assert client.get_ledger_metadata(ledger.ledger_id).ensemble_size == 4
    ledger.append_batch([b"%d" % i for i in range(20)])
    ledger.close()
    assert [e.payload for e in client.open_ledger(ledger.ledger_id).read()] == [b"%d" % i for i in range(20)]
    with pytest.raises(errors.NotEnoughBookiesError, match="an ensemble of 5 needs 5"):
        client.create_ledger(6, 5, 5)


def test_free_space_guides_placement_and_a_hung_bookie_is_skipped(cluster, monkeypatch):
    client = cluster.bookkeeper(placement_by_free_space=True)
    cluster.bookies[0].suspend()
    monkeypatch.setattr(free_space, "_AGE_SECONDS", 0.0)  # a slow bookie answers at the next request
    told, others = {}, {each.bookie_id for each in cluster.bookies[1:]}
    while not told.keys() >= others:
        told = client.context.runtime.free_space.of([each.bookie_id for each in cluster.bookies])
    assert told.keys() == others
    assert all(free > 0 for free in told.values())
    favourite = cluster.bookies[2].bookie_id
    everyone = dict.fromkeys((each.bookie_id for each in cluster.bookies), 1)
    monkeypatch.setattr(client.context.runtime.free_space, "of", lambda ids: everyone | {favourite: 1 << 50})
    assert {client.create_ledger(1, 1, 1).metadata.last_fragment.ensemble for _ in range(5)} == {(favourite,)}


def test_bookie_in_quarantine_gets_no_new_ledger_while_others_exist(cluster):
    client = cluster.bookkeeper(answer_timeout_seconds=0.5, quarantine_seconds=600)
    ledger = client.create_ledger(4, 4, 3)
    hung = cluster.bookies[1]
    hung.suspend()
    with pytest.raises(errors.ReadError):
        client.bookie_status(hung.bookie_id)
    for _ in range(10):
        assert hung.bookie_id not in client.create_ledger(3, 3, 3).metadata.last_fragment.ensemble
    with pytest.raises(errors.NotEnoughBookiesError) as caught:
        client.create_ledger(5, 5, 5)
    assert f"{hung.bookie_id} on rack 'A' (in quarantine for " in str(caught.value)
    hung.resume()
    ledger.close()


# -- bookies that move and pause


def test_bookie_that_returns_at_another_address_is_reached(cluster):
    client = cluster.bookkeeper()
    ledger = client.create_ledger(4, 4, 4)  # without a spare, appends must go to the moved bookie
    ledger.append(b"0")
    moved = bookie(cluster, ledger.metadata.last_fragment.ensemble[0])
    before, identity = moved.address, moved.bookie_id
    moved.kill()
    moved.start()
    assert moved.bookie_id == identity
    assert moved.address != before
    assert ledger.append(b"1") == 1
    for each in cluster.bookies:
        if each is not moved:
            each.kill()
    reader = client.open_ledger_no_recovery(ledger.ledger_id)
    assert [entry.payload for entry in reader.read_unconfirmed(0, 1)] == [b"0", b"1"]


def test_bookie_registers_again_after_its_session_expired_while_suspended(cluster, short_session):
    client, paused = cluster.bookkeeper(), short_session
    told = Changes()
    client.metadata.watch_bookies(told)
    paused.suspend()
    told.await_that(lambda: paused.bookie_id not in client.metadata.bookies())
    paused.resume()
    # On a busy machine its session may end once more.
    back = told.await_that(lambda: client.metadata.bookies().get(paused.bookie_id))
    assert (back.rack, back.labels, back.address) == ("B", {"executor": "B-1"}, paused.address)
    assert client.bookie_status(paused.bookie_id).pid == paused.pid, "the same process"


def expire(client):
    """End the client's session at the server."""
    end_session(client.zookeeper.partition("/")[0], client.metadata.client)


def test_ledgers_stay_usable_after_the_clients_session_expired(cluster):
    client = cluster.bookkeeper()
    ledger = client.create_ledger(2, 2, 2)
    ledger.append(b"0")
    reader = client.open_ledger_no_recovery(ledger.ledger_id)
    expire(client)
    assert ledger.append(b"1") == 1
    bookie(cluster, ledger.metadata.last_fragment.ensemble[0]).kill()
    expire(client)
    assert ledger.append(b"2") == 2, "with an ensemble change over the session that has just expired"
    expire(client)
    other = client.create_ledger(2, 2, 2)
    assert reader.read_last_add_confirmed_and_entry(2, timeout=SECONDS)[0] == 2
    expire(client)
    ledger.close()
    assert reader.read_last_add_confirmed_and_entry(3, timeout=SECONDS) == (2, None), "the watch was set again"
    assert client.open_ledger(other.ledger_id).last_add_confirmed == -1

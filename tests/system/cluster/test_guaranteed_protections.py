"""Losses that the tweaks of "Guaranteeing write quorum" prevent, on real bookies."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest

from bookspark import errors
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.writing.replication import GuaranteedWriteQuorum
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.store.client.writing import ledger_driver
from bookspark.store.wire.header import Kind
from tests.awaiting import await_that
from tests.scenarios.test_guaranteed_write_quorum_figures import WithoutPinning
from tests.system.cluster.copies import replication_factors
from tests.system.cluster.story import Story

pytestmark = pytest.mark.cluster(bookies=6)


@pytest.fixture
def cluster(faulty_cluster):
    return faulty_cluster


@pytest.fixture
def reader(cluster):
    with cluster.bookkeeper(client_name="reader") as client:
        yield client


@pytest.mark.parametrize(("policy", "kept"), [(WithoutPinning, []), (GuaranteedWriteQuorum, [b"e0"])])
def test_figure_3_confirmed_entry_survives_ensemble_changes_only_with_pinning(
    cluster, reader, monkeypatch, policy, kept
):
    """Bookies that host a confirmed entry below WQ (write quorum) are pinned. Without pinning they leave before others have
    the entry, and it is lost though it was acknowledged."""
    monkeypatch.setattr(ledger_driver, "LedgerWriter", partial(LedgerWriter, replication=policy()))
    told = Story(cluster, "guaranteed")
    with told.loses("b3"):
        told.append()
        to_new_bookies = told.parks_all_but("b1", "b2", "b3")
        told.cut("b3")
        await_that(lambda: told.ensemble == ("b1", "b2", "b4"))
    told.loses("b1", "b2")
    e1 = told.ledger.append_async(b"e1")
    told.cut("b1", "b2")
    # New bookies are named in the order in which they join.
    ensembles = [("b1", "b2", "b4")] if kept else [("b5", "b6", "b4"), ("b6", "b5", "b4")]
    await_that(lambda: told.fragments in [[(0, ensemble)] for ensemble in ensembles])
    assert not e1.done()
    told.client.close()
    to_new_bookies.lose()
    cluster.wire.heal()
    opened = reader.open_ledger(told.ledger.ledger_id)
    assert [entry.payload for entry in opened.read()] == kept
    assert replication_factors(reader, opened.metadata, len(kept)) == [3] * len(kept)


def test_tweak_3_recovery_never_closes_below_the_highest_known_lac(cluster, reader):
    """The metadata names two bookies that hold nothing of the ledger, as if it had been changed without copying. The third
    holds no entry either, but received the LAC."""
    told = Story(cluster, "guaranteed")
    told.loses("b3")
    for _ in range(5):
        told.append()
    lac_heard = cluster.wire.delay(0.0, Kind.WRITE_LAC, client="writer", response=True)
    assert told.ledger.flush_last_add_confirmed() == 4
    lac_heard.wait(3)
    told.client.close()
    right, version = reader.metadata.read_ledger(told.ledger.ledger_id)
    strangers = [bookie.bookie_id for bookie in cluster.bookies if bookie.bookie_id not in right.fragments[0].ensemble]
    wrong = replace(right, fragments=(Fragment(0, (*strangers[:2], told.id_of("b3"))),))
    reader.metadata.write_ledger(wrong, version)
    # Otherwise the two empty bookies would be a coverage.
    cluster.wire.drop(Kind.READ_LAC, client="reader", bookie=strangers[0])
    with pytest.raises(
        errors.LedgerRecoveryError, match=r"entry 0 is confirmed, but seems absent.*Nothing was truncated"
    ):
        reader.open_ledger(told.ledger.ledger_id)
    found, version = reader.metadata.read_ledger(told.ledger.ledger_id)
    assert (found.state, found.last_entry_id) == (LedgerState.IN_RECOVERY, wrong.last_entry_id)
    reader.metadata.write_ledger(replace(found, fragments=right.fragments), version)
    opened = reader.open_ledger(told.ledger.ledger_id)
    assert [entry.payload for entry in opened.read()] == [b"e%d" % entry for entry in range(5)]
    assert replication_factors(reader, opened.metadata, 5) == [3] * 5

"""``bookspark bookie safe-to-stop``: whether a bookie may be stopped now, answered in seconds and without Spark."""

from __future__ import annotations

import json
import threading

import pytest

from bookspark.local import LocalCluster
from tests.operations.cli.conftest import Run


@pytest.fixture
def ids(cluster: LocalCluster) -> list[str]:
    return [bookie.bookie_id for bookie in cluster.bookies]


def test_safe_to_stop_allows_only_bookies_that_no_ledger_needs(
    on_cluster: Run, cluster: LocalCluster, ids: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with cluster.bookkeeper() as bookkeeper:
        for closed in (True, False):
            ledger = bookkeeper.create_ledger(3, 3, 2)
            ledger.append(b"entry")
            if closed:
                ledger.close()
        one = on_cluster("bookie", "safe-to-stop", ids[0], ids[0])
        assert (one.status, one.text) == (
            0,
            f"safe: without {ids[0]} every entry keeps an ack quorum, and every open ledger can be recovered\n",
        )
        two = on_cluster("bookie", "safe-to-stop", *ids[:2], "--json")
        found = json.loads(two.text)
        assert two.status == 1 and not found["safe"]
        assert {one["why"] for one in found["dangers"]} == {
            "too few copies would be left",
            "it is not closed, and too few bookies would be left to recover it",
        }
        assert on_cluster("bookie", "safe-to-stop", "bookie-of-nobody").status == 2
        # In a pod, the command asks about the pod's own bookie.
        monkeypatch.setenv("BOOKSPARK_BOOKIE_ID", ids[0])
        assert on_cluster("bookie", "safe-to-stop").status == 0
        cluster.bookies[1].kill()
        try:
            gone = on_cluster("bookie", "safe-to-stop")
            assert gone.status == 1 and "too few copies would be left" in gone.text
            # With --wait the command waits until the other bookie is back.
            starting = threading.Timer(1.0, cluster.bookies[1].start)
            starting.start()
            assert on_cluster("bookie", "safe-to-stop", "--wait", "300").status == 0
            starting.join()
        finally:
            cluster.bookies[1].start()
        ledger.close()


def test_bookie_marked_as_lacking_entries_is_asked_for_its_actual_entries(
    on_cluster: Run, cluster: LocalCluster, ids: list[str]
) -> None:
    from bookspark.protocol.repair.underreplication_task import Mark, Reason

    with cluster.bookkeeper() as bookkeeper:
        with bookkeeper.create_ledger(3, 2, 2) as striped:
            striped.append_batch([b"entry"] * 6)
        # Its task says that the bookie may lack entries; its own list of entries shows that it lacks none.
        tasks = bookkeeper.metadata.underreplication
        tasks.mark([Mark(striped.ledger_id, {ids[1]: Reason.LACKS})])
        assert on_cluster("bookie", "safe-to-stop", ids[0]).status == 1, "two copies, and both are needed"
        bookkeeper.delete_ledger(striped.ledger_id)
        assert on_cluster("bookie", "safe-to-stop", ids[0]).status == 0

"""An older backup of ZooKeeper's data is restored: nothing that bookies hold is deleted or mixed with later entries."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookspark.operations.why.gathering import gather
from bookspark.operations.why.troubles import health_of
from bookspark.store.metadata.lost_records import read_lost_records
from tests.awaiting import await_that
from tests.older_metadata import OLD, set_back, written
from tests.operations.cli.conftest import Run

NEW = [b"new %d" % number for number in range(20)]


@pytest.mark.acceptance
def test_ledgers_missing_from_a_restored_backup_are_kept_until_given_up(
    tmp_path: Path, bookspark: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with set_back(tmp_path) as (cluster, known, forgotten):
        monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
        bookkeeper = cluster.bookkeeper()
        (lost,) = read_lost_records(bookkeeper.metadata)
        assert lost.first <= min(forgotten) and lost.last >= max(forgotten)
        assert health_of(gather(bookkeeper)).troubles[0].kind == "lost-records"

        # No new ledger gets one of their ids, or old and new entries would be mixed.
        fresh = written(bookkeeper, NEW, 4)
        assert min(fresh) > lost.last
        assert [entry.payload for entry in bookkeeper.open_ledger(fresh[0]).read()] == NEW
        assert [entry.payload for entry in bookkeeper.open_ledger(known).read()] == OLD

        def held() -> set[int]:
            return {
                row["ledger_id"] for one in cluster.bookies for row in bookkeeper.list_ranges(one.bookie_id).to_pylist()
            }

        def collected() -> list[str]:
            return [bookspark("bookie", "collect", one.bookie_id).err for one in cluster.bookies]

        assert all(f"the record of ledger {forgotten[0]} is lost" in told for told in collected())
        assert held() == {known, *forgotten, *fresh}

        told = json.loads(bookspark("ledger", "lost", "--json").text)
        assert told["ranges"] == [list(lost)]
        assert told["held"] == [
            {"ledger_id": ledger_id, "bookie": bookie, "first_entry_id": 0, "last_entry_id": 29}
            for ledger_id in forgotten
            for bookie in sorted(one.bookie_id for one in cluster.bookies)
        ]
        assert "3 ledgers given up" in bookspark("ledger", "lost", "--give-up", "--yes").err
        collected()
        await_that(lambda: held() == {known, *fresh})
        assert "lost-records" not in {one.kind for one in health_of(gather(bookkeeper)).troubles}

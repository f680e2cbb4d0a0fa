"""The tutorial, and then the guide on audits in the same cluster, run as they are written (``tests.pages``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import TUTORIAL, local_cluster, run, script_of, session_of

FEW_AUDITS = """
from bookspark.spark.audit import runner

runner.names = lambda: ["bytes_per_bookie", "garbage_per_entry_log", "replication_factor_histogram", "under_replicated_ranges"]
"""
"""Instead of all audits, which ``test_audit_queries`` runs: Spark takes seconds to plan one."""


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_tutorial_and_guide_on_audits_run_as_written(tmp_path: Path) -> None:
    with local_cluster(tmp_path, TUTORIAL) as environment:
        # The bookie that the tutorial's reader starts serves until the guide has taken its snapshot.
        script, end = script_of("tutorial.md").rsplit("kill %1", 1)
        assert end.strip() == ""
        printed = run(f"{script}\n{session_of({'guides/audits.md': FEW_AUDITS})}\nkill %1\n", tmp_path, environment)
        tutorial, audited = printed.rsplit(" is well: 4 of 4 bookies are up", 1)
        assert tutorial.count(" is well: 4 of 4 bookies are up") == 1
        assert "order 998\norder 999\norder 1000\n" in tutorial
        assert "1001 rows" in tutorial and "order in the night" in tutorial
        assert "there is a trouble" in tutorial
        # On a busy machine ZooKeeper may have noticed the kill when `bookspark why` looks.
        assert "does not answer" in tutorial or "is down" in tutorial
        assert "Under-replicated ranges: none" in audited
        assert "Replication factor histogram" in audited and (tmp_path / "audits.html").stat().st_size > 10_000
        assert "|sum(bytes)|sum(live_bytes)|" in audited
        assert "|version|timestamp" in audited and "|ledger_id|state|" in audited

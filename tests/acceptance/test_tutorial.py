"""The tutorial, and the guide on audits, run as they are written (``tests.pages``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pages import local_cluster, run, script_of


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_ten_minutes_with_a_log_and_audits_of_last_week(tmp_path: Path) -> None:
    with local_cluster(tmp_path) as environment:
        printed = run(script_of("tutorial.md"), tmp_path, environment)
        assert printed.count(" is well: 4 of 4 bookies are up") == 2
        assert "order 998\norder 999\norder 1000\n" in printed
        assert "1001 rows" in printed and "order in the night" in printed
        assert "there is a trouble" in printed
        # On a busy machine ZooKeeper has noticed the kill when `bookspark why` looks.
        assert "does not answer" in printed or "is down" in printed
        assert "Under-replicated ranges: none" in printed
        audited = run(script_of("guides/audits.md"), tmp_path, environment)
        assert "Replication factor histogram" in audited and (tmp_path / "audits.html").stat().st_size > 10_000
        assert "|sum(bytes)|sum(live_bytes)|" in audited
        assert "|version|timestamp" in audited and "|ledger_id|state|" in audited

"""``bookspark cluster …`` against a cluster of three bookies."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from tests.awaiting import await_that
from tests.operations.cli.conftest import Run


@pytest.fixture
def quick(tmp_path: Path) -> str:
    path = tmp_path / "settings.toml"
    path.write_text("[changes]\npoll_seconds = 0.1\nconfirm_seconds = 0.1\nstall_seconds = 600.0\n")
    return str(path)


def test_commands_before_the_first_change_report_no_change(on_cluster: Run) -> None:
    outcome = on_cluster("cluster", "status")
    assert outcome.status == 0 and "nobody ever changed" in outcome.text
    assert on_cluster("cluster", "apply", "--yes").status == 2
    assert "no change of this cluster is under way" in on_cluster("cluster", "give-up").err
    assert "say what is wanted" in on_cluster("cluster", "plan").err


def test_plan_changes_nothing_and_is_also_printed_as_json(on_cluster: Run, cluster: LocalCluster) -> None:
    names = sorted(one.bookie_id for one in cluster.bookies)
    pids = [one.pid for one in cluster.bookies]
    outcome = on_cluster("cluster", "plan", "--restart", "all")
    assert outcome.status == 0
    assert [line for line in outcome.text.splitlines() if line.startswith("restart")] == [
        f"restart {name}" for name in names
    ]
    found = json.loads(on_cluster("cluster", "plan", "--restart", names[0], "--json").out)
    assert [one["step"] for one in found["steps"]] == ["SetReadOnly", "Restart", "Resume"]
    assert found["moves"] == 0 and found["waits"] == found["refusals"] == []
    assert [one.pid for one in cluster.bookies] == pids
    assert "nobody ever changed" in on_cluster("cluster", "status").text


def test_impossible_changes_are_reported_by_the_plan(on_cluster: Run, cluster: LocalCluster) -> None:
    with cluster.bookkeeper() as bookkeeper, bookkeeper.create_ledger() as ledger:
        ledger.append(b"x")
        name = cluster.bookies[0].bookie_id
        outcome = on_cluster("cluster", "plan", "--remove", name)
        assert outcome.status == 1
        assert re.search(rf"impossible  ledger {ledger.ledger_id} has .*start one more bookie", outcome.text)
        outcome = on_cluster("cluster", "plan", "--restart", name)
        assert outcome.status == 1 and "--below-write-quorum" in outcome.text
        assert on_cluster("cluster", "plan", "--restart", name, "--below-write-quorum").status == 0
    bookkeeper = cluster.bookkeeper()
    bookkeeper.delete_ledger(ledger.ledger_id)
    bookkeeper.close()
    assert "there is no bookie nobody" in on_cluster("cluster", "plan", "--remove", "nobody").text
    assert "--move" in on_cluster("cluster", "plan", "--move", "a").err
    assert "neither a bookie nor a host" in on_cluster("cluster", "plan", "--move", f"{name}=nowhere").err


def test_upgrade_to_the_running_version_plans_nothing(on_cluster: Run) -> None:
    import bookspark

    outcome = on_cluster("cluster", "plan", "--upgrade-to", bookspark.__version__)
    assert outcome.status == 0 and "nothing is to be done" in outcome.text


def test_apply_asks_the_operator_to_restart_a_bookie_and_then_completes(
    on_cluster: Run, cluster: LocalCluster, quick: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:
    bookie = cluster.bookies[0]
    pid = bookie.pid
    refused = on_cluster("--config", quick, "cluster", "apply", "--restart", bookie.bookie_id, stdin=b"n\n")
    assert refused.status == 2 and "not confirmed" in refused.err and bookie.pid == pid
    with cluster.bookkeeper() as bookkeeper:

        def operate() -> None:
            from bookspark.operations.changes.change_record import Kept

            def asked() -> bool:
                record = Kept(bookkeeper.metadata).read()
                return record is not None and bookie.bookie_id in record.progress.away

            await_that(asked)
            bookie.stop()
            bookie.start()

        operator = threading.Thread(target=operate)
        operator.start()
        outcome = on_cluster("--config", quick, "cluster", "apply", "--restart", bookie.bookie_id, "--yes", "--json")
        operator.join()
        assert outcome.status == 0, outcome.err
        assert json.loads(outcome.out)["state"] == "complete"
        assert f"do this now: restart {bookie.bookie_id}" in outcome.err
        assert bookie.pid != pid
        assert not bookkeeper.bookie_status(bookie.bookie_id).read_only
    status = on_cluster("cluster", "status")
    assert status.status == 0 and "complete" in status.text
    assert json.loads(on_cluster("cluster", "status", "--json").out)["change"]["steps"] == 3

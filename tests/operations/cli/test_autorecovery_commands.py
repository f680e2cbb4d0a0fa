"""``bookspark autorecovery …`` against a cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from bookspark.local import LocalCluster
from bookspark.protocol.repair.underreplication_task import Mark, Reason
from tests.awaiting import SECONDS_MAX, await_that
from tests.operations.cli.conftest import Run

QUIET = {"check_interval_hours": 0.0, "check_confirm_seconds": 0.1, "poll_seconds": 0.5}


@pytest.fixture
def auditor(cluster: LocalCluster) -> Iterator[str]:
    """The name of a running auditor."""
    process = cluster.add_autorecovery(**QUIET)
    with cluster.bookkeeper() as bookkeeper:
        await_that(lambda: bookkeeper.metadata.auditors.auditor() == process.name)
    yield process.name
    process.stop()
    cluster.autorecovery.remove(process)


@pytest.fixture
def marked(cluster: LocalCluster) -> Iterator[int]:
    """A ledger whose repair task has failed once and can't succeed."""
    bookkeeper = cluster.bookkeeper()
    ledger = bookkeeper.create_ledger(ensemble_size=2, write_quorum=2)
    ledger.append_batch([b"12345"] * 100)
    ledger.close()
    tasks = bookkeeper.metadata.underreplication
    gone = ledger.metadata.last_fragment.ensemble[0]
    tasks.mark([Mark(ledger.ledger_id, {gone: Reason.LOST}, f"{gone} lost")])
    taken = tasks.take(ledger.ledger_id, "worker-1")
    assert taken is not None
    tasks.failed(taken, "no other bookie", 3600.0)
    assert tasks.take(ledger.ledger_id, "worker-2") is not None
    yield ledger.ledger_id
    bookkeeper.close()
    with cluster.bookkeeper() as another:
        tasks = another.metadata.underreplication
        taken = tasks.take(ledger.ledger_id, "the test's end")
        assert taken is not None and tasks.done(taken)
        another.delete_ledger(ledger.ledger_id)


def test_commands_without_an_auditor_fail_or_report_unknown_values(on_cluster: Run) -> None:
    for command in ("who-is-auditor", "trigger"):
        outcome = on_cluster("autorecovery", command)
        assert outcome.status == 2 and "bookspark autorecovery run" in outcome.err
    outcome = on_cluster("autorecovery", "status")
    assert outcome.status == 0 and "auditor     none" in outcome.text
    for name in ("lost", "may be lost", "left"):
        assert f"{name:<12}nobody knows" in outcome.text
    told = json.loads(on_cluster("autorecovery", "status", "--json").out)
    assert (told["auditor"], told["lost"], told["away"], told["seconds_left"], told["ledgers"]) == (
        None,
        None,
        None,
        None,
        0,
    )
    assert json.loads(on_cluster("autorecovery", "list", "--json").out) == []


def test_underreplicated_ledgers_are_listed_with_their_reasons(on_cluster: Run, marked: int) -> None:
    (task,) = json.loads(on_cluster("autorecovery", "list", "--json").out)
    assert task["ledger_id"] == marked and list(task["bookies"].values()) == ["lost"]
    assert (task["attempts"], task["error"], task["holder"]) == (1, "no other bookie", "worker-2")
    assert task["next_attempt_seconds"] > 0
    shown = on_cluster("autorecovery", "list").text
    assert "no other bookie" in shown and "worker-2" in shown
    status = json.loads(on_cluster("autorecovery", "status", "--json").out)
    assert (status["ledgers"], status["being_repaired"], status["failed"]) == (1, 1, 1)
    assert status["bytes_left"] == 500, "one copy of its entries"
    assert "at least 1 ledger, 500 B" in on_cluster("autorecovery", "status").text


def test_exact_check_runs_at_once_on_trigger(on_cluster: Run, auditor: str) -> None:
    assert on_cluster("autorecovery", "who-is-auditor").text == f"{auditor}\n"
    report = json.loads(on_cluster("autorecovery", "trigger", "--json").out)
    assert report["marked"] == 0 and report.get("skipped", {}) == {}
    assert "copies lacking in 0 of 0 ledgers" in on_cluster("autorecovery", "trigger").text
    status = on_cluster("autorecovery", "status").text
    assert auditor in status and "copies lacking in 0 of 0 ledgers" in status


def test_disable_and_enable_switch_autorecovery(on_cluster: Run) -> None:
    assert on_cluster("autorecovery", "disable").status == 0
    assert "disabled" in on_cluster("autorecovery", "status").text
    assert on_cluster("autorecovery", "enable").status == 0
    assert "disabled" not in on_cluster("autorecovery", "status").text


def test_delay_is_shown_set_refused_and_reset(on_cluster: Run) -> None:
    assert "lost_bookie_delay_seconds" in on_cluster("autorecovery", "delay").text
    assert on_cluster("autorecovery", "delay", "90").text == on_cluster("autorecovery", "delay").text == "90 s\n"
    for wrong in ("soon", "nan", "inf"):
        outcome = on_cluster("autorecovery", "delay", wrong)
        assert outcome.status == 2 and wrong in outcome.err
    assert "lost_bookie_delay_seconds" in on_cluster("autorecovery", "delay", "default").text


def test_serving_bookie_is_not_decommissioned(on_cluster: Run, cluster: LocalCluster) -> None:
    bookie = cluster.bookies[0].bookie_id
    outcome = on_cluster("autorecovery", "decommission", bookie)
    assert outcome.status == 2 and bookie in outcome.err and "stop it" in outcome.err


def test_unknown_bookie_is_not_decommissioned_and_the_error_names_cookie_list(
    on_cluster: Run, cluster: LocalCluster
) -> None:
    outcome = on_cluster("autorecovery", "decommission", "bookie-nobody")
    assert outcome.status == 2 and "`bookspark cookie list`" in outcome.err
    assert set(on_cluster("cookie", "list").text.split()) == {bookie.bookie_id for bookie in cluster.bookies}


def test_autorecovery_run_ends_on_sigterm(on_cluster: Run, cluster: LocalCluster) -> None:
    command = [sys.executable, "-m", "bookspark.operations.cli.main", "autorecovery", "run"]
    environment = os.environ | {"BOOKSPARK_ZOOKEEPER": cluster.zookeeper}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        name = process.stdout.readline().decode().strip()
        assert name.endswith(f":{process.pid}")
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS_MAX) == 0

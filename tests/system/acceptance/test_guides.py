"""The guides of the manual that need no Spark, run as they are written (``tests.pages``), most of them in turn in one
cluster."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import bookspark
from bookspark.errors import ReadError
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that
from tests.older_metadata import set_back
from tests.pages import local_cluster, path, run, script_of, shell_of

ELSEWHERE = {"audits.md", "bookkeeper.md", "kafka.md", "offload.md", "rows.md", "spark.md"}
"""Guides that other modules run, because they need Spark or BookKeeper."""
IN_ONE_CLUSTER = "choices.md", "upgrade.md", "hosts.md", "sizing.md"
IN_NONE = "python.md", "measure.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the shared cluster."""
    return tmp_path_factory.mktemp("guides")


@pytest.fixture(scope="module")
def shell(folder: Path) -> Iterator[dict[str, str]]:
    with local_cluster(folder) as environment:
        yield environment


@contextmanager
def ended_at_the_end() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Terminate every process in the list at the end."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        yield started
    finally:
        for process in started:
            process.terminate()
            process.wait(300)


def test_every_guide_is_run_by_a_test() -> None:
    guides = {path.name for path in (Path(__file__).parents[3] / "docs" / "guides").iterdir()}
    here = {"services.md", "ledgers.md", "disks.md", "tls.md", "repair.md", "backup.md", *IN_ONE_CLUSTER, *IN_NONE}
    assert guides == here | ELSEWHERE


def test_guide_to_services_runs_as_written(tmp_path: Path, shell: dict[str, str]) -> None:
    printed = run(script_of("guides/services.md"), tmp_path, shell)
    assert "RowPosition(lane=1, position=100)" in printed
    assert "UnexpectedPositionError" in printed
    assert "206 rows, and perhaps more, since yesterday" in printed
    assert "reader mailing has ended in order, and is no row behind" in printed
    assert printed.splitlines()[-3:] == ["event 204", "balance: 10", "by hand"]


def test_guides_that_leave_the_cluster_unchanged_run_as_written(tmp_path: Path, shell: dict[str, str]) -> None:
    with BookKeeper(shell["BOOKSPARK_ZOOKEEPER"]) as bookkeeper:
        bookie = min(bookkeeper.metadata.bookies())
        variables = shell | {"BOOKIE": bookie, "VERSION": bookspark.__version__}
        printed = {page: run(script_of(f"guides/{page}"), tmp_path, variables) for page in IN_ONE_CLUSTER}
        assert "is on the disks of three" in printed["choices.md"]
        assert re.search(r"ensemble_size +4 *\nwrite_quorum +4 *\nack_quorum +3 *\n", printed["choices.md"])
        assert "nothing is to be done" in printed["upgrade.md"]
        assert f"remove the cookie of {bookie}" in printed["hosts.md"]
        # docs/metrics.md: here with any free ports.
        script = script_of("metrics.md").replace("9100", "0").replace("9101", "0")
        assert "start_http_server(0)" in script
        run(script, tmp_path, shell)


def test_guide_to_tls_and_a_secret_runs_as_written(tmp_path: Path, shell: dict[str, str]) -> None:
    """In a separate cluster, without the open bookies."""
    own = shell | {"BOOKSPARK_ZOOKEEPER": f"{shell['BOOKSPARK_ZOOKEEPER']}/closed"}
    printed = run(script_of("guides/tls.md"), tmp_path, own)
    assert "1 ledger, " in printed and printed.splitlines()[-1] == "refused"


@pytest.fixture(scope="module")
def replaced() -> Iterator[list[subprocess.Popen[bytes]]]:
    """The bookie with a new disk, which stays until the last guide."""
    with ended_at_the_end() as started:
        yield started


def test_guide_to_disks_runs_as_written(
    tmp_path: Path, folder: Path, shell: dict[str, str], replaced: list[subprocess.Popen[bytes]]
) -> None:
    """The reader stops the bookie before its files are verified, and again before its disk is replaced."""
    directory = folder / "cluster" / "bookie-1"
    with BookKeeper(shell["BOOKSPARK_ZOOKEEPER"]) as bookkeeper:
        bookie = json.loads((directory / "COOKIE").read_text().splitlines()[0])["bookieId"]
        with bookkeeper.create_ledger(4, 4, 4) as ledger:
            ledger.append_batch([os.urandom(1000) for _ in range(100)])
        variables = shell | {"BOOKIE": bookie, "DIRECTORY": str(directory), "LOG": "orders"}
        before, offline = script_of("guides/disks.md").split("bookspark bookie verify", 1)
        verify, fix = offline.split("bookspark cookie fix", 1)
        printed = run(before, tmp_path, variables)
        assert f"{bookie}, process" in printed and "scrub: " in printed
        subprocess.run(["pkill", "-TERM", "-f", f"{directory}/bookie.json"], check=True, timeout=60)
        await_that(lambda: bookie not in bookkeeper.metadata.bookies())
        assert "all good" in run(f"set -e\nbookspark bookie verify{verify}", tmp_path, variables)
        shutil.rmtree(directory)
        directory.mkdir()
        start = [Path(sys.executable).parent / "bookspark", "bookie", "run", "--directory", directory]
        refused = subprocess.run(start, env=shell, capture_output=True, text=True, timeout=600)
        assert refused.returncode == 2 and "cookie" in refused.stderr, refused
        run(f"set -e\nbookspark cookie fix{fix}", tmp_path, variables)

        def copies() -> int:
            with suppress(ReadError):
                return bookkeeper.list_ranges(bookie, ledger.ledger_id).num_rows
            return 0

        replaced.append(subprocess.Popen(start, env=shell, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        await_that(copies, 600, "the ledger's copies")
        bookkeeper.delete_ledger(ledger.ledger_id)  # the next guide leaves three bookies


def test_guide_to_repair_runs_as_written(tmp_path: Path, folder: Path, shell: dict[str, str]) -> None:
    """The bookie is stopped before it is decommissioned, as the page says."""
    directory = folder / "cluster" / "bookie-3"
    bookie = json.loads((directory / "COOKIE").read_text().splitlines()[0])["bookieId"]
    with BookKeeper(shell["BOOKSPARK_ZOOKEEPER"]) as bookkeeper:
        with bookkeeper.create_ledger() as ledger:
            ledger.append_batch([b"a row"] * 100)
        before, rest = script_of("guides/repair.md").split("bookspark autorecovery decommission", 1)
        assert "auditor" in run(before, tmp_path, shell)
        subprocess.run(["pkill", "-TERM", "-f", f"{directory}/bookie.json"], check=True, timeout=60)
        await_that(lambda: bookie not in bookkeeper.metadata.bookies())
        run(f"set -e\nbookspark autorecovery decommission{rest}", tmp_path, shell | {"BOOKIE": bookie})
        assert bookie not in bookkeeper.metadata.list_cookies()
        assert bookie not in bookkeeper.get_ledger_metadata(ledger.ledger_id).fragments[0].ensemble


def test_guide_to_backups_detects_older_zookeeper_data(tmp_path: Path) -> None:
    # `bookspark why` says at the end that the cluster is well, so it must be.
    with set_back(tmp_path, autorecovery=True) as (cluster, _, forgotten):
        printed = run(script_of("guides/backup.md"), tmp_path, shell_of(cluster.zookeeper))
    before, after = printed.split("given up")
    assert "an older copy of its data was put back" in before and "something is wrong" in before
    assert all(f"{ledger_id}" in before for ledger_id in forgotten)
    assert "an older copy" not in after


def test_guide_to_ledgers_recovers_and_accepts_a_loss(tmp_path: Path) -> None:
    """In a separate cluster, which loses two bookies."""
    with local_cluster(tmp_path) as shell:
        recovered_and_given_up(tmp_path, shell)


def recovered_and_given_up(tmp_path: Path, shell: dict[str, str]) -> None:
    writer = "import os; from bookspark.store.client import BookKeeper; ledger = BookKeeper(os.environ['BOOKSPARK_ZOOKEEPER']"
    writer += ").create_ledger(); ledger.append_batch([b'x'] * 20); print(ledger.ledger_id, flush=True); os._exit(1)"
    died = subprocess.run([sys.executable, "-c", writer], env=shell, stdout=subprocess.PIPE, text=True, timeout=600)
    before, lost = script_of("guides/ledgers.md").split("bookspark ledger recover $LEDGER --accept-loss", 1)
    printed = run(before, tmp_path, shell | {"LEDGER": died.stdout.strip()})
    assert "it is open" in printed and "is recovered and closed: 20 entries" in printed
    assert '"state": "CLOSED"' in printed

    died = subprocess.run([sys.executable, "-c", writer], env=shell, stdout=subprocess.PIPE, text=True, timeout=600)
    ledger = int(died.stdout)
    with BookKeeper(shell["BOOKSPARK_ZOOKEEPER"]) as bookkeeper, ended_at_the_end() as started:
        gone = bookkeeper.get_ledger_metadata(ledger).fragments[0].ensemble[:2]
        for directory in (tmp_path / "cluster").glob("bookie-*"):
            if json.loads((directory / "COOKIE").read_text().splitlines()[0])["bookieId"] in gone:
                subprocess.run(["pkill", "-KILL", "-f", f"{directory}/bookie.json"], check=True, timeout=60)
        await_that(lambda: not set(gone) & set(bookkeeper.metadata.bookies()))
        recover = [Path(sys.executable).parent / "bookspark", "ledger", "recover", str(ledger)]
        refused = subprocess.run(recover, env=shell, capture_output=True, text=True, timeout=600)
        assert refused.returncode == 2 and all(bookie in refused.stderr for bookie in gone), refused
        run_it = [recover[0], "bookie", "run", "--create", "--directory", tmp_path / "instead"]
        started.append(subprocess.Popen(run_it, env=shell, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        await_that(lambda: len(bookkeeper.metadata.bookies()) == 3)
        script = f"set -e\nbookspark ledger recover $LEDGER --accept-loss{lost}"
        variables = shell | {"LEDGER": str(ledger), "GONE": " ".join(gone)}
        printed = run(script, tmp_path, variables, answers="y\n")
        assert f"ledger {ledger} is recovered and closed" in printed and " is well: 3 of 3 bookies are up" in printed
        assert bookkeeper.get_ledger_metadata(ledger).accepted_loss is not None


@pytest.mark.parametrize("page", IN_NONE)
def test_guides_without_a_cluster_run_as_written(page: str, tmp_path: Path) -> None:
    run(script_of(f"guides/{page}"), tmp_path, {**os.environ, "PATH": path(), "PYTHONPATH": ""})

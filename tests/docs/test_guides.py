"""The guides of the manual that need no Spark, run as they are written (``tests.pages``)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bookspark.client import BookKeeper
from bookspark.errors import ReadError
from tests.awaiting import await_that
from tests.older_metadata import set_back
from tests.pages import LOCAL, local_cluster, run, script_of, shell_of

ELSEWHERE = {"audits.md"}
"""Guides that other modules run."""


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[dict[str, str]]:
    with local_cluster(tmp_path) as environment:
        yield environment


def test_every_guide_is_run() -> None:
    guides = {path.name for path in (Path(__file__).parents[2] / "docs" / "guides").iterdir()}
    assert guides == {"services.md", "ledgers.md", "disks.md", "tls.md", "backup.md"} | ELSEWHERE


def test_rows_of_services(tmp_path: Path, shell: dict[str, str]) -> None:
    printed = run(script_of("guides/services.md"), tmp_path, shell)
    assert "RowPosition(lane=1, position=100)" in printed
    assert "UnexpectedPositionError" in printed
    assert "206 rows, and perhaps more, since yesterday" in printed
    assert "reader mailing is no row behind" in printed
    assert printed.splitlines()[-3:] == ["event 204", "balance: 10", "by hand"]


def test_a_ledger_that_does_not_close(tmp_path: Path, shell: dict[str, str]) -> None:
    writer = "import os; from bookspark.client import BookKeeper; ledger = BookKeeper(os.environ['BOOKSPARK_ZOOKEEPER']"
    writer += ").create_ledger(); ledger.append_batch([b'x'] * 20); print(ledger.ledger_id, flush=True); os._exit(1)"
    died = subprocess.run([sys.executable, "-c", writer], env=shell, stdout=subprocess.PIPE, text=True, timeout=120)
    printed = run(script_of("guides/ledgers.md"), tmp_path, shell | {"LEDGER": died.stdout.strip()})
    assert "it is open" in printed and "is recovered and closed: 20 entries" in printed
    assert '"state": "CLOSED"' in printed


def test_disks(tmp_path: Path, shell: dict[str, str]) -> None:
    """The reader stops the bookie before its files are looked at, and again before its disk is replaced."""
    directory = tmp_path / LOCAL[-1] / "bookie-1"
    with BookKeeper(shell["BOOKSPARK_ZOOKEEPER"]) as bookkeeper:
        bookie = json.loads((directory / "COOKIE").read_text().splitlines()[0])["bookieId"]
        with bookkeeper.create_ledger(4, 4, 4) as ledger:
            ledger.append_batch([os.urandom(1000) for _ in range(100)])
        variables = shell | {"BOOKIE": bookie, "DIRECTORY": str(directory)}
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
        refused = subprocess.run(start, env=shell, capture_output=True, text=True, timeout=120)
        assert refused.returncode == 2 and "cookie" in refused.stderr, refused
        run(f"set -e\nbookspark cookie fix{fix}", tmp_path, variables)

        def copies() -> int:
            with suppress(ReadError):
                return bookkeeper.list_ranges(bookie, ledger.ledger_id).num_rows
            return 0

        with subprocess.Popen(start, env=shell, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as started:
            try:
                await_that(copies, 120, "the ledger's copies")
            finally:
                started.send_signal(signal.SIGTERM)


def test_tls_and_a_secret(tmp_path: Path, shell: dict[str, str]) -> None:
    """In a cluster of its own, without the open bookies."""
    own = shell | {"BOOKSPARK_ZOOKEEPER": f"{shell['BOOKSPARK_ZOOKEEPER']}/closed"}
    printed = run(script_of("guides/tls.md"), tmp_path, own)
    assert "1 ledgers" in printed and printed.splitlines()[-1] == "refused"


def test_a_copy_of_zookeepers_data_is_put_back(tmp_path: Path) -> None:
    with set_back(tmp_path) as (cluster, _, forgotten):
        printed = run(script_of("guides/backup.md"), tmp_path, shell_of(cluster.zookeeper))
    before, after = printed.split("are given up")
    assert "an older copy of its data was put back" in before and "something is wrong" in before
    assert all(f"{ledger_id}" in before for ledger_id in forgotten)
    assert "an older copy" not in after

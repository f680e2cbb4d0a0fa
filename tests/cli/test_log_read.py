"""``bookspark log read``: which rows it prints."""

from __future__ import annotations

import pytest

from bookspark.client import BookKeeper
from bookspark.local import LocalCluster
from bookspark.logs import Committer, LogAddress, LogRegistry, LogRun
from bookspark.protocol.logs.commits import Commit, EntryRange
from tests.cli.conftest import Run


@pytest.fixture(scope="module")
def times(cluster: LocalCluster) -> list[int]:
    """The times of three commits of log ``events``, of two rows each."""
    log = LogAddress(cluster.zookeeper, "events")
    times = [1_000, 2_000, 3_000]
    with cluster.bookkeeper() as bookkeeper:
        registry = LogRegistry(bookkeeper.metadata)
        registry.ensure("events", {}, b"")
        run = LogRun.of(log, registry.claim("events", "run"))
        committer = Committer(bookkeeper, run)
        for number, time_ms in enumerate(times):
            _commit(bookkeeper, committer, run, number, time_ms)
        committer.close()
    return times


def _commit(bookkeeper: BookKeeper, committer: Committer, run: LogRun, number: int, time_ms: int) -> None:
    with bookkeeper.create_ledger(3, 3, 2) as ledger:
        ledger.append_batch([f"{number} a".encode(), f"{number} b".encode()])
    rows = (EntryRange(ledger.ledger_id, 0, 1, 2, 6),)
    committer.commit(Commit("q", number, run.run, run.epoch, rows, time_ms))


@pytest.mark.parametrize(
    ("options", "printed"),
    [
        ([], "0 a|0 b|1 a|1 b|2 a|2 b"),
        (["--since", "2000"], "1 a|1 b|2 a|2 b"),
        (["--since", "1970-01-01T00:00:01.5Z", "--before", "3000"], "1 a|1 b"),
        (["--before", "1000"], ""),
        (["--since", "3001"], ""),
        (["--from-row", "1", "--until-row", "3"], "0 b|1 a"),
        (["--since", "1000", "--from-row", "3", "--before", "9000", "--until-row", "99"], "1 b|2 a|2 b"),
    ],
)
def test_rows_between_rows_and_times(on_cluster: Run, times: list[int], options: list[str], printed: str) -> None:
    outcome = on_cluster("log", "read", "events", *options)
    assert (outcome.status, "|".join(outcome.text.splitlines()), outcome.err) == (0, printed, "")


def test_what_is_no_time(on_cluster: Run, times: list[int]) -> None:
    outcome = on_cluster("log", "read", "events", "--since", "14:05")
    assert outcome.status == 2 and "--since" in outcome.err and "2026-11-22T14:05:00+01:00" in outcome.err

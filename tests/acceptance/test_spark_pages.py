"""Pages of the manual that need Spark, run as they are written (``tests.pages``)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookspark.client import BookKeeper
from bookspark.protocol.logs.log_record import LOG_LABEL
from tests.pages import local_cluster, run, script_of, shell_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
TAKEN_FOR_GIVEN = """
import os
from bookspark.client import BookKeeper
from bookspark.spark import session

bookkeeper, payloads = BookKeeper(os.environ["BOOKSPARK_ZOOKEEPER"]), [b"a", b"b"]
df = session("pages", master="local[1]").readStream.format("rate").load()
"""
"""What docs/durability.md does not say again."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def shell(folder: Path) -> Iterator[dict[str, str]]:
    with local_cluster(folder) as environment:
        yield environment | {"HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}


def test_a_query_into_a_log_and_back(folder: Path, shell: dict[str, str]) -> None:
    printed = run(script_of("guides/spark.md"), folder, shell)
    assert "100 rows after a restart" in printed
    assert "refused:" in printed and "follows" in printed.partition("refused:")[2]
    assert "101 loud rows" in printed and "143 orders of customer 3" in printed
    assert "|lines|  101|" in printed and "| loud|  101|" in printed
    assert "│ shout " in printed and "lines@1: 1 rows, batch" in printed


def test_old_rows_in_a_delta_table(folder: Path, shell: dict[str, str]) -> None:
    """Those of the log that the guide to Spark jobs has left. Some ledgers may be open; in an hour they would be closed."""
    with BookKeeper(shell["BOOKSPARK_ZOOKEEPER"]) as bookkeeper:
        for ledger_id in bookkeeper.list_ledgers():
            metadata = bookkeeper.get_ledger_metadata(ledger_id)
            if metadata.custom_metadata.get(LOG_LABEL) == b"loud" and not metadata.closed:
                bookkeeper.open_ledger(ledger_id).close()
    printed = run(script_of("guides/offload.md"), folder, shell | {"LOG": "loud"})
    assert "101 rows of log loud were offloaded" in printed
    assert "101 rows in the log" in printed and "101 rows in the table" in printed


def test_choices_of_durability(folder: Path, shell: dict[str, str]) -> None:
    printed = run(script_of("durability.md", TAKEN_FOR_GIVEN), folder, shell)
    assert "Under-replicated ranges: none" in printed and "Replication factor histogram" in printed


def test_filters_that_spark_mixes_up(tmp_path: Path) -> None:
    """The day on which this fails with ``5 100 55`` is the day to look at the decision again."""
    alone = shell_of("") | {"SPARK_LOCAL_IP": "127.0.0.1"}
    assert "5 5 10" in run(script_of("decisions/no-filter-push-down.md"), tmp_path, alone)

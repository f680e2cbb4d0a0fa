"""Pages of the manual that need Spark, run as they are written (``tests.pages``). Their Python is one session, as the guide
to Spark jobs says."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.pages import local_cluster, run, session_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]
TAKEN_FOR_GIVEN = {
    "guides/spark.md": "",
    # Some ledgers of the log of the guide to Spark jobs may still be open; they would be closed within an hour.
    "guides/offload.md": """
from bookspark.store.client import BookKeeper
from bookspark.protocol.logs.log_record import LOG_LABEL

print("PAGE offload")
with BookKeeper(os.environ["BOOKSPARK_ZOOKEEPER"]) as bookkeeper:
    for ledger_id in bookkeeper.list_ledgers():
        metadata = bookkeeper.get_ledger_metadata(ledger_id)
        if metadata.custom_metadata.get(LOG_LABEL) == b"loud" and not metadata.closed:
            bookkeeper.open_ledger(ledger_id).close()
""",
    "guides/rows.md": 'print("PAGE rows")',
    "guides/kafka.md": 'print("PAGE kafka")',
    "durability.md": """
print("PAGE durability")
bookkeeper, payloads = BookKeeper(os.environ["BOOKSPARK_ZOOKEEPER"]), [b"a", b"b"]
df = spark.readStream.format("rate").load()
""",
    "decisions/no-filter-push-down.md": """
print(ledger.metadata.ledger_type, ledger.metadata.replication, ledger.metadata.last_entry_id)
bookkeeper.close()
print("PAGE filters")
""",
}
"""By page: definitions that it takes for granted. The last page changes the session."""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Output of each page."""
    folder = tmp_path_factory.mktemp("pages")
    with local_cluster(folder) as environment:
        shell = environment | {"HOME": str(folder), "SPARK_LOCAL_IP": "127.0.0.1", "LOG": "loud"}
        text = run(session_of(TAKEN_FOR_GIVEN), folder, shell)
        first, *others = re.split(r"^PAGE (.*)\n", text, flags=re.MULTILINE)
        yield {"spark": first, **dict(zip(others[::2], others[1::2], strict=True))}


def test_spark_guide_writes_a_log_and_reads_it_back(printed: dict[str, str]) -> None:
    text = printed["spark"]
    assert "100 rows after a restart" in text
    assert "refused:" in text and "follows" in text.partition("refused:")[2]
    assert "101 loud rows" in text
    assert "|lines|  101|" in text and "| loud|  101|" in text
    assert re.search(r"^shout ", text, re.MULTILINE) and "lines@1: 1 row, batch" in text


def test_offload_guide_moves_rows_to_a_delta_table(printed: dict[str, str]) -> None:
    """The rows are those of the guide to Spark jobs."""
    text = printed["offload"]
    assert "offloaded 101 rows of log loud" in text
    assert "101 rows in the log" in text and "101 rows in the table" in text


def test_page_of_structured_rows_keeps_columns_and_refuses_others(printed: dict[str, str]) -> None:
    text = printed["rows"]
    assert "refused:" in text and "has the columns struct<id:bigint" in text
    assert "|  sales|    NULL| 1001|" in text and "|sales-2|     EUR|   10|" in text
    assert "Decimal('499500.00')" in text and "|       0|  71071.00|" in text
    assert "15 sales of customer 3" in text and '"currency": "EUR"' in text


def test_page_for_kafka_users_writes_and_reads_by_both_names(printed: dict[str, str]) -> None:
    text = printed["kafka"]
    assert "first\nsecond\nthird\n" in text and "1 3 b'customer 5' b'fourth'" in text
    assert "refused:" in text and "option zookeeper names the cluster" in text


def test_durability_page_examples_print_their_choices(printed: dict[str, str]) -> None:
    assert "VD_JOURNAL" in printed["durability"] and "GUARANTEED" in printed["durability"]


def test_spark_still_mixes_up_pushed_filters(printed: dict[str, str]) -> None:
    """If this fails with ``5 100 55``, Spark has changed: reconsider the decision."""
    assert "5 5 10" in printed["filters"]

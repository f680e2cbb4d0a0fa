"""Tasks and lost rows: a query may continue without lost rows, and its errors name the rows and the reason."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

import pyarrow
import pytest
from pyspark.sql.types import StructField, StructType, TimestampType

from bookspark.errors import DataLossError, ReadError
from bookspark.logs.feeds.gaps import GapKind, gaps_of_lane
from bookspark.logs.feeds.log_feed import LogFeed
from bookspark.logs.rows.splits import Piece
from bookspark.protocol.logs.lanes import LaneId, lane_of
from bookspark.spark.connector import source
from bookspark.spark.connector.source import TIMESTAMP
from bookspark.spark.offload.opened_ledgers import OpenedLedgers
from bookspark.spark.options.source_options import SourceOptions
from bookspark.spark.tables.logs import GAPS
from tests.logs.test_gaps import Story
from tests.stories import seeds

SEEDS = seeds(12)
TRUNCATED, LOST, UNKNOWN = GapKind.TRUNCATED, GapKind.LOST, GapKind.NOT_YET_KNOWN


def _rows_of(
    ledgers: OpenedLedgers, log: LaneId, pieces: deque[Piece], schema: Any, others: Any
) -> Iterator[pyarrow.RecordBatch]:
    """Batches of four entries, not decoded: rows before an unreadable row may not have come when it fails."""
    piece = pieces.popleft()
    handle = ledgers.bookkeeper.open_ledger_no_recovery(piece.ledger_id)
    for start in range(0, piece.rows, 4):
        part = piece.part(start, min(start + 4, piece.rows))
        assert len(list(handle.read(part.first_entry_id, part.last_entry_id))) == part.rows
        yield pyarrow.RecordBatch.from_pydict({"position": list(range(part.position, part.position + part.rows))})


def _read(story: Story, lane: str, monkeypatch: pytest.MonkeyPatch, fail: bool, end: dict[str, int]) -> list[int]:
    monkeypatch.setattr(source, "rows_of", _rows_of)
    monkeypatch.setattr(source, "client", lambda zookeeper: story.bookkeeper)
    options = {"log": lane, "zookeeper": "memory", "failOnDataLoss": str(fail).lower(), "includeTimestamp": "true"}
    feed = LogFeed(story.client, lane, b"", fail_on_data_loss=fail, with_times=True)
    pieces = [piece for piece, _ in feed.pieces({"position": 0, "log": end["log"]}, end)]
    schema = StructType([*source.ID_SCHEMA, StructField(TIMESTAMP, TimestampType())])
    tasks = source.EntryPartitions(SourceOptions.parse(options), schema, ["position", "timestamp"])
    found = [row for rows in tasks.read(source.Ranges(pieces, feed.log)) for row in rows.to_pylist()]
    times = story.times[lane_of(lane)[1]]
    for row in found:
        assert times[row["position"]] in (None, row["timestamp"].microsecond // 1000)
    return [row["position"] for row in found]


@pytest.mark.parametrize("seed", SEEDS)
def test_query_continues_without_lost_rows_but_omits_no_others(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(seed)
    ends = {lane: LogFeed(story.client, f"orders@{lane}", b"", True).newest() for lane in story.lanes}
    for lane, truth in story.damage().items():
        name, readable = f"orders@{lane}", [row for row, kind in enumerate(truth) if kind is None]
        first = next((kind for kind in truth if kind is not None), None)
        if UNKNOWN in truth:
            with pytest.raises(ReadError, match=f"rows .* of lane {lane} are not yet known; nothing is left out"):
                _read(story, name, monkeypatch, False, ends[lane])
        else:
            assert _read(story, name, monkeypatch, False, ends[lane]) == readable
        if first is None:
            assert _read(story, name, monkeypatch, True, ends[lane]) == readable
        elif first is not UNKNOWN:
            says = "were truncated" if first is TRUNCATED else f"of lane {lane} are lost"
            with pytest.raises(DataLossError, match=f"{says}.*failOnDataLoss"):
                _read(story, name, monkeypatch, True, ends[lane])
        assert _account(story, name, len(truth)) == truth
    assert {row["lane"] for batch in _table(story) for row in batch.to_pylist()} <= set(story.lanes)


def _account(story: Story, name: str, rows: int) -> list[GapKind | None]:
    found: list[GapKind | None] = [None] * rows
    for gap in gaps_of_lane(story.client, name, b""):
        found[gap.first : gap.last + 1] = [gap.kind] * gap.rows
    return found


def _table(story: Story) -> list[pyarrow.RecordBatch]:
    return [batch for lane in GAPS.plan(story.client) for batch in GAPS.read(story.client, lane, b"")]


def test_gaps_table_lists_lost_rows_and_is_empty_for_a_wrong_password() -> None:
    story = Story(1)
    assert _table(story) == []
    ledger, entry = story.places[0][0]
    story.bookkeeper.denied.add((ledger, entry))
    rows = [row for batch in _table(story) for row in batch.to_pylist()]
    assert rows == [{"log": "orders", "lane": 0, "first": 0, "last": 0, "rows": 1, "kind": "lost"}]
    # A wrong password opens nothing, and is no error.
    assert list(GAPS.read(story.client, "orders", b"wrong")) == []

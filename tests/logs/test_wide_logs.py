"""Logs with wide schemas: the record of a log keeps room for its claims, lanes and commit ledgers."""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import replace

import pytest

from bookspark.errors import ConfigurationError
from bookspark.logs import LogRegistry
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.protocol.logs.lanes import LANES_MAX, TooManyLanesError, lane_id
from bookspark.protocol.logs.log_options import LogOptions, RowFormat
from bookspark.protocol.logs.log_record import CLAIMS_MAX, LinkStart
from bookspark.store.metadata.memory.memory_store import MemoryStore


def options(size: int) -> LogOptions:
    """Options of a log whose schema has about ``size`` bytes, with few quotation marks."""
    columns = json.dumps({"type": "struct", "fields": [{"name": "a" * size, "type": "long"}]})
    return LogOptions(row_format=RowFormat.ARROW, columns=columns)


def made_until_full(index: LaneIndex, checkpoint: str) -> int:
    """The number of lanes for which there was room."""
    for count in range(LANES_MAX):
        try:
            index.begin(NewLane(f"writer-{count}", checkpoint))
        except TooManyLanesError:
            return count
    return LANES_MAX


def test_a_log_that_can_be_created_can_be_claimed_and_get_lanes_and_commit_ledgers() -> None:
    store = MemoryStore()
    registry = LogRegistry(store)
    with pytest.raises(ConfigurationError, match="the schema of its columns takes") as refused:
        registry.create("wide", options(600_000), b"")
    assert registry.names() == []
    told = re.search("at most ([0-9,]+) are allowed", str(refused.value))
    assert told is not None
    allowed = int(told[1].replace(",", ""))
    log = lane_id(registry.create("wide", options(allowed - 100), b""))

    lanes = made_until_full(LaneIndex(store, log), "hdfs://cluster/" + "c" * 1000)
    assert 100 < lanes < LANES_MAX

    for _ in range(3):
        run = str(uuid.uuid4())
        epoch = registry.claim(log, run).epoch
    # The rest of a long life in one step.
    claims = tuple(str(uuid.uuid4()) for _ in range(CLAIMS_MAX - 1))
    ended = tuple(range(10_000, 11_000))
    registry.update(log, lambda record: replace(record, claims=(*claims, run), ended_lanes=ended))
    recovered = registry.get(log).commit_ledgers
    for ledger_id in range(500):
        start = LinkStart(ledger_id + (1 << 40), 1_700_000_000_000, 1 << 50)
        recovered = registry.add_commit_ledger(log, start.ledger_id, run, epoch, recovered, start).commit_ledgers
    assert len(registry.get(log).commit_ledgers) == 500

"""Retention by time and by bytes on real bookies: producers go on, readers see a gap, and nothing is left behind."""

from __future__ import annotations

import json
import time

import pytest

from bookspark.errors import DataLossError, InvalidArgumentError, UnauthorizedAccessError
from bookspark.local import LocalCluster
from bookspark.logs import Gap, GapKind, Log, LogRegistry, create_log, delete_log, open_log, truncate_expired
from bookspark.logs import producer_ledgers as ledgers_of_producers
from bookspark.logs.chain.registry import RETENTION
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.log_record import LOG_LABEL
from bookspark.protocol.logs.retention import Retention
from bookspark.store.client import BookKeeper
from tests.awaiting import SECONDS_MAX, await_that
from tests.clocks import keep_steady
from tests.operations.cli.conftest import Run, bookspark  # noqa: F401

VALUE = b"0123456789"


def ledgers(bookkeeper: BookKeeper, log: Log) -> set[int]:
    found = bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {})
    of_log = (log.name.encode(), f"{log.name}@1".encode())
    return {one.ledger_id for one, _ in found if one.custom_metadata.get(LOG_LABEL) in of_log}


def runs(log: Log, count: int, rows: int = 10) -> None:
    """``count`` runs of a service, each of which fills a ledger."""
    for _ in range(count):
        with log.producer("service") as producer:
            producer.append_batch([VALUE] * rows)


def test_old_rows_expire_while_the_producer_and_a_reader_continue(
    bookkeeper: BookKeeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_steady(monkeypatch)
    runs(log, 3)
    with log.reader(start="latest") as live, log.producer("service") as producer:
        producer.append(b"young")
        time_ms = [row.time_ms for row in log.reader()][-1]
        before = ledgers(bookkeeper, log)
        # By the clock that stamped them, the rows of the three ledgers have expired then.
        await_that(lambda: time.time_ns() // 1_000_000 > time_ms + 5)
        LogRegistry(bookkeeper.metadata).alter(log.name, retention_ms=1)
        deleted = truncate_expired(bookkeeper, log.name)
        assert len(deleted) >= 3 and set(deleted) < before and not set(deleted) & ledgers(bookkeeper, log)
        LogRegistry(bookkeeper.metadata).alter(log.name, retention_ms=0)
        assert [row.value for row in live.read(timeout=SECONDS_MAX)] == [b"young"]
        producer.append(b"next")
        assert [row.value for row in live.read(timeout=SECONDS_MAX)] == [b"next"]
        with log.reader() as reader:
            # The earliest row is the first remaining row.
            assert [(row.position, row.value) for row in reader] == [(30, b"young"), (31, b"next")]
            reader.seek({**reader.offset, "1": 0})
            assert reader.read_with_gaps()[0] == Gap(1, 0, 29, GapKind.TRUNCATED)


def test_reader_within_expired_rows_raises_data_loss_and_reports_the_gap(bookkeeper: BookKeeper, log: Log) -> None:
    runs(log, 2)
    with log.reader() as reader:
        assert len(reader.read(rows_max=5)) == 5
        runs(log, 2)
        LogRegistry(bookkeeper.metadata).alter(log.name, retention_bytes=1)
        assert truncate_expired(bookkeeper, log.name)
        with pytest.raises(DataLossError, match="truncated"):
            list(reader)
        gap, *rows = reader.read_with_gaps()
        assert gap == Gap(1, 5, 29, GapKind.TRUNCATED) and len(rows) == 10


def test_producer_expires_rows_of_its_lane_when_it_opens_a_ledger(
    bookkeeper: BookKeeper, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledgers_of_producers, "LEDGER_BYTES_MAX", 1)
    monkeypatch.setattr("bookspark.logs.chain.committer.RETENTION_SECONDS", 0.0)
    registry = LogRegistry(bookkeeper.metadata)
    registry.alter(log.name, retention_bytes=200)
    with log.producer("service") as producer:
        for _ in range(30):
            producer.append(VALUE)
        # A row has 27 bytes with its stamp; the newest 200 bytes and the open ledger stay.
        await_that(lambda: producer.append(VALUE) and registry.get(f"{log.name}@1").first_position > 10)
    record = registry.get(f"{log.name}@1")
    with log.reader() as reader:
        rows = list(reader)
    assert len(rows) == producer.position - record.first_position >= 8
    assert len(ledgers(bookkeeper, log)) < producer.position


def test_ended_lane_loses_expired_rows_and_keeps_its_last_sequence(bookkeeper: BookKeeper, log: Log) -> None:
    runs(log, 2)
    end_lane(bookkeeper, f"{log.name}@1")
    LogRegistry(bookkeeper.metadata).alter(log.name, retention_bytes=1)
    truncate_expired(bookkeeper, log.name)
    with log.reader() as reader:
        assert [row.position for row in reader] == list(range(10, 20))
    with log.producer("service") as producer:
        assert (producer.lane, producer.last_sequence) == (2, 19)


def test_retention_requires_the_password_and_refuses_invalid_values(bookkeeper: BookKeeper) -> None:
    create_log(bookkeeper, "secret", b"xyz", retention_ms=5, retention_bytes=7)
    registry = LogRegistry(bookkeeper.metadata)
    assert registry.retention(registry.get("secret")) == Retention(5, 7)
    with pytest.raises(UnauthorizedAccessError):
        truncate_expired(bookkeeper, "secret")
    with pytest.raises(InvalidArgumentError, match="retention_ms"):
        registry.alter("secret", retention_ms=-1)
    delete_log(bookkeeper, "secret", b"xyz")
    assert "secret" not in bookkeeper.metadata.list_records(RETENTION)


def test_log_commands_set_apply_and_clear_retention(
    cluster: LocalCluster,
    bookkeeper: BookKeeper,
    bookspark: Run,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
    assert bookspark("log", "create", "kept", "--retention-hours", "1.5").status == 0

    def described() -> tuple[object, object]:
        facts = json.loads(bookspark("log", "describe", "kept", "--json").out)
        return facts["retention_hours"], facts["retention_bytes"]

    assert described() == (1.5, None)
    runs(open_log(bookkeeper, "kept"), 3)
    altered = json.loads(bookspark("log", "alter", "kept", "--retention-bytes", "1", "--json").out)
    assert (altered["retention_hours"], altered["retention_bytes"]) == (1.5, 1)
    gone = bookspark("log", "collect", "kept").text
    assert "deleted: ledger" in gone
    assert len(bookspark("log", "read", "kept").out.splitlines()) == 10
    assert bookspark("log", "alter", "kept", "--retention-hours", "0", "--retention-bytes", "0").status == 0
    assert described() == (None, None)

"""Altering the options of a log in use: writers adopt them soon; no row is lost, duplicated or reordered."""

from __future__ import annotations

import json
import threading
from random import Random

import pytest
from typer.testing import CliRunner

from bookspark.errors import ConfigurationError, InvalidArgumentError
from bookspark.local import LocalCluster
from bookspark.logs import Log, LogRegistry, commits, open_log, producer_ledgers
from bookspark.logs.chain.registry import RECORDS
from bookspark.operations.cli.main import command_line
from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerMetadata
from bookspark.protocol.logs.log_options import Compression, LogOptions
from bookspark.protocol.logs.log_record import NoSuchLogError
from bookspark.protocol.logs.retention import Retention
from bookspark.store.client import BookKeeper, LedgerHandle
from tests.awaiting import SECONDS_MAX, await_that

SECONDS = SECONDS_MAX


def ledgers(bookkeeper: BookKeeper, log: Log) -> list[LedgerMetadata]:
    """Metadata of the ledgers that the commits of lane 1 opened, in order."""
    opened = [placed.commit.open_ledger for placed in commits(bookkeeper, f"{log.name}@1", b"")]
    return [bookkeeper.get_ledger_metadata(ledger) for ledger in opened if ledger is not None]


def test_producer_adopts_altered_options_at_its_next_rows(bookkeeper: BookKeeper, log: Log) -> None:
    registry, sent = LogRegistry(bookkeeper.metadata), 0
    with log.producer("service") as producer:
        producer.append(b"0")
        heard = threading.Event()
        bookkeeper.metadata.watch_record(RECORDS, f"{log.id}@1", heard.set)
        registry.alter(
            log.name, ensemble_size=2, write_quorum=2, digest_type=DigestType.CRC32, compression=Compression.ZSTD
        )

        assert heard.wait(SECONDS)

        def taken() -> bool:
            nonlocal sent
            sent += 1
            producer.append(str(sent).encode())
            return len(ledgers(bookkeeper, log)) > 1

        await_that(taken)
        newest = ledgers(bookkeeper, log)[-1]
        assert (newest.ensemble_size, newest.write_quorum, newest.digest_type) == (2, 2, DigestType.CRC32)
        assert newest.custom_metadata["bookspark.encoding"] == b"stamped_zstd"
        producer.append(b"one more")
    with log.reader() as reader:
        assert [row.value for row in reader] == [*(str(n).encode() for n in range(sent + 1)), b"one more"]


def test_producer_opens_next_ledger_without_a_lac_flush_and_readers_see_its_rows(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The flush was one of four waits of an append that opens the next ledger."""
    waits = list[int]()
    monkeypatch.setattr(LedgerHandle, "flush_last_add_confirmed", lambda handle: waits.append(handle.ledger_id))
    monkeypatch.setattr(producer_ledgers, "LEDGER_BYTES_MAX", 1)
    with log.producer("service") as producer, log.reader() as reader:
        for number in range(10):
            producer.append(b"%d" % number)
            # Each ledger holds one row.
            assert [row.value for row in reader.read(timeout=SECONDS)] == [b"%d" % number]
    assert waits == []


def test_record_change_without_altered_options_opens_no_ledger(bookkeeper: BookKeeper, log: Log) -> None:
    with log.producer("one") as producer:
        producer.append(b"0")
        changed = threading.Event()
        bookkeeper.metadata.watch_record(RECORDS, f"{log.id}@1", changed.set)
        LogRegistry(bookkeeper.metadata).update(f"{log.name}@1", lambda record: record.with_dictionary(b"x" * 100))
        assert changed.wait(SECONDS)
        for number in range(100):
            producer.append(str(number).encode())
        assert len(ledgers(bookkeeper, log)) == 1


def test_existing_and_new_lanes_have_the_altered_options(bookkeeper: BookKeeper, log: Log) -> None:
    registry = LogRegistry(bookkeeper.metadata)
    with log.producer("one"):
        assert registry.alter(log.name, ack_quorum=3) == LogOptions(ack_quorum=3)
        with log.producer("two"):
            assert {registry.get(lane).options.ack_quorum for lane in registry.lanes_of(log.name)} == {3}


def test_invalid_options_are_refused_and_change_nothing(bookkeeper: BookKeeper, log: Log) -> None:
    registry = LogRegistry(bookkeeper.metadata)
    for options in ({"ack_quorum": 4}, {"write_quorum": 1}, {"ensemble_size": 2}):
        with pytest.raises(ConfigurationError):
            registry.alter(log.name, **options)  # type: ignore[arg-type]
    for wrong in ({"digest_type": "md5"}, {"ensemble_size": 0}, {"ensemble_size": "three"}):
        with pytest.raises(InvalidArgumentError):
            registry.alter(log.name, **wrong)  # type: ignore[arg-type]
    assert registry.get(log.name).options == LogOptions()
    with pytest.raises(NoSuchLogError):
        registry.alter("nothing", ack_quorum=3)


def test_alterations_at_random_moments_lose_and_duplicate_no_row(bookkeeper: BookKeeper, log: Log) -> None:
    """They run beside a reader and a producer that is taken over now and then."""
    registry, random, ended = LogRegistry(bookkeeper.metadata), Random(5), threading.Event()
    sent, seen = 0, list[bytes]()

    def alter() -> None:
        while not ended.is_set():
            size = random.randint(1, 3)
            registry.alter(
                log.name,
                ensemble_size=3,
                write_quorum=size,
                ack_quorum=random.randint(1, size),
                digest_type=random.choice(list(DigestType)),
                compression=random.choice([Compression.NONE, Compression.ZSTD]),
            )

    thread = threading.Thread(target=alter)
    thread.start()
    try:
        producers = [log.producer("service")]
        with log.reader() as reader:
            for _ in range(40):
                if random.random() < 0.1:
                    producers.append(log.producer("service"))
                count = random.randint(1, 10)
                producers[-1].append_batch([str(number).encode() for number in range(sent, sent + count)])
                sent += count
                if random.random() < 0.3:
                    seen += [row.value for row in reader.read()]
            seen += [row.value for row in reader]
    finally:
        ended.set()
        thread.join(SECONDS)
    for producer in producers:
        producer.close()
    assert len(ledgers(bookkeeper, log)) > 3
    assert seen == [str(number).encode() for number in range(sent)]


def test_alter_command_changes_options_and_refuses_invalid_ones(cluster: LocalCluster, log: Log) -> None:
    options = ["log", "alter", log.name, "--zookeeper", cluster.zookeeper]
    result = CliRunner().invoke(
        command_line(options), [*options, "--ack-quorum", "3", "--compression", "zstd", "--json"]
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["ack_quorum"], found["compression"], found["digest_type"]) == (3, "zstd", "CRC32C")
    result = CliRunner().invoke(command_line(options), [*options, "--ack-quorum", "4"])
    assert isinstance(result.exception, ConfigurationError)


def test_log_alter_changes_options_and_retention_and_refuses_single_lanes(bookkeeper: BookKeeper, log: Log) -> None:
    registry = LogRegistry(bookkeeper.metadata)
    with log.producer("one") as producer:
        assert log.alter(compression=Compression.ZSTD, ack_quorum=3) == LogOptions(
            compression=Compression.ZSTD, ack_quorum=3
        )
        log.alter(retention_ms=5)
        log.alter(retention_bytes=7)
        assert registry.retention(registry.get(f"{log.name}@{producer.lane}")) == Retention(5, 7)
        with pytest.raises(ConfigurationError, match="is one lane"):
            open_log(bookkeeper, f"{log.name}@1").alter(ack_quorum=1)
        with pytest.raises(InvalidArgumentError, match="ack_quorum"):
            log.alter(ack_quorum=0)

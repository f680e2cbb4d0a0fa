"""Log records in the metadata store: made once, changed by compare-and-set, refused with a reason."""

from __future__ import annotations

import pytest

from bookspark.errors import ConfigurationError, MetadataVersionError, UnauthorizedAccessError
from bookspark.logs import LogRegistry
from bookspark.logs.chain.codec import (
    LogFormatError,
    decode_commit,
    decode_header,
    decode_record,
    encode_commit,
    encode_header,
    encode_record,
)
from bookspark.protocol.logs.commits import Commit, CommitHeader, EntryRange
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import LogExistsError, LogRecord, NoSuchLogError
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records import versioned


@pytest.fixture
def registry() -> LogRegistry:
    return LogRegistry(MemoryStore())


def test_first_write_creates_the_log_and_later_writes_reuse_it(registry: LogRegistry) -> None:
    made = registry.ensure("orders", {"ensemble_size": 5}, b"secret")
    assert (made.options.ensemble_size, made.options.write_quorum, made.epoch) == (5, 3, 0)
    assert registry.ensure("orders", {}, b"secret") == made == registry.get("orders")
    assert registry.names() == ["orders"]


def test_log_is_created_once_and_written_with_its_options(registry: LogRegistry) -> None:
    made = registry.create("orders", LogOptions(ack_quorum=3), b"secret")
    with pytest.raises(LogExistsError, match="there is a log 'orders' already"):
        registry.create("orders", LogOptions(), b"")
    assert registry.get("orders") == made == registry.ensure("orders", {"ack_quorum": 3}, b"secret")


def test_option_that_differs_from_the_logs_is_refused(registry: LogRegistry) -> None:
    registry.ensure("orders", {}, b"")
    with pytest.raises(ConfigurationError, match=r"has ack_quorum 2, .* leave out ack_quorum 1"):
        registry.ensure("orders", {"ack_quorum": 1}, b"")


def test_wrong_password_is_refused(registry: LogRegistry) -> None:
    registry.ensure("orders", {}, b"secret")
    with pytest.raises(UnauthorizedAccessError, match="log 'orders': wrong password"):
        registry.ensure("orders", {}, b"guess")


def test_missing_log_is_reported_with_the_nearest_name(registry: LogRegistry) -> None:
    registry.ensure("orders", {}, b"")
    with pytest.raises(NoSuchLogError, match="there is no log 'order'; did you mean 'orders'"):
        registry.get("order")


@pytest.mark.parametrize("name", ["", "a/b", "..", "ä", "x" * 250])
def test_log_name_that_is_no_kafka_topic_name_is_refused(registry: LogRegistry, name: str) -> None:
    with pytest.raises(ConfigurationError, match="log name"):
        registry.ensure(name, {}, b"")


def test_claim_that_lost_its_compare_and_set_is_retried_on_the_newest_record(
    registry: LogRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.ensure("orders", {}, b"")
    store = registry._store
    write = store.write_record

    def another_first(kind: str, name: str, value: bytes, version: int | None) -> int:
        monkeypatch.undo()
        registry.claim("orders", "other")
        return write(kind, name, value, version)

    monkeypatch.setattr(store, "write_record", another_first)
    assert registry.claim("orders", "mine").claims == ("other", "mine")


def test_record_that_always_changes_raises_after_its_time(
    registry: LogRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.ensure("orders", {}, b"")

    def lost(kind: str, name: str, value: bytes, version: int | None) -> int:
        raise MetadataVersionError("changed")

    monkeypatch.setattr(registry._store, "write_record", lost)
    monkeypatch.setattr(versioned, "CONTENDED_SECONDS_MAX", 0.0)
    with pytest.raises(MetadataVersionError, match="log 'orders': other clients changed it"):
        registry.claim("orders", "mine")


def test_documents_round_trip() -> None:
    record = LogRecord("orders", master_key=b"\0\xff").claim("a").with_commit_ledger(4, "a", 1, ())
    assert decode_record(encode_record(record), "orders") == record
    commit = Commit("q", 3, "a", 1, (EntryRange(7, 0, 9, 10, 100), EntryRange(8, 0, 0, 1, 0)), 123)
    assert decode_commit(encode_commit(commit), 4, 1) == commit
    header = CommitHeader().followed_by(commit)
    assert decode_header(encode_header(header), 4) == header


def test_document_of_another_kind_or_format_raises_with_its_location() -> None:
    commit = encode_commit(Commit("q", 3, "a", 1, ()))
    with pytest.raises(LogFormatError, match="commit ledger 4, entry 0: holds no header"):
        decode_header(commit, 4)
    with pytest.raises(LogFormatError, match="format 9 is newer"):
        decode_commit(commit.replace(b'"format":1', b'"format":9'), 4, 1)
    with pytest.raises(LogFormatError, match="commit ledger 4, entry 1: not a commit"):
        decode_commit(b"{", 4, 1)

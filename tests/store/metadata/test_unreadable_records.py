"""A record is written only if it can be decoded again; an unreadable record affects only itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from bookspark.errors import InvalidArgumentError, LedgerExistsError, UnreadableRecordError
from bookspark.logs.chain.codec import encode_record
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.ledger_metadata import Fragment
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.repair.underreplication_task import Mark
from bookspark.spark.bookies.service_records import ServiceRecord, TaskReport, read_tasks, write_service, write_task
from bookspark.store.metadata.autorecovery.auditors import AuditorState, CheckReport
from bookspark.store.metadata.autorecovery.underreplication_tasks import Progress
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.store import MetadataStore
from tests.store.metadata.kit import begun, clients, ledger


@pytest.fixture(params=["zookeeper", "memory"])
def stores(request: pytest.FixtureRequest) -> Iterator[Callable[[], MetadataStore]]:
    """Makes clients of the same cluster."""
    with clients("" if request.param == "memory" else request.getfixturevalue("chroot")) as new:
        yield new


@pytest.fixture
def store(stores: Callable[[], MetadataStore]) -> MetadataStore:
    return stores()


def wrong_ledgers() -> dict[str, dict[str, Any]]:
    return {
        "text for bytes": {"custom_metadata": {"team": "billing"}},
        "a number for a name": {"custom_metadata": {7: b"x"}},
        "a surrogate": {"custom_metadata": {"\ud800": b"x"}},
        "text for an enum": {"digest_type": "CRC32C"},
        "another text for an enum": {"digest_type": "crc32c"},
        "a list for a tuple": {"fragments": (Fragment(0, ["a", "b", "c"]),)},  # type: ignore[arg-type]
        "a number for a bookie": {"fragments": (Fragment(0, (1, 2, 3)),)},  # type: ignore[arg-type]
        "fragments that do not ascend": {"fragments": (Fragment(0, ("a", "b", "c")), Fragment(0, ("a", "b", "d")))},
        "a fraction": {"last_entry_id": 2.5},
        "80 bits": {"length": 1 << 80},
        "a negative time": {"ctime_ms": -1},
        "no bytes": {"master_key": None},
    }


@pytest.mark.parametrize("fields", wrong_ledgers().values(), ids=wrong_ledgers().keys())
def test_ledger_record_that_could_not_be_decoded_is_not_written(store: MetadataStore, fields: dict[str, Any]) -> None:
    """With ``digest_type="CRC32C"`` as text, a writer wrote data that no read accepted; custom metadata of type text made a
    record that no client could decode."""
    store.create_ledger(ledger(1))
    for write in (lambda one: store.create_ledger(replace(one, ledger_id=2)), lambda one: store.write_ledger(one, 0)):
        with pytest.raises(InvalidArgumentError, match="is not written"):
            write(ledger(1, **fields))
    assert store.list_ledgers() == [1] and store.read_ledger(1).version == 0


def test_other_records_that_could_not_be_decoded_are_not_written(store: MetadataStore) -> None:
    refused: list[Callable[[], object]] = [
        lambda: store.write_cookie(Cookie("bookie-1", ["/d"], "i", "n"), None),  # type: ignore[arg-type]
        lambda: store.write_cookie(Cookie("bookie-1", ("/d",), 7, "n"), None),  # type: ignore[arg-type]
        lambda: store.register_bookie(BookieRegistration("bookie-1", "h:1", "seven")),  # type: ignore[arg-type]
        lambda: store.register_bookie(BookieRegistration("bookie-1", "h:1", 7, labels={"zone": 1})),  # type: ignore[dict-item]
        lambda: store.underreplication.mark([Mark(1, {"a": "lost"})]),  # type: ignore[dict-item]
        lambda: store.underreplication.mark([Mark(1, {"a": None}, "\ud800")]),  # type: ignore[dict-item]
        lambda: store.underreplication.publish_progress("w", Progress(seconds="1")),  # type: ignore[arg-type]
        lambda: store.auditors.publish_state(AuditorState("a", {"b": "soon"})),  # type: ignore[dict-item]
        lambda: store.auditors.note_check(CheckReport(1, 1.0, 1, 1, {1: "x"})),  # type: ignore[dict-item]
        lambda: store.auditors.elect("\ud800"),
        lambda: write_service(store, "s", ServiceRecord(run=7)),  # type: ignore[arg-type]
        lambda: write_task(store, "s", TaskReport("r", "0", 1, "h")),  # type: ignore[arg-type]
        lambda: encode_record(LogRecord("log", LogOptions(), b"", owner=7)),  # type: ignore[arg-type]
        lambda: encode_record(LogRecord("log", LogOptions(digest_type="CRC32C"), b"")),  # type: ignore[arg-type]
    ]
    for write in refused:
        with pytest.raises(InvalidArgumentError, match="is not written"):
            write()
    assert store.list_cookies() == [] and store.bookies() == {} and store.underreplication.list_tasks() == []
    assert (
        store.auditors.auditor() is None and store.list_records("services") == store.list_records("service_tasks") == []
    )


def test_unreadable_record_in_zookeeper_affects_only_itself(chroot: str) -> None:
    store = begun(chroot)
    try:
        for ledger_id in (1, 2, 3):
            store.create_ledger(ledger(ledger_id, c_token=7))
        store.client.set(store.layout.ledger(2), b'{"formatVersion": 9}')
        unreadable: dict[int, str] = {}
        assert [one.value.ledger_id for one in store.read_ledgers([1, 2, 3, 4], unreadable)] == [1, 3]
        assert unreadable.keys() == {2} and "upgrade Bookspark" in unreadable[2]
        with pytest.raises(UnreadableRecordError) as told:
            store.read_ledger(2)
        assert told.value.newer
        with pytest.raises(LedgerExistsError):
            store.create_ledger(ledger(2, c_token=7))
        store.register_bookie(BookieRegistration("good", "h:1", 1))
        store.client.create(f"{store.layout.available}/bad", b"\xff", ephemeral=True)
        found = store.bookies()
        assert found["good"].address == "h:1" and found["bad"].read_only and not found["bad"].address
        write_task(store, "s", TaskReport("r", 0, 1, "h"))
        store.write_record("service_tasks", "s.2", b"garbage", None)
        assert [one.partition for one in read_tasks(store, "s", "r")] == [1]
        store.delete_ledger(2)
        assert store.list_ledgers() == [1, 3]
    finally:
        store.close()

"""Entries of a log that no writer of Bookspark makes, committed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import zstandard

from bookspark.logs import Committer, LogAddress, LogReader, LogRegistry, LogRun
from bookspark.protocol.logs.commits import Commit, EntryRange
from bookspark.protocol.logs.log_record import DATA_ROLE
from bookspark.store.client import BookKeeper
from bookspark.store.wire.digests import digester
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX, Entry, encode_entries
from bookspark.store.wire.header import Header, Kind, Status
from tests.store.bookie.kit import Client

LARGE = 4 * PAYLOAD_BYTES_MAX
"""Bytes of a value that no writer may write, few enough for a test that lacks the protection."""


def bomb(size: int = LARGE) -> bytes:
    """A zstd frame of ``size`` zeros, some thousandths as long."""
    return zstandard.ZstdCompressor().compress(bytes(size))


def add_to_open_ledger(bookkeeper: BookKeeper, entry_id: int, payload: bytes, log: str) -> int:
    """Add an entry to the open ledger of the log's only producer, at each bookie, as somebody who knows the password b"" may;
    returns the ledger's id."""
    reader = LogReader(bookkeeper, LogRegistry(bookkeeper.metadata).lanes_of(log)[-1], b"")
    reader.newest()
    ledger_id = reader.opened
    assert ledger_id is not None
    metadata = bookkeeper.metadata.read_ledger(ledger_id).value
    digest = digester(metadata.digest_type, b"")
    numbers: tuple[Any, ...] = ledger_id, entry_id, entry_id - 1, 10_000
    header = Header(Kind.ADD, 1, ledger_id, entry_id, entry_id, entry_id - 1, master_key=metadata.master_key)
    for bookie in metadata.fragments[-1].ensemble:
        host, _, port = bookkeeper.metadata.bookies()[bookie].address.rpartition(":")
        with closing(Client((host, int(port)))) as stranger:
            stranger.send(encode_entries(header, [Entry(*numbers, payload, digest(*numbers, payload))]))
            assert stranger.receive().header.status == Status.OK
    return ledger_id


def commit_entries(
    bookkeeper: BookKeeper, log: str, payloads: Sequence[bytes], encoding: str, rows_each: int = 1
) -> int:
    """Append and commit the entries to a new lane's end, in one ledger of its own; returns its id. ``encoding``: its label."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.claim(log, "stranger", "query:stranger")
    run = LogRun.of(LogAddress(bookkeeper.zookeeper, log), record)
    with run.create_ledger(bookkeeper, record.options, DATA_ROLE, encoding) as ledger:
        last = ledger.append_batch(list(payloads))[-1]
        place = EntryRange(ledger.ledger_id, 0, last, len(payloads) * rows_each, sum(map(len, payloads)))
    with closing(Committer(bookkeeper, run)) as committer:
        now_ms = bookkeeper.metadata.clock.now_ms()
        committer.commit(Commit("query:stranger", record.epoch, run.run, run.epoch, (place,), now_ms))
    return ledger.ledger_id

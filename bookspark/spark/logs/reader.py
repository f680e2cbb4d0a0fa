"""Reading a log's commits: what is part of it, in order.

Law: readers follow commit ledgers only, and never fence: entries of failed, speculative or zombie attempts lie in data
ledgers too and are never seen. A range named by a commit is confirmed up to its last entry, whatever LAC a reader has
heard. Source: design.md section 10.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from bookspark.protocol.log_record import Commit, CommitHeader, CommitLedger, LogRecord
from bookspark.spark.logs.codec import decode_commit, decode_header

if TYPE_CHECKING:
    from bookspark.client import BookKeeper
    from bookspark.wire.entry_batch import Entry


def commits(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> Iterator[Commit]:
    """All commits of the chain up to the LAC of its last ledger, in order. Raises UnauthorizedAccessError, ReadError."""
    for link in record.commit_ledgers:
        for entry in _entries(bookkeeper, link, password, 1):
            yield decode_commit(entry.payload, link.ledger_id, entry.entry_id)


def header_of(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> CommitHeader:
    """What all commits of the chain come to; reads its last ledger only."""
    header = CommitHeader()
    for link in record.commit_ledgers[-1:]:
        for entry in _entries(bookkeeper, link, password, 0):
            if entry.entry_id == 0:
                header = decode_header(entry.payload, link.ledger_id)
            else:
                header = header.followed_by(decode_commit(entry.payload, link.ledger_id, entry.entry_id))
    return header


def _entries(bookkeeper: BookKeeper, link: CommitLedger, password: bytes, first: int) -> Iterator[Entry]:
    with bookkeeper.open_ledger_no_recovery(link.ledger_id, password=password) as reader:
        if reader.last_add_confirmed >= first:
            yield from reader.read(first, reader.last_add_confirmed)

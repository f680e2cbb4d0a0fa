"""Making the chain of a log's commit ledgers short again: every batch write, and every run of a query, adds one.

Law: the commits of the log stay the same, in the same order, for whoever reads it meanwhile too. Commits are copied as they are
into a new ledger, behind the header of the first one; only when that is closed, the record names it in their place, by
compare-and-set of the log's owner; only then are they deleted. A crash before leaves an orphan, one after leaves commit ledgers
that are no part of the chain any more, which are orphans too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bookspark.protocol.logs.log_record import COMMIT_ROLE, CommitLedger, LogRecord
from bookspark.spark.logs.data_ledgers import CLOSE_SECONDS_MAX
from bookspark.spark.logs.labels import create_labelled, labels
from bookspark.spark.logs.reader import HEADER_ENTRY, open_commit_ledger, read_header
from bookspark.spark.logs.registry import LogRegistry

if TYPE_CHECKING:
    from bookspark.client import BookKeeper

CHAIN_MAX = 64
COMMITS_PER_LEDGER_MAX = 10_000
"""A commit ledger with so many entries is closed and a new one begun: it is read whole when it is recovered."""


def compact_chain(bookkeeper: BookKeeper, name: str, run: str, epoch: int, password: bytes) -> list[int]:
    """Put few commit ledgers in the place of many, if there are. For the log's owner. Returns the ids of those deleted."""
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(name)
    if len(record.commit_ledgers) <= CHAIN_MAX:
        return []
    deleted = []
    for links in _groups(bookkeeper, record, password):
        copy = _copied(bookkeeper, record, links, run, epoch, password)
        # If this fails, nobody knows whether the record names the copy: it stays, and is an orphan if it is not named.
        registry.update(name, partial(LogRecord.with_compacted, replaced=links, by=copy, run=run, epoch=epoch))
        for link in links:
            bookkeeper.delete_ledger(link.ledger_id)
            deleted.append(link.ledger_id)
    return deleted


def _groups(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> Iterator[tuple[CommitLedger, ...]]:
    """Neighbours that fit into one commit ledger, the last one of the chain not among them."""
    chain = record.commit_ledgers
    before = [read_header(open_commit_ledger(bookkeeper, link, password)).position.batches for link in chain]
    first = 0
    for end in range(1, len(chain)):
        if end == len(chain) - 1 or before[end + 1] - before[first] > COMMITS_PER_LEDGER_MAX:
            if end - first > 1:
                yield chain[first:end]
            first = end


def _copied(
    bookkeeper: BookKeeper, record: LogRecord, links: Sequence[CommitLedger], run: str, epoch: int, password: bytes
) -> int:
    """The id of a closed ledger with the first one's header and the commits of all."""
    ledger = create_labelled(bookkeeper, record.options, password, labels(record.name, epoch, run, COMMIT_ROLE))
    for link in links:
        with bookkeeper.open_ledger(link.ledger_id, password=password) as reader:
            first = HEADER_ENTRY if link is links[0] else HEADER_ENTRY + 1
            payloads = [entry.payload for entry in reader.read(first, reader.last_add_confirmed)]
            if payloads:
                ledger.append_batch(payloads)
    ledger.close(timeout=CLOSE_SECONDS_MAX)
    return ledger.ledger_id

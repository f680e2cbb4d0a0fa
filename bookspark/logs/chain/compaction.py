"""Keeps the chain of a log's commit ledgers short: every batch write and every run of a query adds one.

Law: the log's commits stay the same, in the same order, also for a reader who reads meanwhile. The steps are:

1. The commits of several neighbours are copied into a new ledger, behind the header of the first one, and the new ledger is
   closed.
2. A writer of the log makes the record name the new ledger in their place, by compare-and-set.
3. The old ledgers are deleted.

A crash before step 2 leaves the new ledger as an orphan. A crash after it leaves the old ledgers, which the chain does not name
any more, as orphans.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING

from bookspark.logs.chain.commit_ledgers import FIRST_COMMIT, HEADER_ENTRY, open_commit_ledger, read_header
from bookspark.logs.chain.log_run import CLOSE_SECONDS_MAX, LogRun
from bookspark.logs.chain.registry import LogRegistry
from bookspark.protocol.logs.log_record import COMMIT_ROLE, CommitLedger, LogRecord
from bookspark.store.decisions.seam import decided

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper

CHAIN_MAX = 64
"""A longer chain is compacted."""
COMMITS_PER_LEDGER_MAX = 10_000
"""A commit ledger with this number of commits is closed, and the next one begun, because a recovery reads the whole ledger."""


def compact_chain(bookkeeper: BookKeeper, run: LogRun) -> list[int]:
    """Put few commit ledgers in the place of many, if the chain is longer than CHAIN_MAX. ``run`` is a writer of the log.

    Returns the ids of the ledgers that were deleted. Raises LogTakenOverError, LogChangedError, and the errors of reading and
    creating ledgers; the chain is then as it was, or as it is after a part of the work.
    """
    registry = LogRegistry(bookkeeper.metadata)
    record = registry.get(run.log)
    if len(record.commit_ledgers) <= CHAIN_MAX:
        return []
    deleted = []
    for links in _groups(bookkeeper, record, run.password):
        copy = _copied(bookkeeper, record, links, run)
        # If this fails, nobody knows whether the record names the copy. So the copy stays; if it is not named, it is an orphan.
        registry.update(run.log, partial(_compacted, replaced=links, by=copy, run=run))
        for link in links:
            bookkeeper.delete_ledger(link.ledger_id)
            deleted.append(link.ledger_id)
    return deleted


def _compacted(record: LogRecord, replaced: tuple[CommitLedger, ...], by: int, run: LogRun) -> LogRecord:
    return decided(LogRecord.with_compacted, record, replaced, by, run.run, run.epoch)


def _groups(bookkeeper: BookKeeper, record: LogRecord, password: bytes) -> Iterator[tuple[CommitLedger, ...]]:
    """Neighbours whose commits fit into one commit ledger. The last ledger of the chain is in no group."""
    chain = record.commit_ledgers
    before = [read_header(open_commit_ledger(bookkeeper, link, password)).position.batches for link in chain]
    first = 0
    for end in range(1, len(chain)):
        if end == len(chain) - 1 or before[end + 1] - before[first] > COMMITS_PER_LEDGER_MAX:
            if end - first > 1:
                yield chain[first:end]
            first = end


def _copied(bookkeeper: BookKeeper, record: LogRecord, links: Sequence[CommitLedger], run: LogRun) -> int:
    """The id of a new, closed ledger with the header of the first of ``links`` and the commits of all of them."""
    ledger = run.create_ledger(bookkeeper, record.options, COMMIT_ROLE)
    for link in links:
        with bookkeeper.open_ledger(link.ledger_id, password=run.password) as reader:
            first = HEADER_ENTRY if link is links[0] else FIRST_COMMIT
            payloads = [entry.payload for entry in reader.read(first, reader.last_add_confirmed)]
            if payloads:
                ledger.append_batch(payloads)
    ledger.close(timeout=CLOSE_SECONDS_MAX)
    return ledger.ledger_id

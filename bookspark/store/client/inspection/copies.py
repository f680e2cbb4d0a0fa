"""The copies that one bookie has of a ledger, exactly as they lie there: for those who compare copies.

Law: a copy is returned whatever its digest, its LAC (last add confirmed) or the metadata say. Nothing is fenced and nothing
changes. Entries that the bookie's index names and whose copy the bookie says is lost are returned as ``Unreadable``, never left
out: each entry of the index is either in a batch or in such a range. An I/O error is no such word: the bookie has the copy and
could not read it now, as when it had no file descriptor left. It is asked again, and if that does not help, nothing is told of
that bookie: a comparison would take a sound copy for a damaged one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bookspark.errors import ReadError
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.store.client.inspection.bookie_questions import ask
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Flag, Header, Kind, WireError

_READ_BYTES = 1 << 20
_TRIES = 3


class Unreadable(NamedTuple):
    """Entries ``first..last``, which are in the bookie's index and whose copy can't be read any more."""

    first: int
    last: int


def copies_on(
    context: ClientContext, bookie_id: str, ledger_id: int, rows: Sequence[tuple[int, int]]
) -> Iterator[EntryBatch | Unreadable]:
    """Yield the copies in ``rows``: (first entry id, last entry id) of each row of the bookie's index, ascending.

    Raises ReadError if the bookie does not answer, or can't read an entry now. A row whose ledger was deleted meanwhile is passed
    over."""
    at = tries = 0
    for number, (first, last) in enumerate(rows):
        at = max(at, first)
        while at <= last:
            # Each request asks up to the last row, so one answer brings as many of the following rows as it has room for.
            header = Header(
                Kind.READ,
                context.runtime.connections.next_request_id(),
                ledger_id=ledger_id,
                first_entry_id=at,
                last_entry_id=rows[-1][1],
                flags=Flag.SPARSE,
                limit=_READ_BYTES,
            )
            answer = ask(context, bookie_id, header)
            if answer.header is None:
                raise ReadError(f"bookie {bookie_id} did not tell what it has of ledger {ledger_id}: {answer.response}")
            for frame in answer.batches:
                try:
                    assert frame.batch is not None
                    batch = EntryBatch.checked(frame.batch, frame.header, frame.body_crc)
                except WireError as error:
                    raise ReadError(f"bookie {bookie_id}, ledger {ledger_id}: {error}") from error
                yield batch
            if answer.header.last_entry_id >= at:
                tries = 0
            at = answer.header.last_entry_id + 1
            if at > last:
                continue
            if not isinstance(answer.response, Unknown):
                if answer.batches:
                    continue
                # An explicit negative: the ledger was deleted and collected meanwhile.
                break
            if answer.response.reason not in (UnknownReason.IO_ERROR, UnknownReason.LOST):
                raise ReadError(f"bookie {bookie_id} did not tell what it has of ledger {ledger_id}: {answer.response}")
            # A row is part of one batch on disk, and is good or bad as a whole. Between two rows lie entries that the bookie has
            # lost, and that its index does not name any more.
            bad = next(row for row in rows[number:] if row[1] >= at)
            if bad[0] > at:
                at = bad[0]
            elif answer.response.reason is UnknownReason.LOST:
                yield Unreadable(at, bad[1])
                at = bad[1] + 1
            elif (tries := tries + 1) == _TRIES:
                raise ReadError(
                    f"bookie {bookie_id} could not read entry {at} of ledger {ledger_id} now, which may be sound: "
                    f"{answer.response}; try again"
                )

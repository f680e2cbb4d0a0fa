"""A bookie's copies of a ledger, exactly as stored, for comparisons of copies.

Law: a copy is returned whatever its digest, its LAC (last add confirmed) or the metadata say. The read fences and changes
nothing. Each entry of the bookie's index is returned in a batch or, if the bookie reports its copy as lost, in an ``Unreadable``.
An I/O error is no such report: the copy exists and could not be read now, for example for lack of file descriptors. The read is
repeated, and then fails, so that a comparison does not take a sound copy for a damaged one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bookspark.errors import ReadError
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.store.client.inspection.bookie_questions import ask
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Flag, Kind, WireError

_READ_BYTES = 1 << 20
_TRIES = 3


class Unreadable(NamedTuple):
    """Entries ``first..last`` in the bookie's index whose copy is lost."""

    first: int
    last: int


def copies_on(
    context: ClientContext, bookie_id: str, ledger_id: int, rows: Sequence[tuple[int, int]]
) -> Iterator[EntryBatch | Unreadable]:
    """Yield the copies in ``rows``: (first entry id, last entry id) of each row of the bookie's index, ascending.

    Raises ReadError if the bookie does not answer, or can't read an entry now. Skips a row whose ledger was deleted meanwhile."""
    at = tries = 0
    for number, (first, last) in enumerate(rows):
        at = max(at, first)
        while at <= last:
            # Each request extends to the last row, so one answer brings as many following rows as fit.
            answer = ask(
                context,
                bookie_id,
                Kind.READ,
                ledger_id=ledger_id,
                first_entry_id=at,
                last_entry_id=rows[-1][1],
                flags=Flag.SPARSE,
                limit=_READ_BYTES,
            )
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
                # A negative: the ledger was deleted and collected meanwhile.
                break
            if answer.response.reason not in (UnknownReason.IO_ERROR, UnknownReason.LOST):
                raise ReadError(f"bookie {bookie_id} did not tell what it has of ledger {ledger_id}: {answer.response}")
            # A row is part of one batch on disk, which is good or bad as a whole. Entries between two rows are lost, and are no
            # longer in the bookie's index.
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

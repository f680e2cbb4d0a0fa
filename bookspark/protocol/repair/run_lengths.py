"""How many entries are copied together: a *run*, which one bookie is asked for, and which is written by one request.

Law: a run has about ``RUN_BYTES``, and at least one entry. If it is known where stored batches end, a run may be twice as long,
and it ends where a batch does, if one ends in it at all. A run that ends inside of a batch costs more than its entries: who has
the batch makes two of it, with their checksums, and they stay two where they are copied to (docs/decisions/profile.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

RUN_BYTES = 1 << 20
"""About how many bytes one read asks for, if the size of the entries is known."""
LONG_RUN_BYTES = 2 * RUN_BYTES
"""The same, if it is known where stored batches end."""


def run_entries(metadata: LedgerMetadata, entries_max: int) -> int:
    """How many entries make ``RUN_BYTES``; ``entries_max`` if their size is not known, and at most."""
    entries = metadata.last_entry_id + 1
    if not metadata.closed or entries < 1 or metadata.length < 1:
        return entries_max
    return max(1, min(entries_max, RUN_BYTES * entries // metadata.length))


def run_end(first: int, entries: int, batch_ends: Sequence[int]) -> int:
    """The last entry of the run that begins with ``first``. ``entries`` make ``RUN_BYTES``. ``batch_ends``: the last entry ids of
    stored batches, ascending; empty if they are not known."""
    if batch_ends:
        before = bisect_right(batch_ends, first + entries * LONG_RUN_BYTES // RUN_BYTES - 1)
        if before and batch_ends[before - 1] >= first:
            return batch_ends[before - 1]
    return first + entries - 1

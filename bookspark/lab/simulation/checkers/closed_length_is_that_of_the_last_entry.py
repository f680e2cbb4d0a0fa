"""The length of a closed ledger is the payload bytes up to its last entry.

Law: each entry here is one byte long, so the length is the last id plus one, unless that entry was given up. A writer whose
close lost its compare-and-set compares its length with the record's (docs/decisions/traps.md, trap 4), so a wrong length
turns a good close into a failed one.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    metadata = view.metadata
    if view.accepted_as_lost(metadata.last_entry_id):
        return None
    if metadata.closed and metadata.length != metadata.last_entry_id + 1:
        return f"the ledger is closed at entry {metadata.last_entry_id} with length {metadata.length}"
    return None

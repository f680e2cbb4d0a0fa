"""A confirmed entry is on a bookie where readers look for it.

Law: every entry up to the writer's LAC (last add confirmed) is on at least one bookie that the current metadata assigns to
it, as long as fewer than AQ (ack quorum) copies may have been lost with disks: the promise of the durability mode. TLA+:
``AllAckedEntriesAreReadable``.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    if view.deleted or view.lost_boots >= view.options.ack_quorum:
        return None
    for entry_id in range(view.writer.last_add_confirmed + 1):
        if not view.holders(entry_id):
            return f"entry {entry_id} was confirmed, and no bookie that the metadata assigns to it has it"
    return None

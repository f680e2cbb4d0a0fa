"""A confirmed entry is on an ack quorum.

Law: every entry up to the writer's LAC (last add confirmed) is on AQ (ack quorum) bookies that the current metadata assigns
to it, less one for each possible loss of entries by a bookie. TLA+: ``AllCommittedEntriesReachAckQuorum``.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    if view.deleted:
        return None
    needed = view.options.ack_quorum - view.lost_boots
    for entry_id in range(view.writer.last_add_confirmed + 1):
        holders = view.holders(entry_id)
        if len(holders) < needed:
            return f"entry {entry_id} was confirmed, and only {', '.join(holders) or 'nobody'} of its bookies has it"
    return None

"""Entries written back by recovery outlive any crash that loses only unsynced data.

Law: once a recoverer has closed the ledger, each entry that it wrote back is on an ack quorum of the bookies that the metadata
assigns to it, however many bookies crash. Only a lost disk takes a copy away. Therefore a single positive answer is enough for
a recovery read (docs/decisions/one-log.md and three-valued-answers.md).
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    if view.deleted:
        return None
    for recoverer in view.recoverers:
        if recoverer.outcome != "finished":
            continue
        for entry_id in recoverer.wrote_back:
            holders = view.holders(entry_id)
            if len(holders) < view.options.ack_quorum - view.disks_lost:
                return f"entry {entry_id} was written back and closed, and only {', '.join(holders) or 'nobody'} has it"
    return None

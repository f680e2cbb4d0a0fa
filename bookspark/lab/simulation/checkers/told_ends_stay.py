"""An end reported to a client stays the ledger's end.

Law: after a successful close or recovery, the ledger's record is CLOSED, with the reported last entry and length. Only repair
changes the record later, and only its ensembles (docs/decisions/traps.md, trap 4).

The closing record of a writer ends at or after every acknowledged entry. On a VD ledger (volatile durability) these are
more than the confirmed entries: a ledger that the writer may not close with them stays open, for recovery (BP-14). If the
user gets a successful close, every append was acknowledged and is part of the ledger.

If a writer learns that its ledger belongs to another client, this is true: the record is no longer OPEN, or it was deleted,
or a bookie fenced it at a lossy boot (BP-46).
"""

from __future__ import annotations

from bookspark.lab.simulation.clients.recoverer import RecovererClient
from bookspark.lab.simulation.clients.writer import WriterClient
from bookspark.lab.simulation.view import WorldView
from bookspark.protocol.ledger.ledger_metadata import LedgerState


def check(view: WorldView) -> str | None:
    if view.writer.cut_off:
        return f"the writer's own close left out {view.writer.cut_off} of the entries that its user counts on"
    if view.deleted:
        return None
    metadata = view.metadata
    may_be_fenced = view.lost_boots or view.options.second_ledger or metadata.state is not LedgerState.OPEN
    if view.writer.outcome == "LedgerFencedError" and not may_be_fenced:
        return "the writer was told that the ledger is another client's, and its record is OPEN"
    clients: tuple[WriterClient | RecovererClient, ...] = (view.writer, *view.recoverers)
    for client in clients:
        if client.told_end is not None and (
            not metadata.closed or client.told_end != (metadata.last_entry_id, metadata.length)
        ):
            last, length = client.told_end
            now = f"closed at {metadata.last_entry_id} with length {metadata.length}"
            return (
                f"a {client.kind} was told that the ledger is closed at entry {last} with length {length}, and it is "
                f"{now if metadata.closed else metadata.state.name}"
            )
    return None

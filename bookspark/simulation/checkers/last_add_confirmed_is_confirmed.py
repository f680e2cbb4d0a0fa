"""A LAC is never a promise.

Law: the LAC that a bookie tells is really confirmed: the writer was told so, or the ledger is closed behind it. Readers read
up to it (TLA+: ``NoDirtyReads``).
"""

from __future__ import annotations

from bookspark.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    confirmed = view.writer.last_add_confirmed
    if view.metadata.closed:
        confirmed = max(confirmed, view.metadata.last_entry_id)
    for name, bookie in view.bookies.items():
        if bookie.ledger is not None and bookie.ledger.last_add_confirmed > confirmed:
            return f"{name} tells LAC {bookie.ledger.last_add_confirmed}, and only {confirmed} is confirmed"
    return None

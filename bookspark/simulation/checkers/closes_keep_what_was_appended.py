"""A writer's own close leaves out nothing that its user counts on.

Law: the record with which a writer closes its ledger ends at or after everything that it acknowledged. On a VD ledger (volatile
durability) that is more than what is confirmed: what it may not close it leaves open, to be recovered (BP-14). If its user is
told that the close went well, every append was acknowledged, and is part of the ledger.
"""

from __future__ import annotations

from bookspark.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    entries = view.writer.cut_off
    return f"the writer's own close left out {entries} of the entries that its user counts on" if entries else None

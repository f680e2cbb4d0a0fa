"""Each entry has its own id everywhere.

Law: every bookie's entry i is the writer's entry i. TLA+: ``NoOutOfOrderEntries``.
"""

from __future__ import annotations

from bookspark.lab.simulation.clients.client import content_of
from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    for name, bookie in view.bookies.items():
        for entry_id, row in bookie.rows.items():
            if row.content != content_of(entry_id):
                return f"{name} holds {row.content} as entry {entry_id}"
    return None

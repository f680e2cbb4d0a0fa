"""A writer that is told to end has ended.

Law: once its time is over, or its client can't go on, nobody waits for the writer any more: it tells its user an error at once.
"""

from __future__ import annotations

from bookspark.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    event = view.writer.outlived
    return f"the writer was told {event}, and has not ended" if event else None

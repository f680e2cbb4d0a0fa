"""Every event that can happen is decided.

Law: no machine and no decision raises, for any event in any order: not for an event missing in its table, and not for an
impossible record (an ensemble with a bookie twice, a last entry below the first). Impossible events, such as an answer
without a request, have no effect (``clients.writer``).

A writer whose time is over, or whose client can't go on, ends at once with an error. An idle writer sends its LAC (last add
confirmed) to the bookies that may not know it, and on its user's request to all of them. Each of its reports to the user is
news, never a step back. Bookies get the user's current LAC and LAFR (last add fully replicated). A new ensemble is
reported. A writer gives up for lack of bookies only if the bookies of some write set without a refusal or a silence are
fewer than an ack quorum.

A recovery fences no bookie before the record says IN_RECOVERY: a bookie that lost its fences asks the record, and OPEN
means that there was none.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    for client in view.clients:
        if client.defect:
            return f"a {client.kind} failed: {client.defect}"
    return next((f"{name} failed: {bookie.defect}" for name, bookie in view.bookies.items() if bookie.defect), None)

"""Every event that can happen is decided.

Law: no machine and no decision raises, whatever comes in whatever order: not for an event that its table lacks, and not for a
record that can't be (an ensemble with a bookie twice, a last entry below the first). A writer that is told that its time is over,
or that its client can't go on, ends at once with an error: nobody waits for it any more. One that is idle tells its LAC (last add
confirmed) to the bookies that may not know it, and so does one whose user asks for it. What it tells its user is news, never a
step back; bookies hear the LAC and the LAFR (last add fully replicated) that the user knows at that moment. A new ensemble is
told. One that gives up for lack of bookies has fewer than an ack quorum in some write set that never refused or were silent. From
what can't be, such as an answer to what nobody asked, nothing follows (``clients.writer``). A recovery fences nobody before
the record says IN_RECOVERY: a bookie that lost its fences asks the record, and OPEN means that there was none.
"""

from __future__ import annotations

from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    for client in view.clients:
        if client.defect:
            return f"a {client.kind} failed: {client.defect}"
    return next((f"{name} failed: {bookie.defect}" for name, bookie in view.bookies.items() if bookie.defect), None)

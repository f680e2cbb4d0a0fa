"""A reader sees only confirmed entries, and its reads repeat.

Law: no reader reads an unconfirmed entry, a second read gives the same value, a LAC (last add confirmed) never goes back
and comes from a bookie, and no entry up to the LAC is reported missing (as long as fewer than AQ, the ack quorum, copies
may have been lost with disks). An entry accepted as lost by an operator may have been read before. TLA+: ``NoDirtyReads``.
"""

from __future__ import annotations

from bookspark.lab.simulation.clients.client import content_of
from bookspark.lab.simulation.view import WorldView


def check(view: WorldView) -> str | None:
    confirmed = view.writer.last_add_confirmed
    if view.metadata.closed:
        confirmed = max(confirmed, view.metadata.last_entry_id)
    for reader in view.readers:
        if reader.contradiction:
            return reader.contradiction
        for entry_id, content in reader.read.items():
            if entry_id > confirmed:
                return f"a reader read entry {entry_id}, and only {confirmed} is confirmed"
            if content != content_of(entry_id):
                return f"a reader read {content} as entry {entry_id}"
            if view.metadata.closed and entry_id > view.metadata.last_entry_id and view.metadata.accepted_loss is None:
                return f"a reader read entry {entry_id}, and the ledger is closed at {view.metadata.last_entry_id}"
        if reader.denied and not view.deleted and view.lost_boots < view.options.ack_quorum:
            return f"a reader was told that entry {min(reader.denied)} does not exist, and it is confirmed"
    return None

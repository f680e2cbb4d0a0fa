"""A reader sees confirmed entries only, and what it saw stays so.

Law: no reader reads an entry that is not confirmed, reads repeat, a LAC never goes back and comes from a bookie, and no
entry up to the LAC is ever said not to exist (as long as fewer than AQ copies may have been lost with disks). What an operator
accepted as lost may have been read before. TLA+: ``NoDirtyReads``.
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

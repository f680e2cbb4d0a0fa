"""Items that the loop queues for a directory's commit thread.

Law: an item's ``done`` is called once, on the loop: with OK as its docstring says, else with the status of the failure. Items
keep their order, except that control records are written before the entries of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.wire.entry_batch import Buffer


class EntryWrite(msgspec.Struct, frozen=True):
    """Write a batch frame at ``position`` of ``log``. Done when it is synced. The frames of a log, ``RelaxedWrite`` included, are
    queued in the order of their positions, without a gap."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done


class RelaxedWrite(msgspec.Struct, frozen=True):
    """Write a batch frame at ``position`` of ``log``. Done when the operating system has it; a background sync follows.
    ``promised``: the ledger is of persistent durability (PD), so the directory is marked unclean before the acknowledgement."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done
    promised: bool


class ControlWrite(NamedTuple):
    """Append encoded control records, as write ``number``. Done when they are synced."""

    content: bytes
    done: Done
    number: int


class ControlRewrite(NamedTuple):
    """Replace all control records, earlier queued ones included, by these encoded records, in pieces: the state up to write
    ``number``. Done when they are synced."""

    content: Sequence[bytes]
    done: Done
    number: int


class RemovalNote(NamedTuple):
    """Note the intended removal of the entry logs ``gone``, and the list of rewritten logs. Done when the note is synced."""

    gone: Sequence[int]
    rewritten: Sequence[int]
    done: Done


class Passing(NamedTuple):
    """Write nothing. Done when all earlier items are done."""

    done: Done


class Barrier(NamedTuple):
    """Write nothing. Done when everything queued before is synced."""

    done: Done


class SyncWritten(NamedTuple):
    """Write nothing. Done when everything queued before is synced. The sync runs in the background and delays no later write."""

    done: Done


class NoteSync(NamedTuple):
    """Make the synced notes themselves durable."""

    done: Done


class SealLog(NamedTuple):
    """Seal ``log`` if it is the current log, and return its reserved space (None: seal nothing). ``failure``: the loop knows of
    this write without room and has dropped its entries, so any current log is sealed, and later items may be written again."""

    log: EntryLog | None
    done: Done
    failure: OSError | None = None


class Stop(NamedTuple):
    """The last item: sync everything, seal the log and end the thread."""

    done: Done


Item = (
    EntryWrite
    | RelaxedWrite
    | ControlWrite
    | ControlRewrite
    | RemovalNote
    | Passing
    | Barrier
    | SyncWritten
    | NoteSync
    | SealLog
    | Stop
)

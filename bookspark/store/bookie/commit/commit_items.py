"""What the loop queues for a directory's commit thread.

Law: an item's ``done`` is called once, on the loop: with OK when it is done as its docstring says, or with the status of why it
can't be. Items are dealt with in their order, except that control records are written before the entries of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.wire.entry_batch import Buffer


class EntryWrite(msgspec.Struct, frozen=True):
    """Write a batch frame at ``position`` of ``log``. Done when it is synced. The frames of a log are queued in the order of
    their positions and leave no gap; those of ``RelaxedWrite`` are among them."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done


class RelaxedWrite(msgspec.Struct, frozen=True):
    """Write a batch frame at ``position`` of ``log``. Done when the operating system has it; its sync follows in the
    background. ``promised``: the ledger is of persistent durability (PD), so the acknowledgement is a promise, and the
    directory is marked unclean before."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done
    promised: bool


class ControlWrite(NamedTuple):
    """Append encoded control records, which are write ``number``. Done when they are synced."""

    content: bytes
    done: Done
    number: int


class ControlRewrite(NamedTuple):
    """Replace all control records, also those that were queued before, by these encoded ones, in pieces: everything up to write
    ``number``. Done when they are synced."""

    content: Sequence[bytes]
    done: Done
    number: int


class RemovalNote(NamedTuple):
    """Note that the entry logs ``gone`` will be removed on purpose, and which rewritten logs there are. Done when that is
    synced."""

    gone: Sequence[int]
    rewritten: Sequence[int]
    done: Done


class Passing(NamedTuple):
    """Write nothing. Done when all items that were queued before are done."""

    done: Done


class Barrier(NamedTuple):
    """Write nothing. Done when everything that was queued before is synced."""

    done: Done


class SyncWritten(NamedTuple):
    """Write nothing. Done when everything that was queued before is synced. The sync is made in the background, so no write
    that comes later waits for it."""

    done: Done


class NoteSync(NamedTuple):
    """Make the synced notes durable themselves."""

    done: Done


class SealLog(NamedTuple):
    """Seal ``log`` if it is the one that is written to, which gives back the space that it reserves (None: seal nothing).
    ``failure``: the loop knows of this write that found no room, and has nothing of it any more. So the log is sealed whichever
    it is, and what comes after this item may be written again."""

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

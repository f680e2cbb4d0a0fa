"""What the loop queues for a directory's commit thread.

Law: an item's ``done`` is called once, on the loop, when what the item's docstring says is true, or with the status of why it is
not. Items are dealt with in their order, but for control records, which are written before the entries of their group.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from bookspark.bookie.commit.completions import Done
from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.wire.entry_batch import Buffer


class EntryWrite(NamedTuple):
    """A batch frame to be written at ``position`` of ``log``; done when it is synced. Consecutive ones of a log follow each
    other, those of ``RelaxedWrite`` included."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done


class RelaxedWrite(NamedTuple):
    """As ``EntryWrite``, but done when the operating system has it; its sync follows in the background. ``promised``: its ack
    is of a PD ledger, so the directory is marked unclean before."""

    log: EntryLog
    position: int
    frame: Buffer
    done: Done
    promised: bool


class ControlWrite(NamedTuple):
    """Encoded control records to be appended; done when they are synced."""

    content: bytes
    done: Done


class ControlRewrite(NamedTuple):
    """Encoded control records, in pieces, to stand in place of all that were queued before; done when they are synced."""

    content: Sequence[bytes]
    done: Done


class Passing(NamedTuple):
    """Nothing to write: done when all that was queued before it is, whatever that is."""

    done: Done


class Barrier(NamedTuple):
    """Nothing to write: done when all that was queued before it is synced."""

    done: Done


class SyncWritten(NamedTuple):
    """A ``Barrier`` whose sync is made in the background: it holds up no write that comes after it."""

    done: Done


class NoteSync(NamedTuple):
    """The notes of the synced positions are to be made durable themselves."""

    done: Done


class SealLog(NamedTuple):
    """``log`` (None: none) is to be sealed if it is the one that is written to, so that the room that it reserves comes free. It
    says besides that the loop knows of a write that found no room, so what comes after this may be written again."""

    log: EntryLog | None
    done: Done


class Stop(NamedTuple):
    """The last item: sync everything, seal the log and end the thread."""

    done: Done


Item = (
    EntryWrite
    | RelaxedWrite
    | ControlWrite
    | ControlRewrite
    | Passing
    | Barrier
    | SyncWritten
    | NoteSync
    | SealLog
    | Stop
)

"""An event of every type that a protocol machine accepts, for tests of transition tables."""

from __future__ import annotations

from bookspark.errors import MetadataStoreError, NotEnoughBookiesError, RecordFullError
from bookspark.protocol.bookie.lease import Claim, Drop, Stop, Tick
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    DeadlinePassed,
    HeldAnswered,
    LacAnswered,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadAnswered,
    ReadIsLate,
    RecordFull,
    Start,
    SyncAnswered,
)
from bookspark.protocol.repair.bookie_healing import HeldListed, LimboIsCleared
from bookspark.protocol.repair.ledger_replication import WriterWaitedFor
from tests.protocol.ledgers import OK, metadata

_EVENTS = (
    Start(),
    MetadataRead(metadata(), 1),
    MetadataWritten(2),
    MetadataConflict(),
    RecordFull(RecordFullError("no room")),
    MetadataFailed(MetadataStoreError("no answer")),
    AddAnswered("b1", 0, 0, OK),
    SyncAnswered("b1", OK),
    ReadAnswered("b1", 0, 0, OK, "e0", 10),
    ReadIsLate(0),
    LacAnswered("b1", OK, 0, 0),
    HeldAnswered("b1", 1, 0, OK),
    BookiesChosen(("b8",)),
    NoBookies(NotEnoughBookiesError("none is left")),
    DeadlinePassed(),
    HeldListed(()),
    LimboIsCleared(),
    WriterWaitedFor(30.0),
    Claim(1, "executor 1"),
    Drop(1),
    Stop("asked to"),
    Tick(),
)


def samples(**of_this_machine):
    """A function of the machine for each event type; arguments override by the type's name."""
    made = {type(event): (lambda machine, event=event: event) for event in _EVENTS}
    by_name = {event_type.__name__: event_type for event_type in made}
    return made | {by_name[name]: sample for name, sample in of_this_machine.items()}

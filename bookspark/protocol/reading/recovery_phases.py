"""The phases of ledger recovery, and which events each takes.

Law: an answer of a bookie may be late: it can belong to an earlier phase, or to the round before a lost compare-and-set. The
metadata store and placement answer in the phase that asked them, unless the deadline passes first.
"""

from __future__ import annotations

from enum import Enum, auto

from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.transitions import row


class RecoveryPhase(Enum):
    NEW = auto()
    STARTING = auto()
    """The record is being set to IN_RECOVERY."""
    REREADING = auto()
    """The record is being read, after a compare-and-set was lost."""
    FENCING = auto()
    READING = auto()
    LOOKING = auto()
    """Bookies are being asked for entries behind one that can't be known."""
    WRITING = auto()
    CHOOSING = auto()
    """As WRITING, while replacements are being chosen for bookies that refused the run."""
    MEASURING = auto()
    """The last entry is being read, for the ledger's length."""
    CLOSING = auto()
    DONE = auto()


_BOOKIES = (act.LacAnswered, act.ReadAnswered, act.AddAnswered, act.HeldAnswered)
_WRITE = (act.MetadataWritten, act.MetadataConflict, act.MetadataFailed)
_CHOICE = (act.BookiesChosen, act.NoBookies, act.MetadataFailed)

TRANSITIONS = {
    RecoveryPhase.NEW: row(taken=(act.MetadataRead, act.MetadataFailed)),
    RecoveryPhase.STARTING: row(taken=(*_WRITE, act.DeadlinePassed)),
    RecoveryPhase.REREADING: row(taken=(act.MetadataRead, act.MetadataFailed, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.FENCING: row(taken=(act.LacAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.READING: row(taken=(act.ReadAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.LOOKING: row(taken=(act.HeldAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.WRITING: row(taken=(act.AddAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.CHOOSING: row(taken=(act.AddAnswered, *_CHOICE, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.MEASURING: row(taken=(act.ReadAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.CLOSING: row(taken=(*_WRITE, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.DONE: row(late=(*_BOOKIES, *_WRITE, *_CHOICE, act.MetadataRead, act.DeadlinePassed)),
}

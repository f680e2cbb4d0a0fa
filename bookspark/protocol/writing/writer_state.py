"""The parts of a writer's state: where it is on its way to the close, what it has asked, and the appends that it is not done
with.

Law: a writer asks one question at a time of the metadata store or of placement. The ``acks`` of an append only ever have members
of its ``bookies``; its ids and its length never change, its bookies change with the ensemble only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto


class State(Enum):
    """How far the writer is on its way to the close. The picture is in ``writer``."""

    OPEN = auto()
    CLOSING = auto()
    """The user appends no more, and something is still pending."""
    WRITING = auto()
    """Nothing is pending; the record is being closed."""
    CLOSED = auto()
    FAILED = auto()

    # Each step looks a state up. This hash is in C; that of ``Enum`` is a call of Python code.
    __hash__ = object.__hash__


class Asked(Enum):
    """The question that waits for an answer of the metadata store or of placement."""

    NOTHING = auto()
    BOOKIES = auto()
    """``ChooseBookies``, for an ensemble change."""
    CHANGE_WRITE = auto()
    """``WriteMetadata`` with the new ensemble."""
    CHANGE_READ = auto()
    """``ReadMetadata``, as the write of the new ensemble did not win, or its outcome is not known."""
    CLOSE_WRITE = auto()
    """``WriteMetadata`` with the closed record."""
    CLOSE_READ = auto()
    """``ReadMetadata``, as the write of the closed record did not win."""


@dataclass(slots=True)
class PendingAdd:
    """A run of entries with one write set, sent to ``bookies``; ``length`` is the ledger's in bytes with its last one."""

    first: int
    last: int
    length: int
    bookies: tuple[str, ...]
    acks: set[str] = field(default_factory=set)

"""Parts of a writer's state: its step on the way to the close, its open question, and its pending adds.

Law: a writer has one open question to the metadata store or to placement. The ``acks`` of an append are members of its
``bookies``; its ids and length never change, its bookies only with the ensemble.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto


class State(Enum):
    """Drawn in ``writer``."""

    OPEN = auto()
    CLOSING = auto()
    """The user appends no more; adds are still pending."""
    WRITING = auto()
    """Nothing is pending; the record is being closed."""
    CLOSED = auto()
    FAILED = auto()

    # Each step looks a state up. This hash is in C; that of ``Enum`` is a call of Python code.
    __hash__ = object.__hash__


class Asked(Enum):
    """The open question to the metadata store or to placement."""

    NOTHING = auto()
    BOOKIES = auto()
    """``ChooseBookies``, for an ensemble change."""
    CHANGE_WRITE = auto()
    """``WriteMetadata`` with the new ensemble."""
    CHANGE_READ = auto()
    """``ReadMetadata``: the write of the new ensemble lost, or has an unknown outcome."""
    CLOSE_WRITE = auto()
    """``WriteMetadata`` with the closed record."""
    CLOSE_READ = auto()
    """``ReadMetadata``: the write of the closed record lost."""


@dataclass(slots=True)
class PendingAdd:
    """A run of entries with one write set, sent to ``bookies``; ``length``: the ledger's, in bytes, after its last entry."""

    first: int
    last: int
    length: int
    bookies: tuple[str, ...]
    acks: set[str] = field(default_factory=set)

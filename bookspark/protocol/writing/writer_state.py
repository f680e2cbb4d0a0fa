"""The parts of a writer's state: where it is on its way to the close, and the appends that it is not done with.

Law: ``acks`` only ever has members of ``bookies``; ids and length never change, the bookies with an ensemble change
only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto


class State(Enum):
    """See the picture in ``writer``."""

    OPEN = auto()
    CLOSING = auto()
    WRITING = auto()
    CLOSED = auto()
    FAILED = auto()


@dataclass(slots=True)
class PendingAdd:
    """A run of entries with one write set; ``length`` is the ledger's with its last one."""

    first: int
    last: int
    length: int
    bookies: tuple[str, ...]
    acks: set[str] = field(default_factory=set)

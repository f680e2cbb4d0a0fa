"""The frames of a writer that may have to be sent again: to a bookie that missed them, was started again, or joined.

Law: a frame is kept until the writer's machine says that its content may be forgotten: when it is confirmed, and on a guaranteed
ledger when its whole write set has it. ``released_bytes`` grows with each released frame, so that the kept bytes can be bounded.
Other threads read that number; everything else is the I/O thread's.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.wire.entry_batch import Buffer, with_header
from bookspark.wire.header import Header


class KeptFrame(NamedTuple):
    """One frame as it was sent first. ``byte_length``: the bytes of its payloads."""

    header: Header
    frame: Buffer
    byte_length: int

    def assigned(self, assignment: Assignment, request_id: int) -> Buffer:
        """The frame, of a VD ledger (volatile durability), for a bookie with this assignment."""
        header = self.header._replace(request_id=request_id).with_assignment(assignment)
        return b"".join(with_header(self.frame, header))


class KeptFrames:
    """The frames of one writer that may have to be sent again, by first entry id, ascending."""

    def __init__(self) -> None:
        self.released_bytes = 0
        """Payload bytes of all frames that are not kept any more."""
        self._frames: dict[int, KeptFrame] = {}
        self._order: deque[int] = deque()
        self._unacknowledged: deque[int] = deque()

    def __getitem__(self, first: int) -> KeptFrame:
        return self._frames[first]

    def __contains__(self, first: int) -> bool:
        return first in self._frames

    @property
    def under_way(self) -> int:
        """How many frames are not acknowledged."""
        return len(self._unacknowledged)

    def keep(self, frame: KeptFrame) -> None:
        first = frame.header.first_entry_id
        self._frames[first] = frame
        self._order.append(first)
        self._unacknowledged.append(first)

    def acknowledged(self, entry_id: int) -> None:
        """Everything up to ``entry_id`` is acknowledged."""
        under_way = self._unacknowledged
        while under_way and under_way[0] <= entry_id:
            under_way.popleft()

    def release(self, entry_id: int) -> None:
        """Forget the content of everything up to ``entry_id``."""
        order = self._order
        while order and order[0] <= entry_id:
            self.released_bytes += self._frames.pop(order.popleft()).byte_length

    def clear(self) -> None:
        self._frames.clear()
        self._order.clear()
        self._unacknowledged.clear()

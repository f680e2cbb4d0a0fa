"""The frames of a writer that may have to be sent again: to a bookie that missed them, was started again, or joined.

Law: a frame is kept until the writer's machine says that its content may be forgotten: when it is confirmed, and on a guaranteed
ledger when its whole write set has it. The ledger's ``LedgerRoom`` is told of each released frame, so that the kept bytes can be
bounded. All of it is the I/O thread's.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.store.client.runtime.room import LedgerRoom
from bookspark.store.wire.entry_batch import Buffer, with_header
from bookspark.store.wire.header import Header


class KeptFrame(NamedTuple):
    """One frame as it was sent first. ``byte_length``: the bytes of its payloads. ``header``: that of a VD ledger's (volatile
    durability), whose frames are sent under others; None of other ledgers, which are to have one object less for each add."""

    request_id: int
    frame: Buffer
    byte_length: int
    header: Header | None = None

    def assigned(self, assignment: Assignment, request_id: int) -> Buffer:
        """The frame, of a VD ledger, for a bookie with this assignment."""
        assert self.header is not None, "the ledger is a PD ledger"
        header = self.header._replace(request_id=request_id).with_assignment(assignment)
        return b"".join(with_header(self.frame, header))


class KeptFrames:
    """The frames of one writer that may have to be sent again, by first entry id, ascending."""

    __slots__ = ("_frames", "_room", "_unacknowledged")

    def __init__(self, room: LedgerRoom) -> None:
        self._room = room
        self._frames: dict[int, KeptFrame] = {}
        """In the order of their ids, as a dict keeps it. A queue beside it was 700 bytes more for each add of many ledgers."""
        self._unacknowledged: dict[int, float | None] = {}
        """When the first bookie acknowledged each frame; None if none did."""

    def __getitem__(self, first: int) -> KeptFrame:
        return self._frames[first]

    def __contains__(self, first: int) -> bool:
        return first in self._frames

    @property
    def under_way(self) -> int:
        """How many frames are not acknowledged."""
        return len(self._unacknowledged)

    def keep(self, first: int, frame: KeptFrame) -> None:
        """Keep the frame that begins with entry ``first``."""
        self._frames[first] = frame
        self._unacknowledged[first] = None

    def acknowledged(self, entry_id: int) -> None:
        """Everything up to ``entry_id`` is acknowledged."""
        under_way = self._unacknowledged
        while under_way and (first := next(iter(under_way))) <= entry_id:
            del under_way[first]

    def heard(self, first: int) -> None:
        """A bookie has acknowledged the frame that begins with entry ``first``."""
        if self._unacknowledged.get(first, 0.0) is None:
            self._unacknowledged[first] = time.monotonic()

    def oldest_under_way(self) -> tuple[int, float | None]:
        """The first entry of the oldest frame that is not acknowledged, and when the first bookie acknowledged it (None: none
        did)."""
        return next(iter(self._unacknowledged.items()), (NO_ENTRY, None))

    def release(self, entry_id: int) -> None:
        """Forget the content of everything up to ``entry_id``."""
        frames, forgotten, byte_length = self._frames, [], 0
        for first in frames:
            if first > entry_id:
                break
            forgotten.append(first)
        for first in forgotten:
            byte_length += frames.pop(first).byte_length
        self._room.release(byte_length)

    def clear(self) -> None:
        self._frames.clear()
        self._unacknowledged.clear()

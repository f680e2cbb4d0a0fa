"""What the requests of all connections share: who the bookie is, its storage, and its secret."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookspark.bookie.serving.read_room import ReadRoom
from bookspark.bookie.storage import Storage
from bookspark.wire.messages import BookieStatus


class ServedBookie(NamedTuple):
    """What the connections of one bookie share. ``BookieServer`` makes one."""

    storage: Storage
    bookie_id: str
    """Told to clients in the answer to HELLO."""
    incarnation: int
    """Random per start of the process, 64 bits. It stands in every answer."""
    secret: bytes
    """The secret that clients have to know; b"": clients need none."""
    requests_in_flight_max: int
    """How many requests of one connection may wait for their answers."""
    read_room: ReadRoom
    """The memory for what is on its way to readers."""
    status: Callable[[], BookieStatus]
    """What the bookie says of itself; to be called on the loop."""
    collect: Callable[[], int]
    """Starts a garbage collection and returns its number; to be called on the loop."""

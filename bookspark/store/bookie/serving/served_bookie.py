"""What the requests of all connections share: who the bookie is, its storage, and its secrets."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from bookspark.store.bookie.serving.poll_timers import PollTimers
from bookspark.store.bookie.serving.read_room import ReadRoom
from bookspark.store.bookie.serving.refusals import Refusals
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Header
from bookspark.store.wire.messages import BookieStatus, FetchFrom

Fetched = Callable[[int, int, int, str], None]
"""``fetched(status, last, byte_count, why)``: how a fetch ended. ``last`` is the last entry id that came; ``why`` tells why no
more did."""
Fetch = Callable[[Header, FetchFrom, Fetched], None]
"""Answers a FETCH. It returns at once; ``fetched`` is called once, on the loop."""


class ServedBookie(NamedTuple):
    """What the connections of one bookie share. ``BookieServer`` makes one."""

    storage: Storage
    bookie_id: str
    """Told to clients in the answer to HELLO."""
    incarnation: int
    """Random per start of the process, 64 bits. It stands in every answer."""
    secrets: Callable[[], tuple[bytes, ...]]
    """The secrets of which clients have to know one, as they are now; none: clients need none."""
    requests_in_flight_max: int
    """How many requests of one connection may wait for their answers."""
    read_room: ReadRoom
    """The memory for what is on its way to readers."""
    poll_timers: PollTimers
    """The times at which long polls end."""
    refusals: Refusals
    """Tells of refused requests and connections."""
    status: Callable[[], BookieStatus]
    """What the bookie says of itself; to be called on the loop."""
    collect: Callable[[], int]
    """Starts a garbage collection and returns its number; to be called on the loop."""
    fetch: Callable[[], Fetch | None] = lambda: None
    """What copies entries from other bookies; None: nothing does."""

"""Memory of entries on their way from the logs to readers: one bound for all connections of a bookie.

Law: a part of an answer is read only when its reader has taken earlier parts, and when there is room. Without room a reader
waits; none is refused. A reader that holds nothing always has room for one part of the usual size, so it never waits for readers
that don't take their answers. A longer batch waits until it fits into the bound; meanwhile readers that take nothing for half a
minute lose their connections. A reader that holds parts gets more while half of the room is free.

Source: the counterpart of BookKeeper's ``readWorkerThreadsThrottlingEnabled`` and ``maxReadsInProgressLimit``, in bytes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from bookspark.store.bookie.holdings.reads import PART_BYTES

_LOOK_SECONDS = 30.0

log = logging.getLogger(__name__)


class Reader(Protocol):
    """A connection, as seen by the read room."""

    peer: str
    """Address and name, for log lines."""

    @property
    def unsent_bytes(self) -> int:
        """Bytes of answers that the socket has not taken."""

    def abort(self) -> None:
        """End the connection at once."""


class _Waiting(NamedTuple):
    reader: Reader
    size: int
    begin: Callable[[], None]


class ReadRoom:
    """The memory of one bookie's reads. Owned by the loop."""

    def __init__(self, bytes_max: int) -> None:
        """``bytes_max``: memory of all readers together, besides a first part of each."""
        self._bytes_max = bytes_max
        self._held: dict[Reader, int] = {}
        self.total = 0
        self._waiting: list[_Waiting] = []
        self._seen: dict[Reader, int] = {}
        """Unsent bytes at the last look."""
        self._beginning = False
        self._look_again = False
        """Was room freed during the pass over the waiting parts?"""
        self._timer: asyncio.TimerHandle | None = None

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def has_room(self, reader: Reader, size: int) -> bool:
        """May the reader read ``size`` bytes now?"""
        if reader not in self._held:
            return size <= PART_BYTES or self._fits(size, self._bytes_max)
        return not any(map(self._is_first, self._waiting)) and self._fits(size, self._bytes_max // 2)

    def is_roomy(self, size: int) -> bool:
        """May any reader read ``size`` bytes?"""
        return not self._waiting and self.total + size <= self._bytes_max // 2

    def ask(self, reader: Reader, size: int, begin: Callable[[], None]) -> None:
        """Call ``begin``, now or later, once there is room for ``size`` bytes. It has to ``hold`` about that many."""
        if self.has_room(reader, size):
            begin()
            return
        self._waiting.append(_Waiting(reader, size, begin))
        if self._timer is None:
            self._look()

    def hold(self, reader: Reader, size: int) -> None:
        """Set the reader's memory to ``size`` bytes."""
        before = self._held.pop(reader, 0)
        if size:
            self._held[reader] = size
        self.total += size - before
        if size < before:
            self._begin_those_that_fit()

    def forget(self, reader: Reader) -> None:
        self._waiting = [one for one in self._waiting if one.reader is not reader]
        self._seen.pop(reader, None)
        self.hold(reader, 0)
        # The peer may have held nothing, and been the first to wait.
        self._begin_those_that_fit()

    def _begin_those_that_fit(self) -> None:
        self._look_again = bool(self._waiting)
        if self._beginning:
            return
        self._beginning = True
        try:
            while self._look_again:
                self._look_again = False
                self._look_at_waiting()
        finally:
            self._beginning = False

    def _look_at_waiting(self) -> None:
        before, self._waiting = self._waiting, []
        behind_first = False
        for one in before:
            # Behind a waiting reader that holds nothing, only parts of the usual size begin.
            if self.has_room(one.reader, one.size) and (not behind_first or one.size <= PART_BYTES):
                one.begin()
            else:
                self._waiting.append(one)
                behind_first |= self._is_first(one)

    def _is_first(self, waiting: _Waiting) -> bool:
        """Does the part's reader hold nothing, so that it can't free room itself?"""
        return waiting.reader not in self._held

    def _fits(self, size: int, bytes_max: int) -> bool:
        return not self.total or self.total + size <= bytes_max

    def _look(self) -> None:
        """Abort readers that took nothing since the last look, until there is room for a waiting long batch."""
        self._timer = None
        if not self._waiting:
            self._seen.clear()
            return
        first = next(filter(self._is_first, self._waiting), None)
        unsent = {reader: reader.unsent_bytes for reader in self._held}
        stalled = [reader for reader, size in unsent.items() if 0 < self._seen.get(reader, 0) <= size]
        self._seen = unsent
        needed = 0 if first is None else self.total + first.size - self._bytes_max
        for reader in sorted(stalled, key=lambda reader: -self._held[reader]):
            if needed <= 0:
                break
            log.warning(
                "the connection from %s is ended: it takes nothing of its answers, and others wait for the memory (%d bytes)",
                reader.peer,
                self._held[reader],
            )
            needed -= self._held[reader]
            reader.abort()
        self._timer = asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

"""The memory that the writers of one client share: how many bytes each may keep.

Law: a ledger keeps at most ``bytes_in_flight_max`` bytes, and no more than is free in the client after it (of
``client_bytes_in_flight_max``). So n busy ledgers get a share of 1/(n+1) each, and a ledger that nobody acknowledges takes at
most half of what the others left: one that comes later still finds room. A ledger that keeps nothing may always append, so no
append waits only for others. The bound is exceeded by one append of each thread at most.

Appends that wait for an earlier entry (``LedgerHandleAdv``) are kept too: what is left for all is less by their bytes, and the
next of them waits for room. The append that fills the gap does not wait for them, since they go only with it.

Room is granted in pieces, so that most appends look at two numbers of their own ledger and take no lock. What is granted and not
used comes back as soon as the ledger keeps nothing.

The I/O thread never waits for the lock. A signal handler may interrupt the main thread while that holds it, and wait for
something that the I/O thread does. What the I/O thread has to tell meanwhile is done by whoever held the lock. He may be
interrupted in the middle of it, so all of that can be done twice.

Source: Choudhury and Hahne, "Dynamic queue length thresholds for shared-memory packet switches" (1998), with α = 1.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from bookspark.support.threads import Latch

_PIECES = 64
"""At most this part of the client's bytes is granted at once."""


class ClientRoom:
    """What all ledgers of one client in one process keep. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._lock = threading.RLock()
        """Guards all that follows, and all of ``LedgerRoom`` but ``appended``. A signal handler that comes while the main thread
        holds it may append as well: a grant that it made meanwhile is made good at the next ask."""
        self._told: deque[Callable[[], None]] = deque()
        """What is to be done with the lock held."""
        self.held = 0
        """Bytes that are kept or granted."""
        self.waiting: dict[Latch, Callable[[], bool]] = {}
        """Appends that wait, in the order in which they came; and may they go on?"""
        self.pressed: dict[LedgerRoom, Callable[[], None]] = {}
        """What has a ledger forget sooner what it keeps, for those of which that can be asked."""

    @contextmanager
    def held_alone(self) -> Iterator[None]:
        """Hold the lock. Not for the I/O thread."""
        try:
            with self._lock:
                self._do_what_was_told()
                yield
        finally:
            while self._told:
                # Not ``acquire``: an interrupt may come between that and its ``try``.
                with self._lock:
                    self._do_what_was_told()

    def tell(self, change: Callable[[], None]) -> None:
        """Have ``change`` called with the lock held: now, or soon by whoever holds it. Never blocks. For the I/O
        thread, which no signal interrupts."""
        self._told.append(change)
        # Who holds the lock looks again after he has let go of it, so nothing stays.
        while self._told and self._lock.acquire(blocking=False):
            try:
                self._do_what_was_told()
            finally:
                self._lock.release()

    def _do_what_was_told(self) -> None:
        while self._told:
            change = self._told[0]
            change()
            # A signal handler may have done it as well, and more. There is no call from here on, and so no other handler.
            if self._told and self._told[0] is change:
                del self._told[0]

    def wake(self) -> None:
        """Let those appends try again for which there is room now. The caller holds the lock."""
        for latch, may_go_on in list(self.waiting.items()):
            if may_go_on():
                latch.set()
                self.waiting.pop(latch, None)


class LedgerRoom:
    """What one ledger keeps and may keep. Numbers of bytes only grow: ``appended`` ≥ ``released``."""

    def __init__(self, client: ClientRoom, bytes_max: int) -> None:
        self._client = client
        self._bytes_max = bytes_max
        self.appended = 0
        """Bytes of all appends. Whoever appends adds to it, under a lock of the ledger's."""
        self.granted = 0
        """While less than this is appended, an append need not ask."""
        self.released = 0
        """Bytes of the appends that are not kept any more."""
        self._let_go = 0
        """What ``released`` will be once all that was told is done. Written by the I/O thread alone."""
        self._behind_gap = 0
        """Bytes that wait for an earlier entry; none of ``appended``."""
        self._ended = False

    def press_with(self, press: Callable[[], None]) -> None:
        """Have ``press`` called when an append of any ledger begins to wait while this ledger keeps something."""
        with self._client.held_alone():
            self._client.pressed[self] = press

    def ask(self, behind_gap: bool = False) -> bool:
        """May something be appended now? Without an append that follows, this promises nothing."""
        with self._client.held_alone():
            return self._ask(behind_gap)

    def wait(self, seconds: float, behind_gap: Callable[[], bool] = lambda: False) -> bool:
        """Wait until something may be appended, or the ledger has ended; False if ``seconds`` pass before. ``behind_gap``: is it
        an append that has to wait for an earlier entry?"""
        client, deadline = self._client, time.monotonic() + seconds
        while True:
            latch = Latch()
            with client.held_alone():
                if self._ask(behind_gap()):
                    return True
                client.waiting[latch] = lambda: self.has_room(behind_gap())
                pressed = [press for room, press in list(client.pressed.items()) if room.released < room.appended]
            for press in pressed:
                press()
            if not latch.wait(max(0.0, deadline - time.monotonic())):
                with client.held_alone():
                    client.waiting.pop(latch, None)
                    return self._ask(behind_gap())

    def has_room(self, behind_gap: bool = False) -> bool:
        """May something be appended? The caller holds the client's lock."""
        kept = self.appended - self.released + (self._behind_gap if behind_gap else 0)
        free = self._client.bytes_max - self._client.held
        return self._ended or kept <= 0 or kept <= min(self._bytes_max, free)

    def keep_behind_gap(self, byte_length: int) -> None:
        """So many bytes more wait for an earlier entry; or fewer, if it is negative."""
        with self._client.held_alone():
            if not self._ended:
                self._behind_gap += byte_length
                self._client.held += byte_length

    def _ask(self, behind_gap: bool = False) -> bool:
        self._grant(max(self.granted, self.appended))
        if self._ended or not self.has_room(behind_gap):
            return self._ended
        if behind_gap:
            return True
        client, kept = self._client, self.appended - self.released
        piece = min(self._bytes_max - kept, (client.bytes_max - client.held - kept) // 2, client.bytes_max // _PIECES)
        self._grant(max(self.granted, self.appended + piece))
        return True

    def _grant(self, granted: int) -> None:
        if not self._ended:
            self._client.held += granted - self.granted
            self.granted = granted

    def release(self, byte_length: int) -> None:
        """So many bytes more are not kept. Never blocks."""
        self._let_go += byte_length
        self._client.tell(self._release)

    def _release(self) -> None:
        client = self._client
        byte_length = self._let_go - self.released
        self.released += byte_length
        if not self._ended:
            client.held -= byte_length
            if self.released == self.appended:
                self._grant(self.appended)
        if client.waiting:
            client.wake()

    def end(self) -> None:
        """The ledger keeps nothing any more, and nothing will be appended. Never blocks."""
        self._client.tell(self._end)

    def _end(self) -> None:
        client = self._client
        if not self._ended:
            self._grant(self.released)
            client.held -= self._behind_gap
            self._behind_gap = 0
            self._ended = True
        client.pressed.pop(self, None)
        client.wake()

"""How fast one client may append: entries and bytes a second, over all its ledgers.

Law: over any time that is not short, no more is appended than the limits allow. Ledgers that want more than there is get the same
number of bytes (or entries), whatever the size of their appends and the number of their threads. Of one ledger's appends, none
overtakes an earlier one by more than its turn.

An append costs time: its bytes by the limit of bytes, or its entries by the limit of entries, whichever is more. After an append
the next one waits for that time. An idle client saves up a tenth of a second.

A thread may be busy with a signal handler just when its turn comes. So a turn that nobody takes for a twentieth of a second is
given by another one who waits.

Source: Goyal, Vin and Cheng, "Start-time fair queuing" (1996).
"""

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import dataclass

_SAVED_SECONDS = 0.1
_UNTAKEN_SECONDS = 0.05


@dataclass(slots=True)
class Turns:
    """When a ledger's next turn begins: virtual time, in seconds of the client's limits. The rate limit reads and writes it."""

    next_at: float = 0.0


class RateLimit:
    """The limits of one client in one process; 0 is none. Thread-safe."""

    def __init__(self, entries_per_second: int, bytes_per_second: int) -> None:
        self._entry_seconds = 1 / entries_per_second if entries_per_second else 0.0
        self._byte_seconds = 1 / bytes_per_second if bytes_per_second else 0.0
        self.limits = bool(entries_per_second or bytes_per_second)
        """Is there any limit?"""
        self._changed = threading.Condition()
        self._order = itertools.count()
        self._waiting: dict[tuple[float, int], float] = {}
        """The turns of the appends that wait, and what each costs. The lowest is next."""
        self._by_thread: dict[int, tuple[float, int]] = {}
        """The turn for which each thread waits: with a signal handler, its innermost one."""
        self._virtual = 0.0
        self._free_at = 0.0

    def would_wait(self) -> bool:
        """Would an append have to wait now?"""
        return self.limits and (bool(self._waiting) or time.monotonic() < self._free_at)

    def wait(self, turns: Turns, count: int, byte_length: int, seconds: float) -> bool:
        """Wait for the turn of an append of ``count`` entries; False if it does not come within ``seconds``."""
        cost = max(count * self._entry_seconds, byte_length * self._byte_seconds)
        deadline = time.monotonic() + seconds
        with self._changed:
            begins = max(self._virtual, turns.next_at)
            turns.next_at = begins + cost
            thread, number = threading.get_ident(), next(self._order)
            interrupted = self._by_thread.get(thread)
            # A signal handler goes before what it interrupted, which can't go on meanwhile.
            mine = (begins, number) if interrupted is None else (interrupted[0], -number)
            self._by_thread[thread] = mine
            self._waiting[mine] = cost
            try:
                while True:
                    now = time.monotonic()
                    late = self._give_turns(now, mine)
                    if mine not in self._waiting:
                        return True
                    if now >= deadline:
                        turns.next_at -= cost
                        return False
                    self._changed.wait(min(deadline, self._free_at + late) - now)
            finally:
                self._waiting.pop(mine, None)
                if interrupted is None:
                    del self._by_thread[thread]
                else:
                    self._by_thread[thread] = interrupted

    def _give_turns(self, now: float, mine: tuple[float, int]) -> float:
        """Give the turns that are due: ``mine``, and what others do not take. Returns how long the next one to come may be late.
        The caller holds the lock."""
        while mine in self._waiting:
            turn = min(self._waiting)
            late = 0.0 if turn == mine else _UNTAKEN_SECONDS
            if now < self._free_at + late:
                return late
            # From here on there is no call, where a signal handler could run: it gives turns as well.
            if turn in self._waiting and now >= self._free_at + late:
                free_at, saved_at = self._free_at, now - _SAVED_SECONDS
                self._free_at = (free_at if free_at > saved_at else saved_at) + self._waiting[turn]
                self._virtual = turn[0] if turn[0] > self._virtual else self._virtual
                del self._waiting[turn]
            self._changed.notify_all()
        return 0.0

"""Time-outs of long polls: one timer for all of them.

Law: a poll ends at most ``_GRAIN_SECONDS`` after its time-out. Some hundred polls end in one turn of the loop, the others in
later turns. Timers of their own would all fire in one turn, for ten thousand readers that began together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil

_GRAIN_SECONDS = 0.005
_ENDED_A_TURN = 256


class PollTimers:
    """The time-outs of one bookie's long polls. Used on the loop."""

    def __init__(self) -> None:
        self._by_time: dict[int, dict[int, Callable[[], None]]] = {}
        """Time, in grains of the loop's clock → its polls, by number."""
        self._times: list[int] = []
        """A heap, also of times without polls."""
        self._last = 0
        self._timer: asyncio.Handle | None = None
        self._timer_at = 0

    def add(self, seconds: float, end: Callable[[], None]) -> tuple[int, int]:
        """Call ``end`` in ``seconds``. Returns the argument of ``remove``."""
        loop = asyncio.get_running_loop()
        at = ceil((loop.time() + seconds) / _GRAIN_SECONDS)
        ending = self._by_time.get(at)
        if ending is None:
            ending = self._by_time[at] = {}
            heappush(self._times, at)
        self._last += 1
        ending[self._last] = end
        if self._timer is None or at < self._timer_at:
            self._wait(loop)
        return at, self._last

    def remove(self, timer: tuple[int, int]) -> None:
        """Cancel an ``end``; no error if it was called."""
        self._by_time.get(timer[0], {}).pop(timer[1], None)

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._times[0]
        self._timer = loop.call_at(self._timer_at * _GRAIN_SECONDS, self._end_due, loop)

    def _end_due(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now, left = loop.time() / _GRAIN_SECONDS, _ENDED_A_TURN
        while self._times and self._times[0] <= now:
            ending = self._by_time[self._times[0]]
            while ending and left:
                left -= 1
                _, end = ending.popitem()
                try:
                    end()
                except Exception as error:
                    loop.call_exception_handler({"message": "a long poll could not be ended", "exception": error})
            if ending:
                self._timer, self._timer_at = loop.call_soon(self._end_due, loop), self._times[0]
                return
            del self._by_time[heappop(self._times)]
        if self._times:
            self._wait(loop)

"""How long something takes lately: the median of the last times, within a minute.

Law: one thread counts, and any thread may ask, without a lock. What is under way counts once it takes longer than
``_STUCK_SECONDS``: a disk that answers no more has no new times. Fewer than ``_AT_LEAST`` times tell nothing, as one slow time
is no slow disk.
"""

from __future__ import annotations

import statistics
from collections import deque

_KEPT = 16
_AT_LEAST = 3
_LATELY_SECONDS = 60.0
_STUCK_SECONDS = 5.0


class Lately:
    """The last times of one thing. Moments are seconds of one clock that only goes on."""

    __slots__ = ("_begun", "_times")

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque(maxlen=_KEPT)
        """When each began, and when it ended."""
        self._begun: float | None = None

    def begins(self, now: float) -> None:
        """It begins now."""
        self._begun = now

    def ends(self, now: float) -> None:
        """It has ended. Without a beginning nothing is counted."""
        begun, self._begun = self._begun, None
        if begun is not None:
            self._times.append((begun, now))

    def seconds(self, now: float) -> float | None:
        """How long it takes; None: not enough is known. In any thread."""
        begun = self._begun
        if begun is not None and now - begun > _STUCK_SECONDS:
            return now - begun
        # A copy is one step of the interpreter.
        found = [ended - began for began, ended in self._times.copy() if now - ended <= _LATELY_SECONDS]
        return statistics.median(found) if len(found) >= _AT_LEAST else None

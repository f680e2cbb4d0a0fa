"""Waiting for rows in any of a log's lanes.

Law: the lane that had rows last is waited for: its bookies hold their answer until there are more. The others are looked at in
between, with a question for each; the rarer the longer they have nothing, also where rows are read one after the other. While it
looks, rows of the lane that is waited for are not heard of. So in a log of several lanes a row of one that had none for long is
heard of up to a quarter of a second late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

from bookspark.logs.feeds.lane_feed import LaneFeed

_PAUSE_SECONDS_MIN, _PAUSE_SECONDS_MAX = 0.01, 0.25


class LaneWatch:
    """Follows the lanes of one log; ``lanes``, which each call is given, has those that live, by their numbers."""

    def __init__(self, first: int) -> None:
        """``first``: the lane that is waited for until another one has rows."""
        self._liveliest = first
        self._looked_at, self._pause = -math.inf, _PAUSE_SECONDS_MIN
        """When all lanes were looked at last, in seconds, and how long after that the others are looked at again."""
        self._found = False
        """Did ``wait`` find rows that no lane's ``has_news`` tells of?"""

    def look(self, lanes: Mapping[int, LaneFeed]) -> None:
        """Ask each lane how many rows it has."""
        for number in lanes:
            self._has_more(number, lanes)
        self._looked_at, self._found = time.monotonic(), False

    @property
    def looked_just_now(self) -> bool:
        """Would ``wait`` look at no other lane yet than the one that is waited for?"""
        return time.monotonic() < self._looked_at + self._pause

    def news(self, lanes: Mapping[int, LaneFeed]) -> bool:
        """Did ``wait`` hear of more rows, which the lanes tell now? Asks nobody how many there are."""
        heard = [lane for lane in lanes.values() if lane.has_news]
        for lane in heard:
            lane.newest()
        found, self._found = self._found or bool(heard), False
        return found

    def wait(self, lanes: Mapping[int, LaneFeed], seconds: float, changed: Callable[[], bool]) -> bool:
        """Return when there may be more rows than the lanes told, or if ``changed`` tells that there may be other lanes; or after
        ``seconds``: then False."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._liveliest not in lanes:
                # It has ended.
                self._liveliest = next(iter(lanes))
            lane = lanes[self._liveliest]
            if len(lanes) == 1:
                return lane.wait(left) or changed()
            due_in = self._looked_at + self._pause - time.monotonic()
            if due_in <= 0:
                if self._look_at_others(lanes) or changed():
                    return True
                continue
            lane.wait(min(due_in, left))
            # Of a commit ledger a wait tells only that there may be more.
            if lane.has_news or (not lane.tells_news and self._has_more(self._liveliest, lanes)):
                return True
        return False

    def _look_at_others(self, lanes: Mapping[int, LaneFeed]) -> bool:
        """Has a lane beside the one that is waited for more rows than it told?"""
        for number in [number for number in lanes if number != self._liveliest]:
            if self._has_more(number, lanes):
                self._looked_at, self._pause = time.monotonic(), _PAUSE_SECONDS_MIN
                return True
        self._looked_at, self._pause = time.monotonic(), min(2 * self._pause, _PAUSE_SECONDS_MAX)
        return False

    def _has_more(self, number: int, lanes: Mapping[int, LaneFeed]) -> bool:
        """Has the lane more rows than it told?"""
        known = lanes[number].rows
        if lanes[number].newest() <= known:
            return False
        self._liveliest, self._found = number, True
        return True

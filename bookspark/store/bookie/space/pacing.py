"""When logs are rewritten, which of them, and how fast.

Law: a round follows each garbage collection, and takes the logs that were begun before that collection: in later ones nothing was
collected yet, and half of what is copied might be deleted a minute later. A round is made of bounded passes. It is to be through
in half of the time between two collections. When that can't be done at the configured rate, or the disk is nearly full, rewriting
goes as fast as it can, so what waits to be rewritten does not grow.

Source: BookKeeper's minor and major compaction, and its ``compactionRateByBytes``.
"""

from __future__ import annotations

from typing import NamedTuple

from bookspark.store.bookie.bookie_config import BookieConfig

_TIME_PART = 0.5
"""The part of the time between two collections in which a round is to be through."""


class Round(NamedTuple):
    """What is rewritten after one garbage collection."""

    threshold: float
    """Logs of which a smaller part (0 to 1) is live are rewritten."""
    below: int
    """Only logs with smaller numbers are."""
    until: float
    """When it is to be through, in seconds of a monotonic clock."""
    forced: bool
    """A directory is full."""

    def followed_by(self, following: Round) -> Round:
        """The next round, begun before this one is through. What this one was to compact is compacted in the next one."""
        threshold = max(self.threshold, following.threshold)
        return following._replace(threshold=threshold, forced=self.forced or following.forced)


class Rounds:
    """When minor and major compactions are due. Times are in seconds of a monotonic clock."""

    def __init__(self, config: BookieConfig, now: float) -> None:
        self._config = config
        self._minor_at = now + config.minor_compaction_interval_seconds
        self._major_at = now + config.major_compaction_interval_seconds

    def begin(self, now: float, below: int, *, forced: bool) -> Round:
        """The round that follows a collection now. When the collection began, ``below`` was the number of the next log."""
        until = now + _TIME_PART * self._config.gc_wait_time_seconds
        return Round(self._threshold(now, forced), below, until, forced)

    def _threshold(self, now: float, forced: bool) -> float:
        config = self._config
        if forced or now >= self._major_at:
            self._major_at = now + config.major_compaction_interval_seconds
            self._minor_at = now + config.minor_compaction_interval_seconds
            return config.major_compaction_threshold
        if now >= self._minor_at:
            self._minor_at = now + config.minor_compaction_interval_seconds
            return config.minor_compaction_threshold
        return 0.0


def rate(bytes_per_second: int, left_bytes: int, seconds: float, *, nearly_full: bool) -> int:
    """How much the next job may read and write together, in bytes a second; 0: no limit.

    ``bytes_per_second``: the configured rate. ``left_bytes``: how much is still to be read, and written again. ``seconds``: how
    much time there is for that, negative if it is over. ``nearly_full``: is the job's disk nearly full?
    """
    behind = 2 * left_bytes > bytes_per_second * max(0.0, seconds)
    return 0 if nearly_full or behind else bytes_per_second

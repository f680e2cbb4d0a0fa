"""Which sealed logs a pass removes, and which it rewrites.

Law: every log in which nothing lives is removed. Rewritten are entry logs, once they are sealed, and logs of which less than a
threshold lives, by BookKeeper's rules of minor and major compaction. Passes that find little to rewrite leave small logs; when
there are many of them, neighbours are merged, so an entry is written anew only each time that its log grows eightfold.

Source: BookKeeper's ``GarbageCollectorThread``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import NamedTuple

from bookspark.bookie.disk.entry_log import EntryLog
from bookspark.bookie.holdings.holdings import StoredLog
from bookspark.bookie.holdings.log_directory import LogDirectory

_SOURCES_MAX = 16
"""How many logs one job makes into one, at most."""
_SMALL_PART = 1 / 8
"""A rewritten log is small when its size is below this part of what a job makes."""
_SMALL_LOGS_MIN = 8
"""Small logs of a directory are merged when there are this many."""


class LogUse(NamedTuple):
    """How much of a sealed log is live. A batch that is live in part counts whole."""

    directory: LogDirectory
    log: StoredLog
    live_bytes: int

    @property
    def ratio(self) -> float:
        """The part of the log that is live, 0 to 1."""
        return self.live_bytes / max(1, self.log.end)


class Choice(NamedTuple):
    """What a pass will do."""

    dead: list[LogUse]
    """Logs to be removed."""
    jobs: list[list[LogUse]]
    """Logs to be rewritten. Those of one job become one log."""


def choose(uses: Iterable[LogUse], threshold: float, job_bytes: int, *, entry_logs: bool) -> Choice:
    """Choose all dead logs for removal. Choose for rewriting the logs of which less than ``threshold`` (0 to 1) is live, the
    emptiest first, gathered up to about ``job_bytes`` of one directory. With ``entry_logs``, all entry logs are rewritten too,
    and small logs are merged."""
    dead: list[LogUse] = []
    jobs: list[list[LogUse]] = []
    for _, of_directory in groupby(sorted(uses, key=_place), key=lambda use: use.directory.path):
        wanted: list[LogUse] = []
        small: list[LogUse] = []
        for use in of_directory:
            if use.live_bytes == 0:
                dead.append(use)
            elif use.ratio < threshold or (entry_logs and isinstance(use.log, EntryLog)):
                wanted.append(use)
            elif entry_logs and use.log.end < _SMALL_PART * job_bytes:
                small.append(use)
        jobs += _gathered(sorted(wanted, key=lambda use: use.ratio), job_bytes)
        if len(small) >= _SMALL_LOGS_MIN:
            jobs += (job for job in _gathered(small, job_bytes) if len(job) > 1)
    return Choice(dead, jobs)


def _place(use: LogUse) -> tuple[str, int]:
    return use.directory.path, use.log.number


def _gathered(uses: Iterable[LogUse], job_bytes: int) -> Iterator[list[LogUse]]:
    job: list[LogUse] = []
    for use in uses:
        job.append(use)
        if sum(one.live_bytes for one in job) >= job_bytes or len(job) == _SOURCES_MAX:
            yield job
            job = []
    if job:
        yield job

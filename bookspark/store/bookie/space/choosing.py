"""Which sealed logs a pass removes, and which it rewrites.

Law: every log in which nothing lives is removed. Rewritten are entry logs, once they are sealed, and logs of which less than a
threshold lives, by BookKeeper's rules of minor and major compaction. Passes that find little to rewrite leave small logs; when
there are many of them, neighbours are merged, so an entry is written anew only each time that its log grows eightfold. A pass
rewrites a bounded number of bytes, of each directory in turn; the rest is left to the next pass. Logs of a job that failed come
last and each alone, and those that failed last behind the others: so a log that can't be rewritten keeps no other one waiting for
ever.

Source: BookKeeper's ``GarbageCollectorThread``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby, zip_longest
from types import MappingProxyType
from typing import NamedTuple

from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.holdings.holdings import StoredLog
from bookspark.store.bookie.holdings.log_directory import LogDirectory

_SOURCES_MAX = 16
"""How many logs one job makes into one, at most."""
_JOBS_MAX = 32
"""How many jobs a pass does, at most."""
_PASS_BYTES = 2 << 30
"""How many live bytes a pass rewrites, at most, unless its first job is larger."""
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
    left_bytes: int
    """How many live bytes of logs that are to be rewritten too are left to the next pass."""


def choose(
    uses: Iterable[LogUse],
    threshold: float,
    job_bytes: int,
    *,
    entry_logs: bool,
    below: int | None = None,
    failed: Mapping[int, int] = MappingProxyType({}),
) -> Choice:
    """Choose all dead logs for removal. Choose for rewriting the logs of which less than ``threshold`` (0 to 1) is live, the
    emptiest first, gathered up to about ``job_bytes`` of one directory. With ``entry_logs``, all entry logs are rewritten too,
    and small logs are merged. Logs of numbers from ``below`` on are not rewritten (None: there is no such bound). ``failed``:
    the logs whose last job failed, by number; the higher the value, the later it was."""
    dead: list[LogUse] = []
    jobs: list[list[list[LogUse]]] = []
    for _, of_directory in groupby(sorted(uses, key=_place), key=lambda use: use.directory.path):
        wanted: list[LogUse] = []
        alone: list[list[LogUse]] = []
        small: list[LogUse] = []
        for use in of_directory:
            if use.live_bytes == 0:
                dead.append(use)
            elif below is not None and use.log.number >= below:
                continue
            elif use.ratio < threshold or (entry_logs and isinstance(use.log, EntryLog)):
                if use.log.number in failed:
                    alone.append([use])
                else:
                    wanted.append(use)
            elif entry_logs and use.log.end < _SMALL_PART * job_bytes:
                small.append(use)
        of_one = list(_gathered(sorted(wanted, key=lambda use: use.ratio), job_bytes))
        if len(small) >= _SMALL_LOGS_MIN:
            of_one += (job for job in _gathered(small, job_bytes) if len(job) > 1)
        jobs.append(of_one + alone)
    in_turn = [job for job in chain.from_iterable(zip_longest(*jobs)) if job is not None]
    in_turn.sort(key=lambda job: max(failed.get(use.log.number, 0) for use in job))
    count = _of_one_pass(in_turn)
    return Choice(dead, in_turn[:count], sum(map(live_bytes, in_turn[count:])))


def live_bytes(job: Iterable[LogUse]) -> int:
    """How many bytes of a job's logs are live."""
    return sum(use.live_bytes for use in job)


def _of_one_pass(jobs: Sequence[list[LogUse]]) -> int:
    """How many of the ``jobs`` one pass does."""
    total = 0
    for count, job in enumerate(jobs):
        total += live_bytes(job)
        if count == _JOBS_MAX or (count and total > _PASS_BYTES):
            return count
    return len(jobs)


def _place(use: LogUse) -> tuple[str, int]:
    return use.directory.path, use.log.number


def _gathered(uses: Iterable[LogUse], job_bytes: int) -> Iterator[list[LogUse]]:
    job: list[LogUse] = []
    for use in uses:
        job.append(use)
        if live_bytes(job) >= job_bytes or len(job) == _SOURCES_MAX:
            yield job
            job = []
    if job:
        yield job

"""Disk threads: threads for reads outside the page cache, and for comparisons of repeated entries.

Law: each directory has its own threads, so a hanging disk delays no other directory. Threads start at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from bookspark.store.bookie.disk.index import log_of
from bookspark.store.bookie.holdings.log_directory import LogDirectory

_THREADS = 4

Result = TypeVar("Result")


class DiskThreads:
    """The threads of one bookie. Owned by the loop. ``directory_of(log)``: the directory of a log, None if the log is gone."""

    def __init__(self, directory_of: Callable[[int], LogDirectory | None]) -> None:
        self._directory_of = directory_of
        self._pools: dict[str, ThreadPoolExecutor] = {}
        self._open = True

    def run(self, where: int, function: Callable[[], Result]) -> Future[Result]:
        """Call ``function``, which reads the frame at ``where`` first, in a thread of its directory. Raises RuntimeError if no
        thread can be started, and after ``close``."""
        if not self._open:
            raise RuntimeError("the bookie stops")
        directory = self._directory_of(log_of(where))
        path = "" if directory is None else directory.path
        pool = self._pools.get(path)
        if pool is None:
            pool = self._pools[path] = ThreadPoolExecutor(_THREADS, thread_name_prefix=f"bookie read {path}")
        return pool.submit(function)

    def close(self) -> None:
        """Start nothing more, without waiting for running calls."""
        self._open = False
        for pool in self._pools.values():
            pool.shutdown(wait=False, cancel_futures=True)

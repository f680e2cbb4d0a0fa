"""A run's folder: everything that a run writes lies in it.

Law: two runs never share one. The process that runs holds an flock on ``LOCK`` for as long as it lives; folders that nobody
holds are those of runs that ended, and only the last few of them are kept. What lies where::

    run.log         what Spark and Python logged        bookies.log     what the bookies' application logged
    zookeeper/      ZooKeeper's data and log            bookies/        the bookies' entry logs, indexes and cookies
    input/          the files that were ingested        event-logs/     Spark's event logs of both applications
    checkpoint/     the streaming query's               snapshots/      Delta tables
    spark-work/     the executors' logs                 tmp/            Spark's local directory, gone at the end
"""

from __future__ import annotations

import fcntl
import os
import shutil
from datetime import datetime
from pathlib import Path

from bookspark.errors import ConfigurationError

ENDED_RUNS_KEPT = 3
_LOCK = "LOCK"


class RunFolder:
    """A new folder ``<runs>/<time>-<pid>``, or ``wanted`` (not there yet, or empty), locked until ``close``."""

    def __init__(self, runs: Path, wanted: Path | None = None) -> None:
        if wanted is None:
            _remove_ended(runs)
            wanted = runs / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        elif wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigurationError(f"{wanted} is there already and not empty; name a new folder for the run")
        self.path = wanted.absolute()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise ConfigurationError(f"the run's folder {self.path} can't be written: {error.strerror}") from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for part in (self.event_logs, self.input, self.temporary):
            part.mkdir()

    @property
    def log(self) -> Path:
        return self.path / "run.log"

    @property
    def bookies_log(self) -> Path:
        return self.path / "bookies.log"

    @property
    def zookeeper(self) -> Path:
        return self.path / "zookeeper"

    @property
    def bookies(self) -> Path:
        return self.path / "bookies"

    @property
    def input(self) -> Path:
        return self.path / "input"

    @property
    def event_logs(self) -> Path:
        return self.path / "event-logs"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint"

    @property
    def snapshots(self) -> Path:
        return self.path / "snapshots"

    @property
    def spark_work(self) -> Path:
        return self.path / "spark-work"

    @property
    def temporary(self) -> Path:
        return self.path / "tmp"

    def close(self) -> None:
        """Remove what is of no use any more; from here on a later run may remove the folder."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        os.close(self._lock)


def _remove_ended(runs: Path) -> None:
    """Remove the oldest folders of runs that ended. Their names sort by time."""
    folders = sorted(path.parent for path in runs.glob(f"*/{_LOCK}"))
    ended = [folder for folder in folders if not _is_running(folder)]
    for folder in ended[: max(0, len(ended) - ENDED_RUNS_KEPT)]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_running(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # another run has just removed it
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False

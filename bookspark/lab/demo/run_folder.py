"""A run's folder, with all files of the run.

Law: two runs never share a folder. The process of a run holds an flock on ``LOCK`` as long as it lives. A folder without a
holder belongs to an ended run, and only the last few of these are kept. Content::

    run.log         log of Spark and Python             bookies.log     log of the bookies' application
    zookeeper/      ZooKeeper's data and log            bookies/        the bookies' entry logs, indexes and cookies
    orders/         the generated orders                input/          links to the streamed files
    checkpoints/    the streaming queries'              snapshots/      Delta tables
    spark-work/     the executors' logs                 tmp/            Spark's local directory, removed at the end
"""

from __future__ import annotations

import fcntl
import os
import shutil
from datetime import datetime
from pathlib import Path

from bookspark.errors import ConfigurationError
from bookspark.support.private_files import PRIVATE_FILE, make_private_directory

ENDED_RUNS_KEPT = 3
_LOCK = "LOCK"


class RunFolder:
    """A new folder ``<runs>/<time>-<pid>``, or the folder ``wanted``, which must be empty or missing. It is locked until
    ``close``. Raises ConfigurationError if ``wanted`` is not empty, or if the folder can't be written or is not private."""

    def __init__(self, runs: Path, wanted: Path | None = None) -> None:
        if wanted is None:
            _remove_ended(runs)
            wanted = runs / f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}"
        elif wanted.exists() and (not wanted.is_dir() or any(wanted.iterdir())):
            raise ConfigurationError(f"{wanted} exists already and is not empty; name a new folder for the run")
        self.path = path = wanted.absolute()
        self.log, self.bookies_log = path / "run.log", path / "bookies.log"
        self.zookeeper, self.bookies, self.spark_work = path / "zookeeper", path / "bookies", path / "spark-work"
        self.orders, self.input = path / "orders", path / "input"
        self.checkpoints, self.snapshots, self.temporary = path / "checkpoints", path / "snapshots", path / "tmp"
        try:
            make_private_directory(self.path)
            self._lock = os.open(self.path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
        except OSError as error:
            raise ConfigurationError(f"the run's folder {self.path} can't be written: {error.strerror}") from error
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        for part in (self.input, self.temporary):
            part.mkdir()

    def close(self) -> None:
        """Remove temporary files and release the lock. A later run may then remove the folder."""
        shutil.rmtree(self.temporary, ignore_errors=True)
        os.close(self._lock)


def _remove_ended(runs: Path) -> None:
    """Remove the oldest folders of ended runs. The names sort by time."""
    folders = sorted(path.parent for path in runs.glob(f"*/{_LOCK}"))
    ended = [folder for folder in folders if not _is_running(folder)]
    for folder in ended[: max(0, len(ended) - ENDED_RUNS_KEPT)]:
        shutil.rmtree(folder, ignore_errors=True)


def _is_running(folder: Path) -> bool:
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        # Another run removed the folder at this moment.
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False

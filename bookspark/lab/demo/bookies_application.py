"""The bookies' Spark application as a child process: ``spark-submit`` of the packaged job ``bookies``.

Law: the application ends with its starter, however that ends. It has its own session, so Ctrl-C reaches only the starter,
which stops it cleanly. After a kill of the starter, a watcher in the application's process group sees the end of a pipe and
ends the group (like EmbeddedZooKeeper). Bookies have sessions of their own: their service stops them; without the service,
the locks of their directories identify them.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any

import psutil

from bookspark.errors import BookieError
from bookspark.servers.daemon.directories import lock_holder
from bookspark.servers.daemon.processes import Process, signal_process, wait_for_end
from bookspark.support.packaged_files import job, settings_file

MASTER = "local-cluster[2,2,1024]"
START_SECONDS = 300.0
"""Longer than the timeouts of a session and ``BookieService.start`` together, so that the application reports its problem."""
STOP_SECONDS = 60.0
_LAST_WORDS = "bookspark bookies: "
_PROGRESS = "bookies: "
_LAST_WORDS_SECONDS = 5.0
_BOOKIE_STOP_SECONDS = 20.0
_WATCHED = (
    'exec 3<&0 </dev/null; { trap "" TERM; read -r _ <&3; kill -s TERM -- -$$; sleep 30; kill -s KILL -- -$$; } '
    '>/dev/null 2>&1 & exec 3<&-; exec "$@"'
)


class BookiesApplication:
    """``bookies`` bookies with their data in ``directory``, registered at ``zookeeper``. ``conf``: Spark's settings. The
    application's output goes to the file ``log``."""

    def __init__(self, bookies: int, directory: Path, zookeeper: str, log: Path, conf: Mapping[str, str]) -> None:
        self._directory = directory
        self._log = log
        self._command = [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", MASTER, "--properties-file", str(settings_file("spark-defaults.conf"))),
            *(argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")),
            str(job("bookies")),
            *("--bookies", str(bookies), "--directory", str(directory), "--zookeeper", zookeeper),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._descriptions: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._driver: Process | None = None
        self._last_words = ""
        self._last_line = ""
        self._progress: Callable[[str], None] = _nobody
        self.bookies: list[dict[str, Any]] = []
        """From ``wait`` on: ``bookie_id``, ``address``, ``pid``, ``host`` and ``home`` of each."""

    def start(self, environment: Mapping[str, str]) -> None:
        """Start the application with the variables ``environment``; ``wait`` returns once every bookie serves."""
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHED, "bookies", *self._command],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._reader = threading.Thread(
            target=self._read, args=(self._process.stdout,), name="bookies' output", daemon=True
        )
        self._reader.start()

    def wait(self, progress: Callable[[str], None], timeout: float = START_SECONDS) -> None:
        """Wait until every bookie serves. ``progress`` gets the application's next progress lines. Raises BookieError with its
        last output if it ends, or after ``timeout`` seconds."""
        self._progress = progress
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            # Short waits, so that Ctrl-C is noticed between them.
            with contextlib.suppress(queue.Empty):
                description = self._descriptions.get(timeout=0.5)
                if description is None:
                    raise BookieError(self._failure())
                self.bookies = description["bookies"]
                self._driver = Process.of(description["pid"])
                self._progress = _nobody
                return
        said = f"its last line: {self._last_line}" if self._last_line else "it has said nothing"
        raise BookieError(f"the bookies' application was not ready within {timeout:g} s; see {self._log} ({said})")

    def check(self) -> None:
        """Raise BookieError with its last output if the application has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise BookieError(self._failure())

    def process_of(self, bookie_id: str) -> Process | None:
        """The process of a bookie now; None while it has none."""
        (home,) = (bookie["home"] for bookie in self.bookies if bookie["bookie_id"] == bookie_id)
        return lock_holder(home)

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop the bookies cleanly, then the application. Returns when all their processes have ended."""
        process, self._process = self._process, None
        if process is None:
            return
        driver = self._driver or _child_driver(process.pid)
        if driver is not None:
            signal_process(driver, signal.SIGTERM)
        else:
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        # This ends the watcher and all remaining processes. The group's number can't have been reused: the watcher is in
        # the group.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if self._reader is not None:
            self._reader.join(timeout)
        assert process.stdin is not None
        process.stdin.close()
        stop_bookies_in(self._directory)

    def _failure(self) -> str:
        if self._reader is not None:
            self._reader.join(_LAST_WORDS_SECONDS)
        return self._last_words or f"the bookies' application ended; see {self._log}"

    def _read(self, stream: IO[str]) -> None:
        """Read the application's output: log, progress, description, last words."""
        with stream, self._log.open("a", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                log.flush()
                self._last_line = line.strip() or self._last_line
                if line.startswith(_LAST_WORDS):
                    self._last_words = line.removeprefix(_LAST_WORDS).strip()
                elif line.startswith(_PROGRESS):
                    self._progress(line.removeprefix(_PROGRESS).strip())
                elif line.startswith("{"):
                    with contextlib.suppress(ValueError):
                        self._descriptions.put(json.loads(line))
        self._descriptions.put(None)


def _nobody(_line: str) -> None:
    """Ignore progress after the start."""


def stop_bookies_in(directory: Path) -> None:
    """End every bookie process that still holds a directory below ``directory``, by force if necessary."""
    for home in sorted(directory.glob("*/")):
        with contextlib.suppress(BookieError):
            process = lock_holder(str(home))
            if process is not None:
                signal_process(process, signal.SIGTERM)
                if not wait_for_end(process, _BOOKIE_STOP_SECONDS):
                    signal_process(process, signal.SIGKILL)
                    wait_for_end(process, _BOOKIE_STOP_SECONDS)


def _child_driver(parent: int) -> Process | None:
    """The Python process that spark-submit started for the job; None before that."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(parent).children():
            with contextlib.suppress(psutil.Error):
                command = child.cmdline()
                # The driver's command is python …/jobs/bookies.py; the watcher's differs.
                if len(command) > 1 and command[1].endswith("bookies.py"):
                    return Process.of(child.pid)
    return None

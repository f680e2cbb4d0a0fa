"""The bookies' Spark application as a child process: ``spark-submit jobs/bookies.py``.

Law: it ends with the process that started it, whatever ends that. It is in a session of its own, so that a Ctrl-C reaches
only its starter, which then stops it cleanly; if the starter is killed, a watcher in the application's process group reads the
end of a pipe and ends the group (as EmbeddedZooKeeper does). Bookies are in sessions of their own: their service asks them to
stop, and if that was killed they are found by the locks of their directories.
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

from bookspark.daemon.directories import lock_holder
from bookspark.daemon.processes import Process, signal_process, wait_for_end
from bookspark.errors import BookieError

MASTER = "local-cluster[3,2,1024]"
START_SECONDS = 150.0
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
    """``bookies`` bookies in ``directory``, registered at ``zookeeper``. ``conf``: Spark's settings; the log goes to ``log``."""

    def __init__(
        self, checkout: Path, bookies: int, directory: Path, zookeeper: str, log: Path, conf: Mapping[str, str]
    ) -> None:
        self._directory = directory
        self._log = log
        self._command = [
            str(Path(sys.executable).with_name("spark-submit")),
            *("--master", MASTER, "--properties-file", str(checkout / "conf" / "spark-defaults.conf")),
            *(argument for name, value in conf.items() for argument in ("--conf", f"{name}={value}")),
            str(checkout / "jobs" / "bookies.py"),
            *("--bookies", str(bookies), "--directory", str(directory), "--zookeeper", zookeeper),
        ]
        self._process: subprocess.Popen[str] | None = None
        self._descriptions: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._reader: threading.Thread | None = None
        self._driver: Process | None = None
        self._last_words = ""
        self._progress: Callable[[str], None] = _nobody
        self.bookies: list[dict[str, Any]] = []
        """Once it serves: ``bookie_id``, ``address``, ``pid``, ``host`` and ``home`` of each."""

    def start(
        self, progress: Callable[[str], None], environment: Mapping[str, str], timeout: float = START_SECONDS
    ) -> None:
        """Return once every bookie serves. Raises BookieError with the application's last words."""
        self._progress = progress
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
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            # In short pieces, so that a Ctrl-C is heard in between.
            with contextlib.suppress(queue.Empty):
                description = self._descriptions.get(timeout=0.5)
                if description is None:
                    raise BookieError(self._failure())
                self.bookies = description["bookies"]
                self._driver = Process.of(description["pid"])
                self._progress = _nobody
                return
        raise BookieError(f"the bookies' application did not get ready within {timeout:g} s; see {self._log}")

    def check(self) -> None:
        """Raise BookieError if it has ended."""
        if self._process is not None and self._process.poll() is not None:
            raise BookieError(self._failure())

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Stop the bookies cleanly, then the application; return when no process of either is left."""
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
        # The watcher, and whatever has not ended by now. The group's number is still its own: the watcher is in it.
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
        """The application's output: its log, its progress, its description, its last words."""
        with stream, self._log.open("a", encoding="utf-8") as log:
            for line in stream:
                log.write(line)
                log.flush()
                if line.startswith(_LAST_WORDS):
                    self._last_words = line.removeprefix(_LAST_WORDS).strip()
                elif line.startswith(_PROGRESS):
                    self._progress(line.removeprefix(_PROGRESS).strip())
                elif line.startswith("{"):
                    with contextlib.suppress(ValueError):
                        self._descriptions.put(json.loads(line))
        self._descriptions.put(None)


def _nobody(_line: str) -> None:
    """Hears the progress when nobody waits."""


def stop_bookies_in(directory: Path) -> None:
    """End every bookie process that still holds a directory below ``directory``: cleanly if it can, by force if not."""
    for home in sorted(directory.glob("*/")):
        with contextlib.suppress(BookieError):
            process = lock_holder(str(home))
            if process is not None:
                signal_process(process, signal.SIGTERM)
                if not wait_for_end(process, _BOOKIE_STOP_SECONDS):
                    signal_process(process, signal.SIGKILL)
                    wait_for_end(process, _BOOKIE_STOP_SECONDS)


def _child_driver(parent: int) -> Process | None:
    """The Python process that spark-submit has started for the job, if it has."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            pid = int(stat.parent.name)
            if int(stat.read_text().rpartition(")")[2].split()[1]) == parent:
                command = (stat.parent / "cmdline").read_bytes().split(b"\0")
                if len(command) > 1 and command[1].endswith(b"bookies.py"):  # python …/jobs/bookies.py, not the watcher
                    return Process.of(pid)
    return None

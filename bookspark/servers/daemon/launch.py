"""Launching: starts, adopts, stops and kills bookie processes.

Law: a bookie is kept through its lease, by any process. ``adopt_or_start`` claims the running bookie of the directories, or
starts a bookie and claims it. It never starts a second one: it checks the directory locks first, and the new process takes them
itself. A process is killed only after a comparison of its pid and start time with the lock.

A bookie is a child process in its own session, so that it outlives its starter. Its *home* is the first writable of its
directories, so a failed disk keeps no bookie down; if all disks are read-only, the spare place of the first. The home has the
options (``bookie.json``), the log (``bookie.log``), and the log of the start before (``bookie.log.1``). The newest log is that of
the last start; errors quote its last line.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

import msgspec

from bookspark.errors import BookieError, InvalidCookieError
from bookspark.servers.daemon.directories import (
    LOG,
    OPTIONS,
    PREVIOUS_LOG,
    DirectoryUnusableError,
    lock_holder,
    make_directory,
    make_spare_place,
    not_writable,
    read_cookie,
    spare_place,
)
from bookspark.servers.daemon.lease_client import LeaseConnection, LeaseLostError, LeaseRefusedError
from bookspark.servers.daemon.lease_server import Status
from bookspark.servers.daemon.processes import Process, signal_process, wait_for_end
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.disk_errors import Meaning, meaning
from bookspark.store.bookie.disk.file_system import with_spare_files
from bookspark.support.private_files import open_private, refuse_foreign, why_foreign

DAEMON = "bookspark.servers.daemon"
"""Module of a bookie's process."""
_FILES = (
    *("tls_certificate", "tls_key", "tls_client_ca", "tls_ca", "tls_client_certificate", "tls_client_key"),
    *("shared_secret_file", "record_decisions"),
)
"""Options that name a file or folder."""
START_SECONDS = 60.0
STOP_SECONDS = 60.0
_RETRY_SECONDS = 0.02
_UNANSWERED_SECONDS = 10.0
"""A bookie that holds its locks counts as hung after this time without an answer at its lease socket."""
_LAST_WORDS = "bookspark bookie: "
_UNKNOWN = "ended without saying why (killed?)"

log = logging.getLogger(__name__)


class Bookie:
    """A bookie process whose lease is held here."""

    def __init__(
        self, config: BookieConfig, process: Process, lease: LeaseConnection, child: subprocess.Popen[bytes] | None
    ) -> None:
        self.config = config
        self.process = process
        self.lease = lease
        self._child = child

    @property
    def started(self) -> bool:
        """Was it started here, not adopted?"""
        return self._child is not None

    @property
    def status(self) -> Status:
        assert self.lease.status is not None, "a granted claim brings a status"
        return self.lease.status

    @property
    def alive(self) -> bool:
        if self._child is not None:
            return self._child.poll() is None
        return self.process.alive

    def wait_serving(self, timeout: float = START_SECONDS) -> Status:
        """Wait until the bookie serves; returns its status. Raises BookieError, with the last line of its log, if it ends, or if
        it does not serve after ``timeout`` seconds."""
        try:
            return self.lease.wait_serving(timeout)
        except LeaseLostError as error:
            self.lease.close()
            if not self.wait_ended(STOP_SECONDS):
                raise BookieError(
                    f"the bookie in {self.config.directories[0]} hangs while it stops; see its log"
                ) from error
            raise BookieError(last_words(self.config.directories)) from error

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """Stop the bookie cleanly, or kill it after ``timeout`` seconds, or at once if it does not answer. Returns False if it
        was killed."""
        deadline = time.monotonic() + timeout
        try:
            self.lease.ask_stop(min(timeout, _UNANSWERED_SECONDS))
        except LeaseLostError:
            # The process has ended, or hangs.
            deadline = time.monotonic() + 1.0
        clean = self.wait_ended(deadline - time.monotonic())
        if not clean:
            log.warning(
                "the bookie in %s did not stop; ending process %d", self.config.directories[0], self.process.pid
            )
            self.kill()
        self.lease.close()
        return clean

    def send_signal(self, number: signal.Signals) -> None:
        signal_process(self.process, number)

    def kill(self) -> None:
        signal_process(self.process, signal.SIGKILL)
        self.wait_ended(STOP_SECONDS)
        self.lease.close()

    def wait_ended(self, timeout: float) -> bool:
        """Wait for the end of the process; False if it still runs after ``timeout`` seconds."""
        ended = wait_for_end(self.process, timeout)
        if ended and self._child is not None:
            self._child.wait()
        return ended


def adopt_or_start(config: BookieConfig, holder: str, timeout: float = START_SECONDS, instance_id: str = "") -> Bookie:
    """Adopt the running bookie of ``config.directories``, or start a new bookie.

    A running bookie keeps its own options; but a bookie of another ZooKeeper is stopped first. The call waits for a stopping
    bookie, and kills a hung bookie. A new bookie may still be booting at the return (``Bookie.wait_serving``).

    ``holder``: name of the keeper, for people. ``timeout``: in seconds. ``instance_id``: identity of the cluster at
    ``config.zookeeper``; "": that of the directories. Raises LeaseRefusedError if another holder keeps the bookie, BookieError if
    it serves another cluster or, with the last line of its log, if it does not start, DirectoryUnusableError if no directory
    can be written, and ConfigurationError if a directory is not private (``private_files``)."""
    deadline = time.monotonic() + timeout
    # Before a look into them: a lock names a process to kill, a socket answers for a bookie.
    for one in config.directories:
        refuse_foreign(one)
    directory = config.directories[0]
    while (process := _running(config)) is not None:
        try:
            bookie = _claim(config, process, holder, min(deadline, time.monotonic() + _UNANSWERED_SECONDS), None)
            if bookie.status.zookeeper == config.zookeeper:
                return bookie
            if instance_id and _is_foreign(config.directories, instance_id):
                bookie.lease.close()
                raise BookieError(
                    f"the bookie in {directory} (process {process.pid}) serves another cluster, at {bookie.status.zookeeper}, "
                    f"and goes on; name that ZooKeeper instead of {config.zookeeper}, or choose other directories"
                )
            log.info("the bookie in %s knows another ZooKeeper; starting it anew", directory)
            bookie.stop(deadline - time.monotonic())
        except LeaseRefusedError as refusal:
            if refusal.holder:
                raise
            if not wait_for_end(process, deadline - time.monotonic()):
                raise BookieError(
                    f"the bookie in {directory} (process {process.pid}) does not finish stopping"
                ) from refusal
        except LeaseLostError:
            log.warning("the bookie in %s does not answer; ending process %d", directory, process.pid)
            signal_process(process, signal.SIGKILL)
            wait_for_end(process, deadline - time.monotonic())
        if time.monotonic() > deadline:
            raise BookieError(f"directory {directory} stays locked by process {process.pid}; stop that process")
    return _start(config, holder, deadline)


def _is_foreign(directories: Sequence[str], instance_id: str) -> bool:
    """Is there a cookie of another cluster in a directory?"""
    for directory in directories:
        # An unreadable cookie proves nothing.
        with suppress(OSError, InvalidCookieError):
            cookie = read_cookie(directory)
            if cookie is not None and cookie.instance_id != instance_id:
                return True
    return False


def _running(config: BookieConfig) -> Process | None:
    """The first holder of a lock of the directories, or None."""
    holders = (lock_holder(directory) for directory in config.directories if os.path.isdir(directory))
    return next((holder for holder in holders if holder is not None), None)


def _start(config: BookieConfig, holder: str, deadline: float) -> Bookie:
    """Start a bookie and claim its lease. A bookie that ends cleanly before the claim is started again: its lease time was over,
    because this process got too little processor time."""
    while True:
        child = _spawn(config)
        process = Process.of(child.pid)
        if process is None:
            child.wait()
            raise BookieError(last_words(config.directories))
        try:
            return _claim(config, process, holder, deadline, child)
        except (LeaseLostError, LeaseRefusedError) as error:
            if isinstance(error, LeaseRefusedError):
                if error.holder:
                    raise
                wait_for_end(process, deadline - time.monotonic())
            slow = child.poll() is None
            signal_process(process, signal.SIGKILL)
            if child.wait() != 0 or time.monotonic() > deadline:
                how = "did not answer in time, and was killed" if slow else _UNKNOWN
                raise BookieError(last_words(config.directories, how)) from error
            log.warning("starting the bookie in %s again: %s", config.directories[0], last_words(config.directories))


def _spawn(config: BookieConfig) -> subprocess.Popen[bytes]:
    options, output = _settle_home(config)
    with output:
        return subprocess.Popen(
            [sys.executable, "-m", DAEMON, str(options)],
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def _settle_home(config: BookieConfig) -> tuple[Path, BinaryIO]:
    """Write the options and open a new log in the first directory that takes both; returns the path of the options, and the open
    log."""
    problems: list[DirectoryUnusableError] = []
    # Absolute paths, as the bookie has another working directory.
    named = {name: os.path.abspath(path) for name in _FILES if (path := getattr(config, name))}
    config = msgspec.structs.replace(config, **named)
    read_only: list[str] = []
    for directory in config.directories:
        try:
            make_directory(directory)
            return _settle_in(directory, config)
        except OSError as error:
            problems.append(not_writable(directory, error))
            if meaning(error) is Meaning.READ_ONLY:
                read_only.append(directory)
        except DirectoryUnusableError as error:
            problems.append(error)
    if read_only:
        try:
            return _settle_in(make_spare_place(read_only[0]), config)
        except OSError as error:
            log.warning("the options of a bookie without a writable directory can't be written: %s", error)
    raise problems[0]


def _settle_in(directory: str, config: BookieConfig) -> tuple[Path, BinaryIO]:
    options, output = Path(directory, OPTIONS), Path(directory, LOG)
    with open_private(options) as file:
        file.write(msgspec.json.format(msgspec.json.encode(config)))
    if output.exists():
        output.replace(Path(directory, PREVIOUS_LOG))
    return options, with_spare_files((directory,), partial(open_private, output))


def _claim(
    config: BookieConfig, process: Process, holder: str, deadline: float, child: subprocess.Popen[bytes] | None
) -> Bookie:
    """Claim the lease of ``process``, which may not be listening yet."""
    directory = config.directories[0]
    while True:
        try:
            lease = LeaseConnection(config.directories, max(deadline - time.monotonic(), 0.1))
            try:
                status = lease.claim(holder, max(deadline - time.monotonic(), 0.1))
                if status.pid == process.pid:
                    return Bookie(config, process, lease, child)
                # Another process was first, and ours will fail at the locks: leave the other to its starter.
                raise LeaseRefusedError(
                    f"another process ({status.pid}) took over the bookie in {directory}", str(status.pid)
                )
            except BaseException:
                lease.close()
                raise
        except LeaseLostError:
            ended = not process.alive if child is None else child.poll() is not None
            if ended or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


def last_words(directories: Sequence[str], how: str = _UNKNOWN) -> str:
    """The error line at the end of the log of the bookie's last start; without such a line, a sentence with ``how`` the bookie
    ended and the last line of the log."""
    try:
        places = [place for place in (*directories, *map(spare_place, directories)) if not why_foreign(place)]
        newest = max((Path(place, LOG) for place in places), key=_written_at)
        lines = newest.read_bytes()[-8192:].decode(errors="replace").splitlines()
    except (OSError, ValueError):
        lines = []
    for line in reversed(lines):
        if line.startswith(_LAST_WORDS):
            return line.removeprefix(_LAST_WORDS)
    said = f"; it last said: {lines[-1]}" if lines else ""
    return f"the bookie in {directories[0]} {how}{said}"


def _written_at(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0

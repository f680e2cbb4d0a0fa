"""Tools for tests that start programs: read their output with a deadline, and find processes they left."""

from __future__ import annotations

import contextlib
import os
import queue
import re
import signal
import threading
import time
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import IO

import psutil

from bookspark.servers.daemon.processes import Process
from tests.awaiting import SECONDS_MAX, await_that


class Output:
    """The lines of a program's output, read on a thread as they arrive."""

    def __init__(self, stream: IO[str]) -> None:
        self.lines: list[str] = []
        self.over = False
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, args=(stream,), daemon=True).start()

    def wait_for(self, pattern: str, seconds: float) -> re.Match[str]:
        """The first match in a line from here on. Fails when the output ends or time is up."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                line = self._queue.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no {pattern!r} within {seconds:g} s, but:\n" + "".join(self.lines)) from None
            assert line is not None, f"the output ended without {pattern!r}:\n" + "".join(self.lines)
            if match := re.search(pattern, line):
                return match

    def rest(self, seconds: float) -> None:
        """Wait for the end of the output."""
        deadline = time.monotonic() + seconds
        while self._queue.get(timeout=max(0.0, deadline - time.monotonic())) is not None:
            pass

    def _read(self, stream: IO[str]) -> None:
        for line in stream:
            self.lines.append(line)
            self._queue.put(line)
        self.over = True
        self._queue.put(None)


@contextlib.contextmanager
def halted(pid: int) -> Iterator[None]:
    """Stop a process with all its threads (SIGSTOP), and continue it at the end."""
    process = Process.of(pid)
    assert process is not None, f"process {pid} has ended"
    os.kill(pid, signal.SIGSTOP)
    try:
        await_that(lambda: process.suspended, what=f"process {pid} stands still")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def processes_about(folder: Path) -> dict[int, str]:
    """The living processes that have ``folder`` in their command line, environment or working directory, by pid."""
    return {pid: command for pid, about, command in _processes() if str(folder) in about and pid != os.getpid()}


def listening_off_loopback(pid: int) -> list[str]:
    """The listening sockets of this process and its descendants that other hosts may reach: address, port and command of
    each."""
    found = []
    process = psutil.Process(pid)
    for each in (process, *process.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            places = [socket.laddr for socket in each.net_connections("inet") if socket.status == psutil.CONN_LISTEN]
            found += [
                f"{place.ip} {place.port} {each.name()}"
                for place in places
                if not ip_address(place.ip.removeprefix("::ffff:")).is_loopback
            ]
    return found


def await_no_process(folder: Path, seconds: float = SECONDS_MAX) -> None:
    """Wait until no process refers to ``folder``."""
    await_that(lambda: not processes_about(folder), seconds, lambda: f"the end of {processes_about(folder)}")


def _processes() -> Iterator[tuple[int, str, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            about = command + (process / "environ").read_bytes().decode(errors="replace") + os.readlink(process / "cwd")
            yield int(process.name), about, command

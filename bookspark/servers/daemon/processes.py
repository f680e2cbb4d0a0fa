"""Processes by pid and start time, as a pid may pass to a later process.

Law: a signal reaches exactly the intended process, or none. The sender need not be its parent.

The start time is the kernel's own number, clock ticks since the machine's boot, from ``/proc/<pid>/stat``.
``psutil.Process.create_time()`` adds the boot time, which changes when NTP sets the clock, and a living bookie would count as
dead. State and start time come from a single read, so they belong to one process.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
from pathlib import Path

import msgspec

_PROC = Path("/proc")


class Process(msgspec.Struct, frozen=True):
    """A process. ``start_time``: clock ticks since the machine's boot."""

    pid: int
    start_time: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The current process with ``pid``; None if there is none, or only a zombie."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Is exactly this process running?"""
        return Process.of(self.pid) == self

    @property
    def suspended(self) -> bool:
        """Has a SIGSTOP taken effect? Each thread stops by itself, so another may still answer after the first has stopped."""
        threads = [_fields(path) for path in (_PROC / str(self.pid) / "task").glob("*/stat")]
        return bool(threads) and all(fields is None or fields[0] in "TZX" for fields in threads)


def signal_process(process: Process, number: signal.Signals) -> None:
    """Send a signal to exactly that process, not to a later one with its pid. No error if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            # This check comes second: the descriptor stays with its process, but the pid may have been reused before.
            if process.alive:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def wait_for_end(process: Process, timeout: float) -> bool:
    """Wait for the end of the process; False if it still runs after ``timeout`` seconds."""
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.alive:
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(timeout, 0.0) * 1000))
    finally:
        os.close(descriptor)


def _stat(pid: int) -> list[str] | None:
    return _fields(_PROC / str(pid) / "stat")


def _fields(path: Path) -> list[str] | None:
    """The fields of a ``stat`` of ``/proc`` from the state on, None if its process or thread has ended. (The name before them is
    in brackets, and may contain anything.)"""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None

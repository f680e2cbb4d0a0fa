"""Processes by pid and start time: a later process that got the same pid is another one.

Law: a signal reaches exactly the process that is meant, or nobody. Nobody has to be its parent.

Decision: the start time is the kernel's own number, clock ticks since the machine's boot, from ``/proc/<pid>/stat``, and not
``psutil.Process.create_time()``. psutil's time is in seconds since 1970: psutil adds the boot time, which the kernel computes
anew from the clock. After NTP set the clock, the same process would have another start time than its lock file says, and a bookie
that lives would count as dead. psutil keeps the kernel's number to itself. State and start time come from one read, so they are
of one process.
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
        """The process that has ``pid`` now; None if there is none or it is only a zombie."""
        fields = _stat(pid)
        return None if fields is None or fields[0] in "ZX" else cls(pid, int(fields[19]))

    @property
    def alive(self) -> bool:
        """Does exactly this process run?"""
        return Process.of(self.pid) == self

    @property
    def suspended(self) -> bool:
        """Has a SIGSTOP taken effect? Each thread stops by itself: one may still answer while the first stands still."""
        threads = [_fields(path) for path in (_PROC / str(self.pid) / "task").glob("*/stat")]
        return bool(threads) and all(fields is None or fields[0] in "TZX" for fields in threads)


def signal_process(process: Process, number: signal.Signals) -> None:
    """Send a signal to exactly that process, and not to a later one with its pid. No error if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(process.pid)
        try:
            # Look only now: the descriptor stays with its process, but the pid may have passed to another one before.
            if process.alive:
                signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def wait_for_end(process: Process, timeout: float) -> bool:
    """Wait until the process has ended; False if it has not after ``timeout`` seconds."""
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
    """The fields of a ``stat`` of ``/proc`` from the state on, None if its process or thread has ended. (The name before them
    stands in brackets, and may hold anything.)"""
    try:
        return path.read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None

"""The client of a bookie's lease socket: claims the lease, follows the bookie's phases, requests its stop.

Law: an open connection with a granted claim *is* the lease. So the holder of a lease keeps this object and nothing else. Its end
of file means the end of the bookie process. Every call has a deadline. ``lease_server`` describes the lines.
"""

from __future__ import annotations

import errno
import os
import socket
import time
from collections.abc import Sequence
from typing import Any

import msgspec

from bookspark.errors import BookieError
from bookspark.servers.daemon.directories import LEASE_SOCKET, spare_place
from bookspark.servers.daemon.lease_server import SERVING, STOPPING, Status
from bookspark.support.private_files import why_foreign


class LeaseRefusedError(BookieError):
    """Another process holds the bookie's lease, or the bookie is stopping (``holder`` is empty)."""

    def __init__(self, reason: str, holder: str) -> None:
        super().__init__(reason)
        self.holder = holder


class LeaseLostError(BookieError):
    """The bookie does not answer, or its process has ended."""


class LeaseConnection:
    """A connection to the bookie of ``directories``, through the first directory with an answer (``directory``). ``timeout``: for
    each of them, in seconds. Raises LeaseLostError if none answers; so do ``claim``, ``ask_status``, ``ask_probe`` and
    ``ask_stop``, after their ``timeout`` in seconds."""

    def __init__(self, directories: Sequence[str], timeout: float = 10.0) -> None:
        self.status: Status | None = None
        self._buffer = bytearray()
        problems: list[str] = []
        for directory in directories:
            try:
                self._socket = _connect(directory, timeout)
            except OSError as error:
                problems.append(f"no bookie answers in {directory}: {error.strerror or error}")
            else:
                self.directory = directory
                return
        raise LeaseLostError("; ".join(problems))

    def fileno(self) -> int:
        """For a selector: readable means news (``read_news``)."""
        return self._socket.fileno()

    def claim(self, holder: str, timeout: float = 10.0) -> Status:
        """Claim the lease for ``holder``; returns the bookie's status. Raises LeaseRefusedError."""
        answer = self._ask({"request": "claim", "holder": holder}, timeout)
        if answer["answer"] == "refused":
            raise LeaseRefusedError(
                f"the bookie in {self.directory} can't be claimed: {answer['reason']}", answer["holder"]
            )
        return self._note(answer)

    def ask_status(self, timeout: float = 10.0) -> Status:
        return self._note(self._ask({"request": "status"}, timeout))

    def ask_probe(self, request: str, timeout: float = 10.0) -> str:
        """The problem that a probe ("health" or "ready") finds, or ""."""
        problem: str = self._ask({"request": request}, timeout)["problem"]
        return problem

    def ask_stop(self, timeout: float = 10.0) -> None:
        """Request a clean stop; ``wait_ended`` waits for it."""
        self._ask({"request": "stop"}, timeout)

    def wait_serving(self, timeout: float) -> Status:
        """Wait, as the holder, until the bookie serves; returns its status. Raises LeaseLostError if it ends or stops first, and
        BookieError after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while self.status is None or self.status.phase != SERVING:
            if self.status is not None and self.status.phase == STOPPING:
                raise LeaseLostError(f"the bookie in {self.directory} stopped before it served")
            try:
                self._note(self._read_line(deadline))
            except TimeoutError as error:
                phase = self.status.phase if self.status else "starting"
                raise BookieError(
                    f"the bookie in {self.directory} does not serve after {timeout:g} s (phase: {phase}); see its log"
                ) from error
        return self.status

    def read_news(self) -> bool:
        """Read pending lines, without waiting; False once the process has ended."""
        try:
            while True:
                self._note(self._read_line(time.monotonic()))
        except TimeoutError:
            return True
        except LeaseLostError:
            return False

    def wait_ended(self, timeout: float) -> bool:
        """Wait for the end of the process; False if it still runs after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        try:
            while True:
                self._read_line(deadline)
        except TimeoutError:
            return False
        except LeaseLostError:
            return True

    def close(self) -> None:
        """Close the connection, and give up the lease with it."""
        self._socket.close()

    def _note(self, answer: dict[str, Any]) -> Status:
        self.status = msgspec.convert(answer, Status)
        return self.status

    def _ask(self, request: dict[str, str], timeout: float) -> dict[str, Any]:
        deadline = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            self._socket.sendall(msgspec.json.encode(request) + b"\n")
            while (answer := self._read_line(deadline))["answer"] == "phase":
                self._note(answer)
        except TimeoutError as error:
            raise LeaseLostError(f"the bookie in {self.directory} gives no answer within {timeout:g} s") from error
        except OSError as error:
            raise LeaseLostError(f"the bookie in {self.directory} has ended") from error
        if answer["answer"] == "error":
            raise BookieError(f"the bookie in {self.directory}: {answer['reason']}")
        return answer

    def _read_line(self, deadline: float) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            remaining = deadline - time.monotonic()
            self._socket.settimeout(max(remaining, 0.0))
            try:
                received = self._socket.recv(4096)
            except BlockingIOError as error:
                raise TimeoutError from error
            except TimeoutError:
                raise
            except OSError:
                received = b""
            if not received:
                raise LeaseLostError(f"the bookie in {self.directory} has ended")
            self._buffer += received
        line, _, rest = bytes(self._buffer).partition(b"\n")
        self._buffer[:] = rest
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer


def _connect(directory: str, timeout: float) -> socket.socket:
    """Connect to the lease socket in a directory, or in its spare place."""
    try:
        return _connect_in(directory, timeout)
    except OSError:
        place = spare_place(directory)
        if not os.path.exists(os.path.join(place, LEASE_SOCKET)):
            raise
        return _connect_in(place, timeout)


def _connect_in(directory: str, timeout: float) -> socket.socket:
    if why := why_foreign(directory):
        raise PermissionError(errno.EPERM, why)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(timeout)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            connection.connect(f"/proc/self/fd/{descriptor}/{LEASE_SOCKET}")
        finally:
            os.close(descriptor)
    except OSError:
        connection.close()
        raise
    return connection

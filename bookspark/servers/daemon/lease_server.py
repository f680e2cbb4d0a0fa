"""The lease socket of a bookie process: ``lease.sock`` in each of its directories, served by a thread of its own.

Law: a connection with a granted claim holds the lease until it is closed. The kernel closes it when its owner dies, so no
heartbeat is needed. ``protocol.bookie.lease`` decides the answer to a claim. The thread serves from before the boot phases until
the end of the process, so a slow boot does not look like a hang. A failed disk takes only its own socket with it: one readable
directory suffices to reach and adopt the bookie. Lines::

    {"request": "claim", "holder": "task 2 of …"}  →  {"answer": "granted", …status}
                                                  or  {"answer": "refused", "reason": …, "holder": …}
    {"request": "status"}                          →  {"answer": "status", …status}
    {"request": "health"}, {"request": "ready"}    →  {"answer": …, "problem": …}, "" without a problem; late, if its loop hangs
    {"request": "stop"}                            →  {"answer": "stopping"}; closed when the process has ended
    unasked, to the holder, at each new phase:        {"answer": "phase", …status}

Status: phase, pid, zookeeper, bookie_id, address and incarnation (empty or 0 until known), holder.

A path may exceed the 108 bytes of a Unix socket address, so both sides name the socket through ``/proc/self/fd``.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from bookspark.errors import BookieError
from bookspark.protocol.bookie.lease import Claim, Drop, End, Event, Grant, Lease, Refuse, Stop, Tick
from bookspark.servers.daemon.directories import LEASE_SOCKET, make_spare_place
from bookspark.store.bookie.disk.disk_errors import Meaning, meaning
from bookspark.store.bookie.disk.file_system import with_spare_files
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.records.documents import learn
from bookspark.support.private_files import PRIVATE_FILE

LINE_BYTES_MAX = 4096
CONNECTIONS_MAX = 64
SERVING, STOPPING = "serving", "stopping"
"""Phases that programs wait for. The names of the earlier phases are for people."""

log = logging.getLogger(__name__)


class Status(msgspec.Struct, frozen=True):
    """Status of a bookie process; the module's docstring lists the fields."""

    phase: str
    pid: int
    bookie_id: str = ""
    address: str = ""
    incarnation: int = 0
    zookeeper: str = ""
    holder: str = ""


class _Probed(NamedTuple):
    request: str
    problem: str


class Request(msgspec.Struct, frozen=True):
    """A line from a peer."""

    request: str
    holder: str = ""


learn(Status, Request)


class LeaseServer:
    """Answers from ``start`` to ``close``. ``ended`` is called once, from the thread, with the reason of the bookie's end.
    ``holder``: permanent holder of the lease, for people; "": the lease can be claimed. Raises BookieError if no directory can
    hold a socket."""

    def __init__(
        self,
        directories: Sequence[str],
        lease_seconds: float,
        zookeeper: str,
        ended: Callable[[str], None],
        holder: str = "",
    ) -> None:
        self.probes: Mapping[str, Callable[[], str]] = {}
        """The question of each probe, by its request: returns the problem, or "". It may wait, so it runs in a thread."""
        self._asking: dict[str, list[int]] = {}
        """Connections that wait for the answer of each running probe."""
        self._lease = made(Lease, lease_seconds, time.monotonic(), holder)
        self._ended = ended
        self._status = Status(phase="starting", pid=os.getpid(), zookeeper=zookeeper, holder=holder)
        self._inbox: deque[Stop | _Probed | dict[str, Any] | None] = deque()
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector = selectors.DefaultSelector()
        self._connections: dict[int, tuple[socket.socket, bytearray]] = {}
        self._holder: int | None = None
        self._listeners: list[tuple[int, socket.socket]] = []
        """The descriptor of each directory, and its socket."""
        for directory in directories:
            try:
                try:
                    self._listen(directory)
                except OSError as error:
                    if meaning(error) is not Meaning.READ_ONLY:
                        raise
                    self._listen(make_spare_place(directory))
            except OSError as error:
                log.warning("directory %s can't hold a lease socket: %s", directory, error.strerror or error)
        if not self._listeners:
            raise BookieError(
                f"no lease socket can be made in {', '.join(directories)}; choose directories of a file system that has sockets"
            )
        self._selector.register(self._woken, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="lease", daemon=True)

    @property
    def phase(self) -> str:
        return self._status.phase

    def start(self) -> None:
        self._thread.start()

    def update(self, **facts: Any) -> None:
        """Change fields of the status, and send them to the holder."""
        self._post(facts)

    def keeper(self) -> tuple[str, float | None]:
        """Holder of the lease, and the seconds until the bookie stops without a holder (None: no deadline). For any thread."""
        holder, deadline = self._lease.holder, self._lease.deadline
        return holder, None if deadline is None else round(max(0.0, deadline - time.monotonic()), 1)

    def stop(self, why: str) -> None:
        """Request a clean stop; ``why`` is for people. It takes no lock, so a signal handler may call it."""
        self._post(Stop(why))

    def close(self) -> None:
        """Stop answering, and remove the sockets. Connections stay open until the process ends."""
        self._post(None)
        self._thread.join(timeout=5.0)
        for directory, listener in self._listeners:
            # The socket may be missing. A remaining socket gives no answer.
            with contextlib.suppress(OSError):
                os.unlink(LEASE_SOCKET, dir_fd=directory)
            listener.close()

    def _listen(self, directory: str) -> None:
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # A killed process left the socket: this process holds the lock.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(LEASE_SOCKET, dir_fd=descriptor)
            address = f"/proc/self/fd/{descriptor}/{LEASE_SOCKET}"
            with_spare_files((directory,), lambda: listener.bind(address))
            # Before it listens, so nobody else ever connects, whatever the umask.
            os.chmod(address, PRIVATE_FILE)
            listener.listen(CONNECTIONS_MAX)
        except OSError:
            listener.close()
            os.close(descriptor)
            raise
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, listener)
        self._listeners.append((descriptor, listener))

    def _post(self, message: Stop | _Probed | dict[str, Any] | None) -> None:
        self._inbox.append(message)
        # A full pipe wakes the thread as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake, b".")

    def _serve(self) -> None:
        while True:
            deadline = self._lease.deadline
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            for key, _ in self._selector.select(timeout):
                if key.data is not None:
                    self._accept(key.data)
                elif key.fd == self._woken:
                    os.read(self._woken, 4096)
                else:
                    self._hear(key.fd)
            while self._inbox:
                message = self._inbox.popleft()
                if message is None:
                    return
                if isinstance(message, Stop):
                    self._step(message)
                elif isinstance(message, _Probed):
                    for number in self._asking.pop(message.request, ()):
                        self._send(number, {"answer": message.request, "problem": message.problem})
                else:
                    self._change(**message)
            self._step(Tick())

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            if len(self._connections) >= CONNECTIONS_MAX:
                connection.close()
                return
            connection.setblocking(False)
            self._connections[connection.fileno()] = (connection, bytearray())
            self._selector.register(connection, selectors.EVENT_READ)

    def _hear(self, number: int) -> None:
        """Read from a peer. A fault ends only the peer's own connection: without this thread the bookie could not be stopped or
        adopted."""
        try:
            self._receive(number)
        except Exception:
            log.exception("what came through the lease socket could not be answered")
            if number in self._connections:
                self._drop(number)

    def _receive(self, number: int) -> None:
        # An earlier event of this round closed the connection.
        if number not in self._connections:
            return
        connection, buffer = self._connections[number]
        try:
            received = connection.recv(LINE_BYTES_MAX)
        except BlockingIOError:
            return
        except OSError:
            received = b""
        buffer += received
        while b"\n" in buffer and number in self._connections:
            line, _, rest = bytes(buffer).partition(b"\n")
            buffer[:] = rest
            self._answer(number, line)
        if not received or len(buffer) > LINE_BYTES_MAX:
            self._drop(number)

    def _answer(self, number: int, line: bytes) -> None:
        try:
            request = msgspec.json.decode(line, type=Request)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._send(number, {"answer": "error", "reason": f"not a request: {error}"})
            return
        match request.request:
            case "claim":
                self._step(Claim(number, request.holder))
            case "status":
                self._send(number, self._status_line("status"))
            case "health" | "ready":
                self._probe(number, request.request)
            case "stop":
                self._send(number, {"answer": "stopping"})
                self._step(Stop("asked to through its lease socket"))
            case other:
                self._send(
                    number,
                    {
                        "answer": "error",
                        "reason": f"unknown request {other!r}; known: claim, status, health, ready, stop",
                    },
                )

    def _probe(self, number: int, request: str) -> None:
        waiting = self._asking.setdefault(request, [])
        waiting.append(number)
        if len(waiting) == 1:
            question = self.probes.get(request, lambda: "")

            def ask() -> None:
                try:
                    problem = question()
                except Exception as error:
                    log.exception("the probe %s failed", request)
                    problem = f"{type(error).__name__}: {error}"
                self._post(_Probed(request, problem))

            threading.Thread(target=ask, name="probe", daemon=True).start()

    def _step(self, event: Event) -> None:
        for action in self._lease.step(event, time.monotonic()):
            match action:
                case Grant(connection):
                    log.info("lease claimed by %s", self._lease.holder)
                    self._holder = connection
                    self._status = msgspec.structs.replace(self._status, holder=self._lease.holder)
                    self._send(connection, self._status_line("granted"))
                case Refuse(connection, reason, holder):
                    self._send(connection, {"answer": "refused", "reason": reason, "holder": holder})
                case End(why):
                    self._change(phase=STOPPING)
                    self._ended(why)

    def _drop(self, number: int) -> None:
        connection, _ = self._connections.pop(number)
        for waiting in self._asking.values():
            while number in waiting:
                # Another connection may get this number.
                waiting.remove(number)
        self._selector.unregister(connection)
        connection.close()
        if number == self._holder:
            log.warning(
                "lease dropped by %s; stopping in %g s if nobody claims it",
                self._lease.holder,
                self._lease.lease_seconds,
            )
            self._holder = None
            self._status = msgspec.structs.replace(self._status, holder="")
        self._step(Drop(number))

    def _change(self, **facts: Any) -> None:
        self._status = msgspec.structs.replace(self._status, **facts)
        if self._holder is not None:
            self._send(self._holder, self._status_line("phase"))

    def _status_line(self, answer: str) -> dict[str, Any]:
        return {"answer": answer, **msgspec.structs.asdict(self._status)}

    def _send(self, number: int, message: dict[str, Any]) -> None:
        """Send one line to a peer without waiting; the connection of a peer that does not read is ended."""
        if number not in self._connections:
            return
        connection, _ = self._connections[number]
        try:
            connection.send(msgspec.json.encode(message) + b"\n")
        except OSError:
            with contextlib.suppress(OSError):
                # The next read sees the end of the stream, and drops the connection.
                connection.shutdown(socket.SHUT_RDWR)

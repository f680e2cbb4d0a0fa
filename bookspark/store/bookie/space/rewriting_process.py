"""The rewriting process: rewrites logs beside the bookie, with an interpreter and memory of its own.

Law: it does one job at a time, and the kernel ends it with the bookie. It writes only temporary files, which a boot removes after
an interrupted job. If it dies, its job fails, and a later job starts a new process, after a pause that doubles with each death.
::

    bookie ──forks at its start──► forker ──forks, when asked──► the process that rewrites

The forker does nothing else. It is forked before the bookie has any thread or lock (a directory's lock must have no second
holder), so its children have none either. Forks need no files: Spark may delete the files of a shipped package while the bookie
lives on. The process is niced: appends come first. Source: the zygotes of Android and Chromium.

Each process has a socket pair to the bookie. Messages both ways: u64 length │ msgpack. A request is a ``rewriting.Job``. A
request to the forker is one byte; the answer is i64 pid and the socket, or i64 −errno.
"""

from __future__ import annotations

import ctypes
import errno
import gc
import logging
import math
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from bookspark.store.bookie.disk.file_system import RealFileSystem
from bookspark.store.bookie.space.rewriting import Job, NoRewriterError, Rewritten, rewrite
from bookspark.store.wire.messages import Ranges
from bookspark.support.threads import BackOff

_LENGTH = struct.Struct("<Q")
_PID = struct.Struct("<q")
_PR_SET_PDEATHSIG = 1
_NICENESS = 10
_ANSWER_SECONDS_MAX = 3600.0
_FORK_SECONDS_MAX = 60.0
_PAUSE_SECONDS, _PAUSE_SECONDS_MAX = 1.0, 300.0
"""Pause after the first death. Each further death without a rewritten log between them doubles it."""

log = logging.getLogger(__name__)


class _Answer(msgspec.Struct, array_like=True):
    rows: bytes = b""
    size: int = 0
    damaged: bytes = b""
    error: tuple[int, str] | None = None
    """errno and message"""


class _Worker(NamedTuple):
    pid: int
    connection: socket.socket


class RewritingProcess:
    """A ``reclaiming.Rewriter``. Create it before anything else in the process; ``close`` it at the end."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        # Otherwise the child's first garbage collection would touch, and so copy, every page.
        gc.freeze()
        self._forker = os.fork()
        if self._forker == 0:
            ours.close()
            _fork_when_asked(theirs, parent)
        gc.unfreeze()
        theirs.close()
        ours.settimeout(_FORK_SECONDS_MAX)
        self._requests = ours
        self._clock = clock
        self._calling = threading.Lock()
        self._worker: _Worker | None = None
        self._pauses = BackOff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
        self._not_before = -math.inf

    def rewrite(self, job: Job) -> Rewritten:
        """Write one new log under its temporary name, synced. Raises OSError; NoRewriterError in the pause after a death, or if
        the fork fails."""
        answer = self._call(job)
        self._pauses.reset()
        return Rewritten(Ranges.decode(memoryview(answer.rows)), answer.size, Ranges.decode(memoryview(answer.damaged)))

    def worker_pid(self) -> int:
        """Pid of the rewriting process, started if necessary. Raises OSError."""
        with self._calling:
            return self._begun().pid

    def close(self) -> None:
        """Kill the process, also during a job."""
        self._requests.close()
        if self._worker is not None:
            self._worker.connection.close()
        try:
            os.kill(self._forker, signal.SIGKILL)
            os.waitpid(self._forker, 0)
        except (ProcessLookupError, ChildProcessError):
            log.debug("the forker of the rewriting process was gone before")

    def _call(self, job: Job) -> _Answer:
        with self._calling:
            worker = self._begun()
            try:
                _send(worker.connection, msgspec.msgpack.encode(job))
                answer = msgspec.msgpack.decode(_receive(worker.connection), type=_Answer)
            except OSError:
                self._lost(worker)
                raise
        if answer.error is not None:
            raise OSError(*answer.error)
        return answer

    def _begun(self) -> _Worker:
        if self._worker is None:
            if self._clock() < self._not_before:
                raise NoRewriterError(
                    errno.EAGAIN, "the rewriting process died, and it is not time yet to begin another one"
                )
            self._worker = self._fork()
        return self._worker

    def _fork(self) -> _Worker:
        try:
            self._requests.sendall(b".")
            content, descriptors, _, _ = socket.recv_fds(self._requests, _PID.size, 1)
        except OSError as error:
            raise NoRewriterError(
                error.errno, f"no rewriting process can be begun until the bookie is restarted: {error}"
            ) from error
        if not content:
            raise NoRewriterError(
                errno.ECHILD, "no rewriting process can be begun until the bookie is restarted: its forker has ended"
            )
        (pid,) = _PID.unpack(content)
        if pid < 0:
            raise NoRewriterError(-pid, f"no rewriting process can be begun: {os.strerror(-pid)}")
        connection = socket.socket(fileno=descriptors[0])
        connection.settimeout(_ANSWER_SECONDS_MAX)
        return _Worker(pid, connection)

    def _lost(self, worker: _Worker) -> None:
        """Give up a dead or stuck process. The forker kills it before the next fork."""
        worker.connection.close()
        self._worker = None
        self._not_before = self._clock() + self._pauses.next()


def _rewrite(job: Job) -> _Answer:
    rewritten = rewrite(RealFileSystem(), job, time.sleep)
    return _Answer(rewritten.rows.encode(), rewritten.size, rewritten.damaged.encode())


def _fork_when_asked(requests: socket.socket, parent: int) -> None:
    """Main function of the forker."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        os.nice(_NICENESS)
        _end_with(parent)
        worker = 0
        while requests.recv(1):
            if worker:
                os.kill(worker, signal.SIGKILL)
                os.waitpid(worker, 0)
            worker = _fork_worker(requests)
    finally:
        os._exit(0)


def _fork_worker(requests: socket.socket) -> int:
    """Fork a rewriting process; returns its pid, 0 if the fork fails."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        forker = os.getpid()
        try:
            pid = os.fork()
        except OSError as error:
            requests.sendall(_PID.pack(-(error.errno or errno.EAGAIN)))
            return 0
        if pid == 0:
            requests.close()
            ours.close()
            _work(theirs, forker)
        socket.send_fds(requests, [_PID.pack(pid)], [ours.fileno()])
        return pid


def _work(connection: socket.socket, parent: int) -> None:
    """Main function of the rewriting process."""
    try:
        _end_with(parent)
        while True:
            job = msgspec.msgpack.decode(_receive(connection), type=Job, strict=False)
            try:
                answer = _rewrite(job)
            except Exception as error:
                code = error.errno if isinstance(error, OSError) and error.errno else 0
                answer = _Answer(error=(code, f"{type(error).__name__}: {error}"))
            _send(connection, msgspec.msgpack.encode(answer))
    finally:
        os._exit(0)


def _end_with(parent: int) -> None:
    """Have the kernel end this process with ``parent``, which forked it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _send(connection: socket.socket, content: bytes) -> None:
    connection.sendall(_LENGTH.pack(len(content)))
    connection.sendall(content)


def _receive(connection: socket.socket) -> bytearray:
    (size,) = _LENGTH.unpack(_receive_exactly(connection, _LENGTH.size))
    return _receive_exactly(connection, size)


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    content = bytearray(size)
    view = memoryview(content)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the rewriting process has ended; another one is begun later")
        view = view[count:]
    return content

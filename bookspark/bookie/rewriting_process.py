"""A process beside the bookie's that rewrites logs: the bookie's loop shares neither its interpreter nor its memory with it.

Law: it is forked before the bookie has any thread or lock (a directory's lock must have no second holder), does one thing at a
time, and never outlives the bookie: the kernel ends it with its parent. It writes nothing but temporary files, so one that is
ended in the middle leaves what a boot removes. If it dies, nothing is rewritten until the next start, and nothing else is
worse for it.

Forked and not started anew when it is needed, because Spark may delete the files of a shipped package while the bookie lives
on; an idle one costs about 10 MB (measured: its own dirty pages). It is niced: appends come first.

Over a socket pair, both ways: u64 length │ msgpack. A request is [a name of ``_CALLS``, its argument].
"""

from __future__ import annotations

import ctypes
import gc
import logging
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable
from typing import Any

import msgspec

from bookspark.bookie.file_system import RealFileSystem
from bookspark.bookie.rewriting import DamagedLogError, Job, Rewritten, SealedLog, batches_of, rewrite
from bookspark.wire.messages import Ranges

_LENGTH = struct.Struct("<Q")
_PR_SET_PDEATHSIG = 1
_NICENESS = 10
_ANSWER_SECONDS_MAX = 3600.0

log = logging.getLogger(__name__)


class _Answer(msgspec.Struct, array_like=True):
    rows: bytes = b""
    size: int = 0
    damaged: tuple[int, int] | None = None
    """(log, position)"""
    error: tuple[int, str] | None = None
    """errno and message"""


class RewritingProcess:
    """A ``reclaiming.Rewriter``. Make it before anything else in the process; ``close`` it at the end."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        parent = os.getpid()
        gc.freeze()  # or the child's first collection would touch, and so copy, every page
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            _run(theirs, parent)
        gc.unfreeze()
        theirs.close()
        ours.settimeout(_ANSWER_SECONDS_MAX)
        self._socket = ours
        self._calling = threading.Lock()

    def batches_of(self, source: SealedLog) -> Ranges:
        return Ranges.decode(memoryview(self._call("batches_of", source).rows))

    def rewrite(self, job: Job) -> Rewritten:
        answer = self._call("rewrite", job)
        return Rewritten(Ranges.decode(memoryview(answer.rows)), answer.size)

    def close(self) -> None:
        """End it, whatever it does."""
        self._socket.close()
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            log.debug("the rewriting process was gone before")

    def _call(self, name: str, argument: SealedLog | Job) -> _Answer:
        with self._calling:
            _send(self._socket, msgspec.msgpack.encode((name, argument)))
            answer = msgspec.msgpack.decode(_receive(self._socket), type=_Answer)
        if answer.damaged is not None:
            raise DamagedLogError(*answer.damaged)
        if answer.error is not None:
            raise OSError(*answer.error)
        return answer


def _batches_of(argument: Any) -> _Answer:
    return _Answer(batches_of(RealFileSystem(), msgspec.convert(argument, SealedLog)).encode())


def _rewrite(argument: Any) -> _Answer:
    rewritten = rewrite(RealFileSystem(), msgspec.convert(argument, Job, strict=False), time.sleep)
    return _Answer(rewritten.rows.encode(), rewritten.size)


_CALLS: dict[str, Callable[[Any], _Answer]] = {"batches_of": _batches_of, "rewrite": _rewrite}


def _run(connection: socket.socket, parent: int) -> None:
    """The child's life."""
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            return
        os.nice(_NICENESS)
        while True:
            name, argument = msgspec.msgpack.decode(_receive(connection))
            try:
                answer = _CALLS[name](argument)
            except DamagedLogError as damage:
                answer = _Answer(damaged=(damage.log, damage.position))
            except Exception as error:
                code = error.errno if isinstance(error, OSError) and error.errno else 0
                answer = _Answer(error=(code, f"{type(error).__name__}: {error}"))
            _send(connection, msgspec.msgpack.encode(answer))
    finally:
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
            raise ConnectionResetError(
                "the rewriting process has ended; restart the bookie to have logs rewritten again"
            )
        view = view[count:]
    return content

"""One process's record of decisions.

Law: recording never changes the process's behaviour. A step appends a few bytes to a queue in memory; a thread of the recorder
packs and writes them, ten times a second. After a failed write the record ends with a log message. The queue is bounded: a
step that meets a full queue writes it itself. A process keeps ``SEGMENTS_MAX`` segments; machines made in a deleted segment
can't be replayed.

A forked process has no record until it calls ``record_into``: queue and thread belong to its parent.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import secrets
import socket
import struct
import sys
import threading
import time
from collections import deque
from functools import lru_cache
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec
import zstandard

from bookspark.errors import ConfigurationError
from bookspark.store.decisions.forms import Forms
from bookspark.store.decisions.record_file import FORMAT, RECORDS_BYTES_MAX, SUFFIX, Header, encoded, header_chunk
from bookspark.support.private_files import make_private_directory, open_private
from bookspark.support.threads import BackOff, Repeated

log = logging.getLogger(__name__)

SEGMENT_BYTES = 64 << 20
SEGMENTS_MAX = 32
_PENDING_MAX = 50_000
"""Records. A writer's step takes about 50 bytes."""
_DRAIN_SECONDS = 0.1
_LEVEL = 1
_ARRAY = struct.Struct(">BI")


class Recorder:
    """Writes the record of this process into ``folder``. ``kind``: the kind of process."""

    def __init__(
        self, folder: str, kind: str, segment_bytes: int = SEGMENT_BYTES, segments_max: int = SEGMENTS_MAX
    ) -> None:
        """Raises ConfigurationError if the folder can't be made or written to."""
        self.folder = folder
        self._kind = kind
        self._segment_bytes, self._segments_max = segment_bytes, segments_max
        self._host = socket.gethostname()
        salt = secrets.token_bytes(16)
        self.forms = Forms(
            self.put, lru_cache(4096)(lambda key: hashlib.blake2b(key, key=salt, digest_size=8).digest())
        )
        self.encode = msgspec.msgpack.Encoder().encode
        self._pending: deque[bytes] = deque()
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._number = 0
        self._number_lock = threading.Lock()
        self._began_ns = self._drained_ns = time.time_ns()
        self._segment = 0
        self._file: FileIO | None = None
        self._written = 0
        self._pack = zstandard.ZstdCompressor(level=_LEVEL).compress
        try:
            make_private_directory(folder)
            self._open()
        except OSError as error:
            raise ConfigurationError(
                f"decisions can't be recorded in {folder}: {error.strerror}; name another folder with record_decisions"
            ) from error
        self._thread = Repeated("decisions", self._turn, BackOff(_DRAIN_SECONDS, _DRAIN_SECONDS))
        self._thread.start()

    def number(self) -> int:
        with self._number_lock:
            self._number += 1
            return self._number

    def put(self, record: list[Any]) -> None:
        """Queue a record. From any thread."""
        pending = self._pending
        pending.append(self.encode(record))
        if len(pending) > _PENDING_MAX:
            self._drain()

    def put_encoded(self, record: bytes) -> None:
        self._pending.append(record)
        if len(self._pending) > _PENDING_MAX:
            self._drain()

    def close(self) -> None:
        self._thread.stop()
        self._drain()
        with self._lock:
            if self._file is not None:
                now = time.time_ns()
                self._write(encoded(now, now, b""))
            if self._file is not None:
                self._file.close()
                self._file = None

    def _turn(self) -> float:
        self._drain()
        return _DRAIN_SECONDS

    def _drain(self) -> None:
        if os.getpid() != self._pid:
            # A forked process still has its parent's machines.
            self._pending.clear()
            return
        with self._lock:
            pending = self._pending
            if not pending:
                self._drained_ns = time.time_ns()
                return
            left = len(pending)
            while left:
                some, size = list[bytes](), 0
                while left and (not some or size + len(pending[0]) <= RECORDS_BYTES_MAX // 2):
                    some.append(pending.popleft())
                    size, left = size + len(some[-1]), left - 1
                begin, self._drained_ns = self._drained_ns, time.time_ns()
                if self._file is not None:
                    records = b"".join((_ARRAY.pack(0xDD, len(some)), *some))
                    self._write(encoded(begin, self._drained_ns, self._pack(records)))
            if self._file is not None and self._written >= self._segment_bytes:
                self._next_segment()

    def _write(self, chunk: bytes) -> None:
        assert self._file is not None
        try:
            left = memoryview(chunk)
            while left:
                left = left[self._file.write(left) :]
            self._written += len(chunk)
        except OSError as error:
            log.error("decisions are recorded no more: %s can't be written: %s", self.folder, error)
            self._file = None

    def _next_segment(self) -> None:
        try:
            if self._file is not None:
                self._file.close()
            self._segment += 1
            self._open()
            if self._segment >= self._segments_max:
                self._path(self._segment - self._segments_max).unlink(missing_ok=True)
        except OSError as error:
            log.error("decisions are recorded no more: %s can't be written: %s", self.folder, error)
            self._file = None
        self.forms.define_again()

    def _path(self, segment: int) -> Path:
        host = re.sub(r"[^A-Za-z0-9.-]", "_", self._host)
        return Path(self.folder, f"{self._kind}-{host}-{os.getpid()}-{self._began_ns}.{segment}{SUFFIX}")

    def _open(self) -> None:
        # Unbuffered: a forked process would write a buffer once more.
        self._file, self._written = open_private(self._path(self._segment)).detach(), 0  # type: ignore[attr-defined]
        header = Header(FORMAT, version(), self._kind, self._host, os.getpid(), self._segment)
        self._file.write(header_chunk(header, time.time_ns()))


def version() -> str:
    """The version of Bookspark. The package itself is above this layer and can't be imported here."""
    return str(sys.modules[__name__.partition(".")[0]].__version__)


class _This:
    __slots__ = ("recorder",)

    def __init__(self) -> None:
        self.recorder: Recorder | None = None


this = _This()
os.register_at_fork(after_in_child=this.__init__)  # type: ignore[misc]
_lock = threading.Lock()
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


def record_into(folder: str, kind: str) -> Recorder | None:
    """Record this process's decisions into ``folder`` from now on; "": don't begin. A process has one record: the first call
    counts. Raises ConfigurationError if the folder can't be used, or the process already records into another folder."""
    if not folder:
        return this.recorder
    with _lock:
        recorder = this.recorder
        if recorder is None:
            recorder = this.recorder = Recorder(folder, kind)
            atexit.register(end_recording)
        elif recorder.folder != folder:
            raise ConfigurationError(
                f"this process records its decisions into {recorder.folder}, so record_decisions can't be {folder}"
            )
        return recorder


def recording() -> bool:
    return this.recorder is not None


def end_recording() -> None:
    with _lock:
        recorder, this.recorder = this.recorder, None
    if recorder is not None:
        recorder.close()

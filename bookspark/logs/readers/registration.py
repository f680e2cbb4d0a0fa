"""Reports of a reader's offset to the cluster, beside its reads.

Law: reports are best effort. A report never fails the reader, which waits only for its last one; the first failure of each
reader is logged. A reader writes at most once a second, except for this, and every BEAT_MS while its offset stays the same.
One thread reports for all readers of a process, and ends when there are none. A dropped reader becomes stale.

A Python reader's first report comes after a second, so a short read leaves no record.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from bookspark.logs.chain.registry import READERS
from bookspark.logs.readers.records import forget_outdated, update
from bookspark.protocol.logs.lanes import MARK, lane_of
from bookspark.protocol.logs.reader_record import BEAT_MS, ReaderKind, ReaderRecord
from bookspark.support.threads import Latch

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.metadata.store import MetadataStore

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
_LOOK_SECONDS = 0.25
_LAST_SECONDS_MAX = 5.0


class Registration:
    """A reader of ``log``, the key of a log or lane, at ``offset``, or at the offset that this function returns at any time, in
    any thread. ``reader``: the name of its group, or empty.

    The reader's thread writes ``_place``, ``_closed`` and ``_kept``; the reporting thread writes the rest.
    """

    def __init__(
        self,
        bookkeeper: BookKeeper,
        log: str,
        kind: ReaderKind,
        offset: Mapping[str, int] | Callable[[], Mapping[str, int]],
        reader: str = "",
    ) -> None:
        self._bookkeeper, self._pid = bookkeeper, os.getpid()
        self.key = uuid.uuid4().hex[:12]
        """The record's name before the ``@``."""
        self.name = f"{self.key}{MARK}{log}"
        self._place = offset if callable(offset) else partial(dict[str, int], offset)
        self._closed = False
        process = f"{socket.gethostname()}:{self._pid}"
        self._who = ReaderRecord(kind, {}, time.time_ns() // 1_000_000, reader, process=process)
        """The reader's record without its offset."""
        self._told: Mapping[str, int] | None = None
        self._told_at = time.monotonic() if kind is ReaderKind.PYTHON else float("-inf")
        self._cleaned_for: str | None = None
        self._failed = self._kept = False
        self.over = False
        """No more reports: the reader was closed, or the log deleted."""
        self._written = Latch()
        _teller().add(self)

    @property
    def record(self) -> ReaderRecord:
        return replace(self._who, offset=self._place(), closed=self._closed)

    def moved(self, offset: Mapping[str, int]) -> None:
        """Set the reader's offset. Never blocks."""
        self._place = partial(dict[str, int], offset)
        if self.due(time.monotonic()):
            _teller().wake()

    def close(self, kept: bool = False) -> None:
        """End the reader. Waits for the last report, at most _LAST_SECONDS_MAX. The record stays if the reader has a name, or is
        to be ``kept`` because its name may come later (``introduce``)."""
        if self.over or self._closed or self._pid != os.getpid():
            return
        self._written.clear()
        self._kept = kept
        self._closed = True
        if self._told is None and not self._who.reader and not kept:
            self.over = True
            return
        _teller().wake()
        self._written.wait(_LAST_SECONDS_MAX)

    def due(self, now: float) -> bool:
        """Is a report due at ``now`` (``time.monotonic``)?"""
        if self.over:
            return False
        since = now - self._told_at
        return self._closed or since >= (TELL_SECONDS if self._told != self._place() else BEAT_MS / 1000)

    def tell(self) -> None:
        """Write the record, in the reporting thread. Never raises."""
        # A failed attempt counts for the interval too.
        self._who = replace(self._who, beat=self._who.beat + 1)
        self._told_at, record = time.monotonic(), self.record
        try:
            self._write(self._bookkeeper.metadata, record)
        except Exception as error:
            if not self._failed:
                log.warning("reader %s can't tell how far it is, and reads on: %s", self.name, error)
            self._failed = True
        finally:
            self.over = self.over or record.closed
            if record.closed:
                self._written.set()

    def _write(self, store: MetadataStore, record: ReaderRecord) -> None:
        if record.closed and not record.reader and not self._kept:
            store.delete_record(READERS, self.name)
            return

        def told(found: ReaderRecord | None) -> ReaderRecord:
            if found is None or record.reader:
                return record
            return replace(record, reader=found.reader, run=found.run, name=found.name)

        written = update(store, self.name, told)
        if written is None:
            self.over = True
            return
        self._told = record.offset
        self._who = replace(self._who, reader=written.reader, run=written.run, name=written.name)
        if self._cleaned_for != written.reader:
            self._cleaned_for = written.reader
            forget_outdated(store, int(lane_of(self.name.partition(MARK)[2])[0]))


def introduce(bookkeeper: BookKeeper, name: str, record: ReaderRecord) -> None:
    """Add the reader's query or group to the record ``name``, from a process that knows them; in a thread of its own. Never
    raises, never blocks. ``record``: written if there is no record yet."""

    def named(stored: ReaderRecord | None) -> ReaderRecord | None:
        if stored is None:
            return record
        return None if stored.reader else replace(stored, reader=record.reader, run=record.run, name=record.name)

    def run() -> None:
        try:
            update(bookkeeper.metadata, name, named)
        except Exception as error:
            log.warning("reader %s: its registration could not be written: %s", name, error)

    try:
        threading.Thread(target=run, name="bookspark-introduce-reader", daemon=True).start()
    except RuntimeError:
        log.debug("reader %s: its registration is not written, because the process ends", name)


class _Teller:
    """Reports for all readers of a process, in a thread that lives while there are any."""

    def __init__(self) -> None:
        # Reentrant: a finalizer may run in the thread that holds it.
        self._lock = threading.RLock()
        self._readers: dict[str, weakref.ref[Registration]] = {}
        self._changed = Latch()
        self._thread: threading.Thread | None = None

    def add(self, reader: Registration) -> None:
        with self._lock:
            self._readers[reader.key] = weakref.ref(reader)
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="bookspark-tell-readers", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    # The interpreter is shutting down.
                    return
                self._thread = thread

    def wake(self) -> None:
        self._changed.set()

    def _run(self) -> None:
        while True:
            self._changed.wait(_LOOK_SECONDS)
            self._changed.clear()
            if not self._tell():
                return

    def _tell(self) -> bool:
        """Send due reports. False if there are no readers any more; the thread then ends."""
        with self._lock:
            there = {key: reader for key, held in self._readers.items() if (reader := held()) is not None}
            self._readers = {key: weakref.ref(reader) for key, reader in there.items() if not reader.over}
            if not self._readers:
                self._thread = None
                return False
        for reader in there.values():
            if reader.due(time.monotonic()):
                reader.tell()
        return True


_tellers: dict[int, _Teller] = {}
"""One for each pid: a forked process reports for no reader of its parent."""


def _teller() -> _Teller:
    pid = os.getpid()
    teller = _tellers.get(pid)
    return _tellers.setdefault(pid, _Teller()) if teller is None else teller

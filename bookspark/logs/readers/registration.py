"""A reader tells the cluster how far it is, beside its reading.

Law: telling is best effort. The reader never fails by it, and waits for it only at its end; a failure is logged once for each
reader. A reader writes once a second at most, but for the last time, and while it stands still every BEAT_MS. One thread tells
for all readers of a process, and ends when there are none. A reader that was dropped tells nothing more, and becomes stale.

A Python reader tells first when it is a second old, so a short read leaves nothing behind.
"""

from __future__ import annotations

import logging
import os
import threading
import time
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bookspark.logs.chain.registry import READERS
from bookspark.logs.readers.records import forget_outdated, now_ms, update
from bookspark.protocol.logs.lanes import MARK, lane_of
from bookspark.protocol.logs.reader_record import BEAT_MS, ReaderKind, ReaderRecord
from bookspark.support.threads import Latch

if TYPE_CHECKING:
    from bookspark.store.client import BookKeeper
    from bookspark.store.metadata.store import MetadataStore

log = logging.getLogger(__name__)

TELL_SECONDS = 1.0
"""The least time between two writes of a reader."""
_LOOK_SECONDS = 0.25
_LAST_SECONDS_MAX = 5.0
"""How long a reader that ends waits for its last telling."""


class Registration:
    """A reader at ``offset`` of a log or of a lane. ``reader``: the name of its group, empty if it has none.

    The reader's thread changes ``_offset``, ``_closed`` and ``_urgent``, the thread that tells changes the rest, and ``_urgent``
    back.
    """

    def __init__(
        self, bookkeeper: BookKeeper, log: str, kind: ReaderKind, offset: Mapping[str, int], reader: str = ""
    ) -> None:
        self._bookkeeper, self._pid = bookkeeper, os.getpid()
        self.key = uuid.uuid4().hex[:12]
        """The part of the record's name before the mark."""
        self.name = f"{self.key}{MARK}{log}"
        """The record's name."""
        self._offset, self._closed = dict(offset), False
        began = now_ms()
        self._who = ReaderRecord(kind, {}, began, began, reader)
        """The reader, but for its place."""
        self._told: Mapping[str, int] | None = None
        self._told_at = time.monotonic() if kind is ReaderKind.PYTHON else float("-inf")
        self._cleaned_for: str | None = None
        self._failed = self._urgent = False
        self._over = False
        """Nothing is told any more: the reader was closed, or the log deleted."""
        self._written = Latch()
        _teller().add(self)

    @property
    def record(self) -> ReaderRecord:
        """The reader as it would tell of itself now."""
        return replace(self._who, offset=self._offset, closed=self._closed, heard_ms=now_ms())

    def moved(self, offset: Mapping[str, int]) -> None:
        """The reader is at ``offset`` now. Never blocks."""
        self._offset = dict(offset)
        if self.due(time.monotonic()):
            _teller().wake()

    def close(self) -> None:
        """The reader ends. Waits for the last telling, _LAST_SECONDS_MAX at most. Its record stays if it has a name."""
        if self._over or self._closed or self._pid != os.getpid():
            return
        self._written.clear()
        self._closed = True
        if self._told is None and not self._who.reader:
            self._over = True
            return
        self._wait_told()

    def tell_now(self) -> None:
        """Tell the place although the last telling was just now, for a process that may end at any moment. Waits for it,
        _LAST_SECONDS_MAX at most. Does nothing if it was told."""
        if not self._over and not self._closed and self._pid == os.getpid() and self._told != self._offset:
            self._written.clear()
            self._urgent = True
            self._wait_told()

    def _wait_told(self) -> None:
        _teller().wake()
        self._written.wait(_LAST_SECONDS_MAX)

    def due(self, now: float) -> bool:
        """Is there something to tell at ``now`` (``time.monotonic``)?"""
        if self._over:
            return False
        since = now - self._told_at
        return self._closed or self._urgent or since >= (TELL_SECONDS if self._told != self._offset else BEAT_MS / 1000)

    @property
    def over(self) -> bool:
        """Will it tell nothing any more?"""
        return self._over

    def tell(self) -> None:
        """Write the record; in the thread that tells. Never raises."""
        # A failed attempt counts too.
        urgent, self._urgent = self._urgent, False
        self._told_at, record = time.monotonic(), self.record
        try:
            self._write(self._bookkeeper.metadata, record)
        except Exception as error:
            if not self._failed:
                log.warning("reader %s can't tell how far it is, and reads on: %s", self.name, error)
            self._failed = True
        finally:
            self._over = self._over or record.closed
            if record.closed or urgent:
                self._written.set()

    def _write(self, store: MetadataStore, record: ReaderRecord) -> None:
        if record.closed and not record.reader:
            store.delete_record(READERS, self.name)
            return

        def told(found: ReaderRecord | None) -> ReaderRecord:
            if found is None or record.reader:
                return record
            return replace(record, reader=found.reader, run=found.run, name=found.name)

        written = update(store, self.name, told)
        if written is None:
            self._over = True
            return
        self._told = record.offset
        self._who = replace(self._who, reader=written.reader, run=written.run, name=written.name)
        if self._cleaned_for != written.reader:
            self._cleaned_for = written.reader
            forget_outdated(store, lane_of(self.name.partition(MARK)[2])[0])


def introduce(bookkeeper: BookKeeper, name: str, record: ReaderRecord) -> None:
    """Say who the reader with the record ``name`` is, from a process that knows; in a thread of its own. Never raises, and never
    blocks. ``record``: what is written if there is none yet."""

    def named(found: ReaderRecord | None) -> ReaderRecord | None:
        if found is None:
            return record
        return None if found.reader else replace(found, reader=record.reader, run=record.run, name=record.name)

    def run() -> None:
        try:
            update(bookkeeper.metadata, name, named)
        except Exception as error:
            log.warning("reader %s: who it is could not be told: %s", name, error)

    try:
        threading.Thread(target=run, name="bookspark-introduce-reader", daemon=True).start()
    except RuntimeError:
        log.debug("reader %s: who it is is not told, because the process ends", name)


class _Teller:
    """Tells for all readers of a process, in a thread that lives while there are any."""

    def __init__(self) -> None:
        # A signal handler may interrupt a thread that holds it.
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
                    # The interpreter ends.
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
        """Tell what is due. False if there are no readers any more; the thread then ends."""
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
"""The teller of each process, by its pid: a forked process tells for no reader of its parent's."""


def _teller() -> _Teller:
    pid = os.getpid()
    found = _tellers.get(pid)
    return _tellers.setdefault(pid, _Teller()) if found is None else found

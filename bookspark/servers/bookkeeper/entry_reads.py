"""Reads of entries for BookKeeper's clients: from the bookie's own logs, with its own checks.

Law: as in ``bookie.serving.entry_reads``: what the page cache has is read on the loop, the rest by a thread of its disk; a peer
that does not read its answers, or for which there is no room, waits; a copy that turns out unreadable is held no more, and
another one is read if there is one. A read that fails is never answered with a Negative.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from time import monotonic

from bookspark.servers.bookkeeper.entries import BODY_BYTES_MIN, body_of
from bookspark.servers.bookkeeper.kept_batches import KeptBatches
from bookspark.store.bookie.holdings.reads import PART_BYTES, READ_BYTES_MAX, Fetched, ReadPlan, Stop
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.bookie.serving.peer import Peer
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import Status

Found = Callable[[int, Sequence[bytes]], None]
"""``found(status, bodies)``: OK with the bodies of one entry or more, in their order, or why there is none."""

_AHEAD = 1 << 20
"""A read of one entry plans so many more, as far as they are in its batch."""
_BATCHED_BYTES = 1 << 20
"""An answer to a batched read is about so long, if there is room. A client sends the next one when it has this one, so a short
one costs it a round trip more."""
_FLUSHED_BYTES = 64 << 10
_STORED_BYTES = 1 << 10
"""An entry that is alone in its batch takes up to this much more on the disk than its body has."""
_ATTEMPTS = 5
"""How often a read is planned again because the entries moved meanwhile."""

log = logging.getLogger(__name__)


class EntryReads:
    """Reads entries for one connection."""

    def __init__(self, storage: Storage, peer: Peer, kept_batches: KeptBatches) -> None:
        self._storage = storage
        self._peer = peer
        self._kept_batches = kept_batches
        self._unflushed = 0
        """Bytes of entries that were found on the loop since the last flush."""

    def read(self, ledger_id: int, first: int, count: int, size: int, found: Found) -> None:
        """Find ``count`` entries from ``first`` on, as far as they are held one after the other and their bodies take ``size``
        bytes together, but at least one. ``found`` is called once, now or later."""
        self._peer.read_begins()
        begun, traffic = monotonic(), self._storage.traffic

        def ended(status: int, bodies: Sequence[bytes]) -> None:
            found(status, bodies)
            traffic.reads.observe(monotonic() - begun)
            byte_count = sum(map(len, bodies))
            traffic.entries_out += len(bodies)
            traffic.bytes_out += byte_count
            self._unflushed += byte_count
            if self._unflushed > _FLUSHED_BYTES:
                # A peer that does not read is noticed before its next request is taken.
                self._unflushed = 0
                self._peer.flush()
            self._peer.read_ends()

        self._attempt(_Read(ledger_id, first, count, size, ended), _ATTEMPTS)

    def _attempt(self, read: _Read, left: int) -> None:
        with read.guarded():
            plan = self._plan(read)
            if not plan.pieces:
                read.found(Status.IO_ERROR if plan.refusal is None else status_of(plan.refusal), ())
                return
            size = max(PART_BYTES, plan.pieces[0].size)
            if read.count > 1 and self._peer.takes(_BATCHED_BYTES):
                size = max(size, _BATCHED_BYTES)
            if self._peer.takes(size):
                if self._found_kept(read, plan):
                    return
                fetched = self._storage.files.fetch(plan.pieces, cached_only=True, bytes_max=size)
                if fetched is not None:
                    self._fetched(read, left, plan, fetched)
                    return
            self._peer.when_it_takes(size, partial(self._begin, read, left))

    def _found_kept(self, read: _Read, plan: ReadPlan) -> bool:
        """Was the entry of a read of one found in a batch that is kept?"""
        entry = self._kept_batches.entry(plan.pieces[0]) if read.count == 1 else None
        if entry is not None:
            read.found(Status.OK, (body_of(entry),))
        return entry is not None

    def _plan(self, read: _Read) -> ReadPlan:
        if read.count == 1:
            # Of the one batch that the entry is in, what follows it too.
            return self._storage.plan_read(read.ledger_id, read.first, read.first + _AHEAD, 1, sparse=False)
        stored = max(1, read.size) + _STORED_BYTES * min(read.count, read.size // BODY_BYTES_MIN + 1)
        limit = min(stored, READ_BYTES_MAX)
        return self._storage.plan_read(read.ledger_id, read.first, read.first + read.count - 1, limit, sparse=False)

    def _begin(self, read: _Read, left: int, size: int) -> None:
        """There is room for ``size`` bytes."""

        def ended(status: int, bodies: Sequence[bytes]) -> None:
            read.found(status, bodies)
            self._peer.flush()
            self._peer.part_ends(size)

        part = _Read(read.ledger_id, read.first, read.count, read.size, ended)
        with part.guarded():
            self._read_in_thread(part, left, size)

    def _read_in_thread(self, read: _Read, left: int, size: int) -> None:
        plan = self._plan(read)
        if not plan.pieces:
            read.found(Status.IO_ERROR if plan.refusal is None else status_of(plan.refusal), ())
            return
        if self._found_kept(read, plan):
            # Another read of the same batch was quicker.
            return
        fetch = partial(self._storage.files.fetch, plan.pieces, cached_only=False, bytes_max=size)
        try:
            reading = asyncio.wrap_future(self._storage.disk_threads.run(plan.pieces[0].where, fetch))
        except RuntimeError as error:
            log.warning("no thread for a read of ledger %d: %s", read.ledger_id, error)
            read.found(Status.TOO_MANY_REQUESTS, ())
            return

        def ended(reading: asyncio.Future[Fetched | None]) -> None:
            with read.guarded():
                error = None if reading.cancelled() else reading.exception()
                if error is not None:
                    log.error("a read of ledger %d failed", read.ledger_id, exc_info=error)
                fetched = None if error is not None or reading.cancelled() else reading.result()
                self._fetched(read, left, plan, fetched or Fetched([], Stop.FAILED), partial(self._again, size))

        reading.add_done_callback(ended)

    def _again(self, size: int, read: _Read, left: int) -> None:
        self._read_in_thread(read, left, size)

    def _fetched(
        self,
        read: _Read,
        left: int,
        plan: ReadPlan,
        fetched: Fetched,
        again: Callable[[_Read, int], None] | None = None,
    ) -> None:
        frames, stop = fetched
        if stop is not None and stop is not Stop.LIMIT:
            rest = plan.pieces[len(frames) :]
            self._storage.holdings.lose_unreadable(rest, stop)
            if not frames:
                if stop is Stop.FAILED or not left or not self._storage.has_moved(rest[0]):
                    read.found(Status.IO_ERROR, ())
                else:
                    (again or self._attempt)(read, left - 1)
                return
        if read.count == 1:
            read.found(Status.OK, (body_of(self._kept_batches.keep(plan.pieces[0], frames[0])),))
            return
        read.found(Status.OK, list(_within(_bodies(plan, frames), read.count, read.size)))


class _Read:
    """One read on its way. ``found`` is called once, whatever happens."""

    def __init__(self, ledger_id: int, first: int, count: int, size: int, found: Found) -> None:
        self.ledger_id, self.first, self.count, self.size = ledger_id, first, count, size
        self._found: Found | None = found

    def found(self, status: int, bodies: Sequence[bytes]) -> None:
        """Tell how the read ended."""
        told, self._found = self._found, None
        if told is not None:
            told(status, bodies)

    def guarded(self) -> _Guard:
        """Within the block, an error ends the read."""
        return _Guard(self)


class _Guard:
    def __init__(self, read: _Read) -> None:
        self._read = read

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, Exception):
            return False
        log.error("a read of ledger %d failed", self._read.ledger_id, exc_info=error)
        self._read.found(Status.IO_ERROR, ())
        return True


def _bodies(plan: ReadPlan, frames: Sequence[bytes | bytearray | memoryview]) -> Iterator[bytes]:
    for piece, frame in zip(plan.pieces, frames, strict=False):
        yield from map(body_of, EntryBatch(frame).entries(piece.first, piece.last))


def _within(bodies: Iterator[bytes], count: int, size: int) -> Iterator[bytes]:
    """As many bodies as take ``size`` bytes together, but one at least."""
    total = 0
    for body in islice(bodies, count):
        total += len(body) + 4
        if total > size and total > len(body) + 4:
            return
        yield body

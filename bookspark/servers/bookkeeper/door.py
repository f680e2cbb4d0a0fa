"""The bookie's second port: Apache BookKeeper's wire protocol, over the same storage.

Law: the port is off by default, and then nothing of this package is imported. Its connections count with the bookie's others
(``admission``), and its requests use the same loop and the same ``Storage``, so both protocols see the same state. It opens
before the bookie registers, and closes before the request server stops.

A bookie with a certificate requires TLS of these clients as well, with the same certificate and the same CA for theirs. The
protocol has no shared secret, so a bookie with a secret refuses to open this port.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import shutil
import socket
import ssl
import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from functools import partial
from itertools import islice
from time import monotonic
from typing import NamedTuple, cast

from bookspark.errors import BookieError
from bookspark.protocol.bookie.bookie_ledger import answer_last_add_confirmed
from bookspark.protocol.ledger.bookkeeper_keys import kept_key
from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX, NO_ENTRY, DigestType
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.servers.bookkeeper.digest_types import DigestTypes, ReadDigestType
from bookspark.servers.bookkeeper.entries import (
    BODY_BYTES_MIN,
    LAC_BODY_BYTES,
    body_of,
    confirmed_by,
    entry_of,
    lac_body_of,
)
from bookspark.servers.bookkeeper.messages import SCHEMA, BookieInfo, Operation
from bookspark.servers.bookkeeper.requests import (
    BATCH_HEAD_BYTES,
    MASTER_KEY_BYTES,
    Asked,
    RequestReceiver,
    answer,
    answer_adds,
    answer_auth,
    first_message_size,
)
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.holdings.reads import PART_BYTES, READ_BYTES_MAX, Fetched, Piece, ReadPlan, Stop
from bookspark.store.bookie.serving.admission import STRANGER_SECONDS, Admission, Stranger
from bookspark.store.bookie.serving.connection import Connection
from bookspark.store.bookie.serving.porch import Porch, listening_sockets
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.bookie.serving.server import BookieServer
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Buffer, Entry, EntryBatch, encode_entries, encode_one
from bookspark.store.wire.frames import HELLO_BYTES_MAX
from bookspark.store.wire.header import NO_KEY, Flag, Header, Kind, Status, WireError, status_of

log = logging.getLogger(__name__)


# -- Recently read batches, for reads of single entries: the next entry is mostly in the same batch
#
# Law: the key is the place of a batch, whose bytes never change, and only entries that the index has at this place are served.
# One bound, in bytes, holds for all connections of a bookie.
#
# BookKeeper's clients read each entry by itself. Reading, checking and decompressing its batch each time cost 150 µs an entry of
# 1 KiB.


_KEPT_BYTES_MAX = 8 << 20
_KEPT_BATCH_BYTES_MAX = 2 << 20


class KeptBatches:
    """The kept batches of one bookie. Owned by the loop."""

    def __init__(self, bytes_max: int = _KEPT_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._batches: OrderedDict[int, EntryBatch] = OrderedDict()
        self._bytes = 0

    def entry(self, piece: Piece) -> Entry | None:
        """The first entry of a planned piece, None if its batch is not kept."""
        batch = self._batches.get(piece.where)
        if batch is None or not batch.first_entry_id <= piece.first <= batch.last_entry_id:
            return None
        self._batches.move_to_end(piece.where)
        entry = batch.entry(piece.first)
        # As after a read: the frame itself names its ledger.
        return entry if entry.ledger_id == piece.ledger_id else None

    def keep(self, piece: Piece, frame: Buffer) -> Entry:
        """The first entry of a piece with a read frame; keeps the frame if it has more entries."""
        batch = EntryBatch(frame)
        size = len(batch.frame)
        if batch.count > 1 and size <= _KEPT_BATCH_BYTES_MAX and piece.frame is None:
            # A copy, because the read buffer is reused once no view of it is left.
            self._forget(piece.where)
            self._batches[piece.where] = EntryBatch(bytes(batch.frame))
            self._bytes += size
            while self._bytes > self._bytes_max:
                self._forget(next(iter(self._batches)))
        return batch.entry(piece.first)

    def _forget(self, where: int) -> None:
        batch = self._batches.pop(where, None)
        if batch is not None:
            self._bytes -= len(batch.frame)


# -- State shared by the connections of BookKeeper's clients.


_LACS_KEPT_MAX = 4096


class SharedByClients(NamedTuple):
    bookie: ServedBookie
    digest_types: DigestTypes
    lac_bodies: OrderedDict[int, bytes]
    """Signed explicit LACs of some ledgers."""
    kept_batches: KeptBatches
    disk_bytes: Callable[[], int]
    """Size of the bookie's disks, in bytes."""

    def when_lac_body(self, ledger_id: int, peer: Connection, told: Callable[[bytes | None], None]) -> None:
        """Call ``told``, now or later, with the newest explicit LAC of a ledger, signed. None: there is none, or only its number
        is kept, and its signature needs the password."""
        kept = self.lac_bodies.get(ledger_id)
        ledger = self.bookie.storage.holdings.ledger(ledger_id)
        confirmed = NO_ENTRY if ledger is None else ledger.explicit_last_add_confirmed
        if confirmed == NO_ENTRY or (kept is not None and confirmed_by(kept) >= confirmed):
            told(kept)
            return

        def known(digest_type: DigestType | None, status: int) -> None:
            made = None if digest_type is None else lac_body_of(ledger_id, confirmed, digest_type)
            if made is not None:
                self.keep_lac_body(ledger_id, made)
            told(made or kept)

        self.digest_types.when_known(ledger_id, True, 0, peer, known)

    def keep_lac_body(self, ledger_id: int, body: bytes) -> None:
        """Keep a signed explicit LAC, unless a later LAC is kept."""
        before = self.lac_bodies.pop(ledger_id, b"")
        # Both start with the ledger and the LAC in big-endian, so the larger is the later.
        self.lac_bodies[ledger_id] = max(before, body)
        if len(self.lac_bodies) > _LACS_KEPT_MAX:
            self.lac_bodies.popitem(last=False)


# -- Reads of entries


Found = Callable[[int, Sequence[bytes]], None]
"""``found(status, bodies)``: OK with the bodies of at least one entry, in their order, or the reason of none."""

_AHEAD = 1 << 20
"""A read of a single entry plans this many more ids, within its batch."""
_BATCHED_BYTES = 1 << 20
"""Approximate size of an answer to a batched read, if there is room. A shorter answer costs the client more round trips."""
_FLUSHED_BYTES = 64 << 10
_STORED_BYTES = 1 << 10
"""Bytes that an entry alone in its batch may take on the disk beyond its body."""
_ATTEMPTS = 5
"""Plans of a read whose entries move meanwhile."""


class EntryReads:
    """Reads entries for one connection, with the bookie's own checks.

    Law: as in ``bookie.serving.connection``. A failed read is never answered with a Negative."""

    def __init__(self, storage: Storage, peer: Connection, kept_batches: KeptBatches) -> None:
        self._storage = storage
        self._peer = peer
        self._kept_batches = kept_batches
        self._unflushed = 0
        """Bytes of entries answered on the loop since the last flush."""

    def read(self, ledger_id: int, first: int, count: int, size: int, found: Found) -> None:
        """Read at most ``count`` adjacent entries from ``first`` on, up to ``size`` bytes of bodies, but at least a single entry.
        ``found`` is called once, now or later."""
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
                # A flush shows a peer that does not read, before its next request is taken.
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
        """Answer a read of a single entry from a kept batch, if possible."""
        entry = self._kept_batches.entry(plan.pieces[0]) if read.count == 1 else None
        if entry is not None:
            read.found(Status.OK, (body_of(entry),))
        return entry is not None

    def _plan(self, read: _Read) -> ReadPlan:
        if read.count == 1:
            # The rest of the entry's batch is planned too.
            return self._storage.holdings.plan_read(read.ledger_id, read.first, read.first + _AHEAD, 1, sparse=False)
        stored = max(1, read.size) + _STORED_BYTES * min(read.count, read.size // BODY_BYTES_MIN + 1)
        limit = min(stored, READ_BYTES_MAX)
        return self._storage.holdings.plan_read(
            read.ledger_id, read.first, read.first + read.count - 1, limit, sparse=False
        )

    def _begin(self, read: _Read, left: int, size: int) -> None:
        """Read in a thread, with room for ``size`` bytes."""

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
            # Another read of the same batch came first.
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
                self._fetched(
                    read, left, plan, fetched or Fetched([], Stop.FAILED), partial(self._read_in_thread, size=size)
                )

        reading.add_done_callback(ended)

    def _fetched(
        self,
        read: _Read,
        left: int,
        plan: ReadPlan,
        fetched: Fetched,
        again: Callable[[_Read, int], None] | None = None,
    ) -> None:
        frames, stop = fetched
        self._storage.holdings.read_well(plan.pieces[: len(frames)])
        if stop is not None and stop is not Stop.LIMIT:
            rest = plan.pieces[len(frames) :]
            self._storage.holdings.read_ended(rest, stop)
            if not frames:
                if stop is Stop.FAILED or not left or not self._storage.holdings.has_moved(rest[0]):
                    read.found(Status.IO_ERROR, ())
                else:
                    (again or self._attempt)(read, left - 1)
                return
        if read.count == 1:
            read.found(Status.OK, (body_of(self._kept_batches.keep(plan.pieces[0], frames[0])),))
            return
        read.found(Status.OK, list(_within(_bodies(plan, frames), read.count, read.size)))


class _Read:
    """A read under way. ``found`` is called once, whatever happens."""

    def __init__(self, ledger_id: int, first: int, count: int, size: int, found: Found) -> None:
        self.ledger_id, self.first, self.count, self.size = ledger_id, first, count, size
        self._found: Found | None = found

    def found(self, status: int, bodies: Sequence[bytes]) -> None:
        told, self._found = self._found, None
        if told is not None:
            told(status, bodies)

    def guarded(self) -> _Guard:
        """A context in which an exception ends the read."""
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
    """The leading bodies that fit into ``size`` bytes, at least one."""
    total = 0
    for body in islice(bodies, count):
        total += len(body) + 4
        if total > size and total > len(body) + 4:
            return
        yield body


# -- The list of a ledger's held entries, for BookKeeper's clients and its auditor
#
# Law: the list has exactly the ids of its ranges. Runs of ids of equal length and distance, as in a striped ledger, share a
# group; runs beyond a group's numbers take several::
#
#     64 bytes   i32 version 0 │ i32 count of groups │ zeros
#     24 bytes   of each group: i64 first id of its first run │ i64 first id of its last run │ i32 ids in a run │ i32 distance
#                from run to run, 0 if there is one
#
# Source: BookKeeper's ``AvailabilityOfEntriesOfLedger``.


_HEADER = struct.Struct(">ii56x")
_GROUP = struct.Struct(">qqii")
_INT_MAX = (1 << 31) - 1


def list_of_entries(ranges: Iterable[tuple[int, int]]) -> bytes:
    """The list for ``ranges`` (first, last) of entry ids, which ascend and do not touch."""
    groups: list[tuple[int, int, int, int]] = []
    for start, count in _runs(ranges):
        if groups:
            first, last, length, period = groups[-1]
            distance = start - last
            if length == count < distance <= _INT_MAX and period in (0, distance):
                groups[-1] = first, start, length, distance
                continue
        groups.append((start, start, count, 0))
    return b"".join((_HEADER.pack(0, len(groups)), *(_GROUP.pack(*group) for group in groups)))


def _runs(ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """First id and length of runs that fit into a group."""
    for first, last in ranges:
        for start in range(first, last + 1, _INT_MAX):
            yield start, min(_INT_MAX, last + 1 - start)


# -- Adds, gathered into entry batches


ALL = Assignment(0, 1, 1, 0)
"""BookKeeper's clients name no assignment of entries to a bookie, and read no LastAddSynced."""
_RECOVERY, _VOLATILE = int(Flag.RECOVERY), int(Flag.VOLATILE)
_TOGETHER_MAX = 512
_TOGETHER_BYTES_MAX = 1 << 20


def key_of(asked: Asked) -> bytes:
    """The bookie's stored form of the request's master key. Raises WireError without a key."""
    if len(asked.master_key) != MASTER_KEY_BYTES:
        raise WireError(f"a master key of {len(asked.master_key)} bytes; BookKeeper's have {MASTER_KEY_BYTES}")
    return kept_key(asked.master_key)


class _Add(NamedTuple):
    asked: Asked
    entry: Entry


class GatheredAdds:
    """The adds of one ``peer`` in this turn of the loop, of one ledger with consecutive ids.

    Law: they are added as one batch, and each is answered. If the batch is refused because of a conflict, each is added by
    itself.

    Source: BookKeeper's ``WriteEntryProcessorV3``."""

    def __init__(
        self,
        shared: SharedByClients,
        peer: Connection,
        answer: Callable[[Sequence[Asked], int], None],
        refuse: Callable[[Asked, str], None],
    ) -> None:
        """``answer(adds, status)``: answers adds of one ledger. ``refuse(add, why)``: refuses an invalid add."""
        self._digest_types = shared.digest_types
        self._storage = shared.bookie.storage
        self._peer = peer
        self._answer = answer
        self._refuse = refuse
        self._loop = asyncio.get_running_loop()
        self._adds: list[_Add] = []
        self._digest_type = DigestType.BOOKKEEPER_CRC32C
        self._bytes = 0

    def add(self, asked: Asked) -> None:
        """Take an add. It is answered later, once its ledger's digest type is known. Raises WireError."""
        if self._adds and self._goes_with(self._adds[-1].asked, asked):
            # The checks of the add before hold here too.
            self._gather(asked, self._digest_type)
            return
        key_of(asked)
        if asked.entry_id < 0:
            raise WireError(f"an add of entry {asked.entry_id}")
        known = partial(self._add_of_type, asked)
        is_held = self._storage.holdings.ledger(asked.ledger_id) is not None
        self._digest_types.when_known(asked.ledger_id, is_held, len(asked.body), self._peer, known)

    def _add_of_type(self, asked: Asked, digest_type: DigestType | None, status: int) -> None:
        if digest_type is None:
            self._answer((asked,), status)
            return
        if not digest_type.bookkeepers:
            self._refuse(
                asked, f"ledger {asked.ledger_id} has digest {digest_type.value}, which is none of BookKeeper's"
            )
            return
        if self._adds and not self._goes_with(self._adds[-1].asked, asked):
            self.add_gathered()
        self._digest_type = digest_type
        self._gather(asked, digest_type)

    def _gather(self, asked: Asked, digest_type: DigestType) -> None:
        recovery = asked.flags & _RECOVERY != 0
        try:
            entry = entry_of(asked.body, asked.ledger_id, asked.entry_id, digest_type, recovery=recovery)
        except WireError as error:
            self._refuse(asked, str(error))
            return
        if not self._adds:
            self._loop.call_soon(self.add_gathered)
        self._adds.append(_Add(asked, entry))
        self._bytes += len(asked.body)

    def _goes_with(self, last: Asked, asked: Asked) -> bool:
        """May ``asked`` join the batch of the add before it?"""
        return (
            last.entry_id + 1 == asked.entry_id
            and last.ledger_id == asked.ledger_id
            and (last.version, last.flags, last.master_key) == (asked.version, asked.flags, asked.master_key)
            and len(self._adds) < _TOGETHER_MAX
            and self._bytes + len(asked.body) <= _TOGETHER_BYTES_MAX
        )

    def add_gathered(self) -> None:
        """Add the gathered entries, before the peer's next request."""
        adds, self._adds, self._bytes = self._adds, [], 0
        if adds:
            self._add_together(adds)

    def _add_together(self, adds: list[_Add]) -> None:
        first, last = adds[0].asked, adds[-1].asked
        self._storage.looks.asker = self._peer
        header = Header(
            Kind.ADD,
            0,
            first.ledger_id,
            first.entry_id,
            last.entry_id,
            max(add.entry.last_add_confirmed for add in adds),
            first.flags,
            master_key=kept_key(first.master_key),
        )
        if first.flags & _VOLATILE:
            header = header.with_assignment(ALL)

        def added(status: int) -> None:
            if status == Status.CONFLICT and len(adds) > 1:
                for add in adds:
                    self._add_together([add])
                return
            self._answer([add.asked for add in adds], status)

        try:
            if len(adds) == 1:
                [(_, entry)] = adds
                frame: bytes | bytearray = encode_one(header, entry.length, entry.payload, entry.digest)
            else:
                frame = encode_entries(header, [add.entry for add in adds])
            if len(frame) > FRAME_BYTES_MAX:
                raise WireError(f"a batch of {len(frame)} bytes")
            self._storage.add(header, EntryBatch(frame), added)
        except Exception:
            log.exception("adds %r from %s failed", first, self._peer.peer)
            added(Status.IO_ERROR)


# -- Dispatch


_FENCE, _ENTRY = int(Flag.FENCE), int(Flag.ENTRY)
_ALONE = "AuthDisabledPlugin"
"""Answer of a BookKeeper bookie without authentication to an AUTH."""
_LONG_POLL_MS_MAX = 300_000
_COUNT_MAX = 1 << 20
_ANSWER_BYTES = 1 << 10
"""Bytes of an answer beside its content."""
_LAST_ENTRY = -1
_ADD = Operation.ADD_ENTRY
_NO_FIELDS: Mapping[str, object] = {}
_KINDS = {one: f"bookkeeper_{one.name.lower()}" for one in Operation}


class Dispatch:
    """Takes the requests of one ``peer``, and passes them to the same ``Storage`` as our protocol.

    Law: nothing is decided here. Each request becomes a call of ``Storage``, with BookKeeper's ids and the 16 stored bytes of its
    master key; the answer is the storage's, in BookKeeper's codes. Each request is answered once, unless the connection ends
    first.

    A read of entry −1 reads the last held entry, for its LAC. It is refused while the bookie may lack entries (limbo). The signed
    body of an explicit LAC, which BookKeeper's clients read back, is kept in memory only, and rebuilt where its digest needs no
    password; otherwise, after a restart, readers learn the LAC from the entries.

    Source: BookKeeper's ``ReadEntryProcessorV3``, ``LongPollReadEntryProcessorV3``, ``ReadLacProcessorV3``,
    ``WriteLacProcessorV3``, ``ForceLedgerProcessorV3``, ``GetBookieInfoProcessorV3``, ``GetListOfEntriesOfLedgerProcessorV3``."""

    def __init__(self, shared: SharedByClients, peer: Connection) -> None:
        self._shared = shared
        self._bookie = shared.bookie
        self._storage = shared.bookie.storage
        self._peer = peer
        self._loop = asyncio.get_running_loop()
        self._reads = EntryReads(self._storage, peer, shared.kept_batches)
        self._under_way = 0
        self._adds = GatheredAdds(shared, peer, self._answer_adds, self._refuse)
        self._polls: dict[int, tuple[int, asyncio.TimerHandle]] = {}
        """By their numbers in ``storage.long_polls``: ledger and timer."""

    def end(self) -> None:
        for poll, (ledger_id, timer) in self._polls.items():
            timer.cancel()
            self._storage.long_polls.remove(ledger_id, poll)
        self._polls.clear()
        # Earlier adds are still added, as if the end had come a moment later.
        self._adds.add_gathered()

    def handle(self, asked: Asked) -> None:
        """Take one request. It is answered now or later, on the loop; raises nothing."""
        self._under_way += 1
        self._storage.looks.asker = self._peer
        try:
            is_add = asked.operation is _ADD
            if not is_add:
                self._adds.add_gathered()
            if self._under_way > self._bookie.requests_in_flight_max:
                self._answer(asked, Status.TOO_MANY_REQUESTS)
            elif is_add and 0 <= asked.ledger_id <= BOOKKEEPERS_LEDGER_ID_MAX:
                self._adds.add(asked)
            elif asked.operation is Operation.AUTH:
                self._under_way -= 1
                self._peer.send(answer_auth(asked, _ALONE))
            elif asked.operation is Operation.GET_BOOKIE_INFO:
                self._bookie_info(asked)
            elif asked.operation is Operation.START_TLS:
                self._refuse(asked, "this bookie speaks no TLS with clients of BookKeeper")
            elif not 0 <= asked.ledger_id <= BOOKKEEPERS_LEDGER_ID_MAX:
                self._refuse(asked, f"ledger ids go from 0 to {BOOKKEEPERS_LEDGER_ID_MAX}")
            else:
                self._of_a_ledger(asked)
        except WireError as error:
            self._refuse(asked, str(error))
        except Exception:
            log.exception("request %r from %s failed", asked, self._peer.peer)
            self._answer(asked, Status.IO_ERROR)

    def _of_a_ledger(self, asked: Asked) -> None:
        match asked.operation:
            case Operation.READ_ENTRY | Operation.BATCH_READ_ENTRY:
                self._read(asked)
            case Operation.READ_LAC:
                self._read_lac(asked)
            case Operation.WRITE_LAC:
                self._write_lac(asked)
            case Operation.FORCE_LEDGER:
                self._force(asked)
            case Operation.GET_LIST_OF_ENTRIES:
                self._list_of_entries(asked)
            case other:
                self._refuse(asked, f"{other.name} is not served")

    # -- answers

    def _answer(
        self, asked: Asked, status: int, bodies: Sequence[bytes] = (), fields: Mapping[str, object] = _NO_FIELDS
    ) -> None:
        self._under_way -= 1
        self._storage.traffic.answers[_KINDS[asked.operation], status] += 1
        self._peer.send(answer(asked, status, bodies, fields))

    def _answer_adds(self, adds: Sequence[Asked], status: int) -> None:
        self._under_way -= len(adds)
        if status == Status.OK:
            self._peer.added()
        self._storage.traffic.answers[_KINDS[Operation.ADD_ENTRY], status] += len(adds)
        self._peer.send(answer_adds(adds, status))

    def _refuse(self, asked: Asked, why: str) -> None:
        self._bookie.refusals.tell(self._peer.peer, f"{asked!r}: {why}")
        # After BAD_REQUEST a client changes the ensemble and repeats the add elsewhere, without end.
        self._answer(asked, Status.UNAUTHORIZED if asked.operation is Operation.ADD_ENTRY else Status.BAD_REQUEST)

    # -- reads

    def _read(self, asked: Asked) -> None:
        if asked.entry_id < _LAST_ENTRY:
            raise WireError(f"a read of entry {asked.entry_id}")
        if asked.flags & _FENCE:
            key = key_of(asked)
            self._storage.fence(asked.ledger_id, key, partial(self._read_fenced, asked))
        elif not self._storage.holdings.may_read(asked.ledger_id, NO_KEY):
            self._answer(asked, Status.UNAUTHORIZED)
        elif asked.previous_lac is not None:
            self._long_poll(asked, asked.previous_lac)
        else:
            self._read_entries(asked)

    def _read_fenced(self, asked: Asked, status: int) -> None:
        if status == Status.OK:
            self._read_entries(asked)
        else:
            self._answer(asked, status)

    def _read_entries(self, asked: Asked) -> None:
        entry_id = asked.entry_id
        if entry_id == _LAST_ENTRY:
            found = self._last_entry(asked.ledger_id)
            if found is None:
                self._loop.call_soon(self._read_entries, asked)
                return
            status, entry_id = found
            if status != Status.OK:
                self._answer(asked, status)
                return
        batch = asked.operation is Operation.BATCH_READ_ENTRY
        count = (asked.entries_max or _COUNT_MAX) if batch else 1
        size = max(asked.size - BATCH_HEAD_BYTES, 0) if batch else FRAME_BYTES_MAX
        self._reads.read(asked.ledger_id, entry_id, count, size, partial(self._found, asked))

    def _found(self, asked: Asked, status: int, bodies: Sequence[bytes]) -> None:
        fields = {"maxLac": self._confirmed(asked.ledger_id)} if asked.version == 3 else {}
        self._answer(asked, status, bodies, fields)

    def _confirmed(self, ledger_id: int) -> int:
        ledger = self._storage.holdings.ledger(ledger_id)
        return NO_ENTRY if ledger is None else ledger.last_add_confirmed

    def _last_entry(self, ledger_id: int) -> tuple[Status, int] | None:
        """The last held entry, for its LAC, with OK; or the status of a refusal. None: ask again in another turn of the loop."""
        ledger = self._storage.holdings.ledger(ledger_id)
        if ledger is None:
            return status_of(self._storage.holdings.absent(ledger_id)), NO_ENTRY
        status = status_of(answer_last_add_confirmed(ledger))
        if status != Status.OK:
            return status, NO_ENTRY
        last = self._storage.holdings.last_entry_id(ledger_id)
        if last is None:
            return None
        if last == NO_ENTRY:
            # The storage knows whether absence proves anything.
            refusal = self._storage.holdings.plan_read(ledger_id, 0, 0, 0, sparse=False).refusal
            status = Status.IO_ERROR if refusal is None else status_of(refusal)
        return status, last

    def _long_poll(self, asked: Asked, previous: int) -> None:
        """Answer once the LAC exceeds ``previous``, or at the time-out; with the next entry if requested."""
        if asked.flags & _ENTRY and asked.entry_id != _LAST_ENTRY:
            raise WireError(f"a long poll with an entry asks for entry −1, not {asked.entry_id}")
        if self._confirmed(asked.ledger_id) > previous or asked.timeout_ms <= 0:
            self._answer_poll(asked, previous)
            return
        if len(self._polls) >= self._bookie.requests_in_flight_max:
            self._answer(asked, Status.TOO_MANY_REQUESTS)
            return

        def finish() -> None:
            _, timer = self._polls.pop(poll)
            self._peer.polls(-1)
            timer.cancel()
            self._storage.long_polls.remove(asked.ledger_id, poll)
            self._under_way += 1
            try:
                self._answer_poll(asked, previous)
            except Exception:
                log.exception("long poll %r from %s failed", asked, self._peer.peer)
                self._answer(asked, Status.IO_ERROR)

        # A waiting poll costs next to nothing, so it does not count as a request under way.
        self._under_way -= 1
        self._peer.polls(1)
        poll = self._storage.long_polls.add(asked.ledger_id, previous + 1, finish)
        seconds = min(asked.timeout_ms, _LONG_POLL_MS_MAX) / 1000
        self._polls[poll] = (asked.ledger_id, self._loop.call_later(seconds, finish))

    def _answer_poll(self, asked: Asked, previous: int) -> None:
        if not asked.flags & _ENTRY:
            self._read_entries(asked)
            return
        ledger = self._storage.holdings.ledger(asked.ledger_id)
        if ledger is None:
            self._answer(asked, status_of(self._storage.holdings.absent(asked.ledger_id)))
            return
        confirmed = ledger.last_add_confirmed
        status = status_of(answer_last_add_confirmed(ledger))
        if status != Status.OK or confirmed <= previous:
            self._answer(asked, status, fields={"maxLac": confirmed})
            return

        def found(status: int, bodies: Sequence[bytes]) -> None:
            if status == Status.OK:
                self._answer(asked._replace(entry_id=previous + 1), status, bodies, {"maxLac": confirmed})
            else:
                # The LAC alone is an answer too; the client reads the entry elsewhere.
                self._answer(asked, Status.OK, fields={"maxLac": confirmed})

        self._reads.read(asked.ledger_id, previous + 1, 1, FRAME_BYTES_MAX, found)

    # -- the LAC

    def _read_lac(self, asked: Asked) -> None:
        if not self._storage.holdings.may_read(asked.ledger_id, NO_KEY):
            self._answer(asked, Status.UNAUTHORIZED)
            return
        self._shared.when_lac_body(asked.ledger_id, self._peer, partial(self._read_lac_beside, asked))

    def _read_lac_beside(self, asked: Asked, explicit: bytes | None) -> None:
        fields: dict[str, object] = {} if explicit is None else {"lacBody": explicit}
        last_entry = self._last_entry(asked.ledger_id)
        if last_entry is None:
            self._loop.call_soon(self._read_lac_beside, asked, explicit)
            return
        status, last = last_entry
        if status != Status.OK:
            alone = status == Status.NO_SUCH_ENTRY and explicit is not None
            self._answer(asked, Status.OK if alone else status, fields=fields)
            return

        def found(status: int, bodies: Sequence[bytes]) -> None:
            for body in bodies:
                fields["lastEntryBody"] = body
            self._answer(asked, status, fields=fields)

        self._reads.read(asked.ledger_id, last, 1, FRAME_BYTES_MAX, found)

    def _write_lac(self, asked: Asked) -> None:
        """Note the LAC of the body. BookKeeper's client fills in the field first: after an acknowledgement in between the body
        has the later LAC, which is the writer's word as well."""
        if asked.entry_id < NO_ENTRY:
            raise WireError("an explicit LAC is an entry id")
        body, size_max = asked.body, LAC_BODY_BYTES + MASTER_KEY_BYTES
        if not LAC_BODY_BYTES <= len(body) <= size_max or body[:8] != asked.ledger_id.to_bytes(8, "big"):
            raise WireError(f"the body of an explicit LAC is none of ledger {asked.ledger_id}")
        confirmed = confirmed_by(body)
        if confirmed < asked.entry_id:
            raise WireError(f"the body of explicit LAC {asked.entry_id} names an earlier one: {confirmed}")

        def written(status: int) -> None:
            if status == Status.OK and confirmed >= 0:
                self._shared.keep_lac_body(asked.ledger_id, asked.body)
            self._answer(asked, status)

        self._storage.write_last_add_confirmed(asked.ledger_id, key_of(asked), confirmed, written)

    # -- the rest

    def _force(self, asked: Asked) -> None:
        """Sync the adds with the deferred sync flag. The request has no master key, and needs none: a sync reveals nothing."""
        ledger = self._storage.holdings.ledger(asked.ledger_id)
        key = NO_KEY if ledger is None or ledger.master_key is None else ledger.master_key
        self._storage.sync(asked.ledger_id, key, ALL, partial(self._answer, asked))

    def _list_of_entries(self, asked: Asked) -> None:
        """List the held entries once they are durable. Others may be missing here, so absence from the list proves nothing."""
        if self._storage.holdings.ledger(asked.ledger_id) is None:
            self._answer(asked, status_of(self._storage.holdings.absent(asked.ledger_id)))
            return
        if not self._storage.holdings.may_read(asked.ledger_id, NO_KEY):
            self._answer(asked, Status.UNAUTHORIZED)
            return

        def told(ranges: list[tuple[int, int]] | None) -> None:
            found = b"" if ranges is None else list_of_entries(ranges)
            if ranges is None or len(found) > FRAME_BYTES_MAX - _ANSWER_BYTES:
                self._answer(asked, Status.IO_ERROR)
            else:
                self._answer(asked, Status.OK, fields={"availability": found})
            self._peer.read_ends()

        # Its ranges are held until they are durable.
        self._peer.read_begins()
        self._storage.held_ranges(asked.ledger_id, told)

    def _bookie_info(self, asked: Asked) -> None:
        fields = {}
        if asked.size & BookieInfo.TOTAL_BYTES:
            fields["totalDiskCapacity"] = self._shared.disk_bytes()
        if asked.size & BookieInfo.FREE_BYTES:
            fields["freeDiskSpace"] = self._storage.status().free_bytes
        self._answer(asked, Status.OK, fields=fields)


# -- The connection


class _Stage(Enum):
    IN_CLEAR_TEXT = "START_TLS has to come"
    SHAKING_HANDS = "TLS has begun"
    OPEN = "requests are served"


class BookKeeperConnection(Connection):
    """A client of BookKeeper on a socket: our flow control, with BookKeeper's frames.

    Law: as in ``bookie.serving.connection``. The protocol has no greeting, and a first request may be a long add. So a connection
    is greeted as soon as its first bytes are the start of a request (``requests.first_message_size``).

    A bookie with a certificate serves no client in clear text. There a connection begins with START_TLS, is a stranger until the
    end of the TLS handshake, and counts with the handshakes of the other port. Earlier requests are answered UNAUTHORIZED. Bytes
    behind START_TLS are read through TLS alone, because they would pass for protected ones; bytes that came with it end the
    connection.

    Source: BookKeeper's ``BookieRequestProcessor.processStartTLSRequestV3`` (which also serves clients without TLS)."""

    def __init__(
        self,
        shared: SharedByClients,
        admission: Admission,
        chunks: ChunkPool,
        stranger: Stranger,
        address: str,
        porch: Porch,
        tls: ssl.SSLContext | None,
    ) -> None:
        """``tls``: context of this connection; None serves in clear text."""
        self._shared = shared
        self._caller = stranger
        self._porch = porch
        self._tls = tls
        self._stage = _Stage.OPEN if tls is None else _Stage.IN_CLEAR_TEXT
        self._early: list[Asked] = []
        """Requests that arrived over TLS before this side knew the end of the handshake."""
        self._shaking: asyncio.Task[None] | None = None
        super().__init__(shared.bookie, admission, chunks, stranger, address)
        self.name_peer("BookKeeper")

    def receiver(self, chunks: ChunkPool) -> RequestReceiver:
        return RequestReceiver(chunks, FRAME_BYTES_MAX if self._tls is None else HELLO_BYTES_MAX)

    @property
    def _requests(self) -> RequestReceiver:
        return cast(RequestReceiver, self._receiver)

    def received(self, count: int) -> Iterator[Asked]:
        requests = self._requests.requests(count)
        match self._stage:
            case _Stage.OPEN:
                return requests
            case _Stage.SHAKING_HANDS:
                self._early += requests
            case _Stage.IN_CLEAR_TEXT:
                self._take_in_clear_text(requests)
        return iter(())

    def requests(self, bookie: ServedBookie) -> Dispatch:
        return Dispatch(self._shared, self)

    def refusal(self, why: str) -> bytes:
        """Empty: BookKeeper's protocol has no such frame."""
        return b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self._stage is _Stage.OPEN:
            self.greeted()

    def adjust_reading(self) -> None:
        if self._stage is not _Stage.SHAKING_HANDS:
            super().adjust_reading()

    # -- TLS

    def _take_in_clear_text(self, requests: Iterator[Asked]) -> None:
        for asked in requests:
            if asked.operation is Operation.START_TLS:
                if next(requests, None) is not None or not self._requests.is_empty:
                    raise WireError("bytes in clear text behind START_TLS")
                self._stage = _Stage.SHAKING_HANDS
                # TLS resumes it. The ClientHello may arrive before the bookie's turn to take it.
                assert self._transport is not None
                self._transport.pause_reading()
                self.send(answer(asked, Status.OK))
                self.flush()
                self._shaking = asyncio.get_running_loop().create_task(self._shake_hands())
            elif asked.operation is Operation.AUTH:
                raise WireError("AUTH in clear text, and this bookie serves clients with TLS alone")
            else:
                self.send(answer(asked, Status.UNAUTHORIZED))

    async def _shake_hands(self) -> None:
        raw, context = self._transport, self._tls
        if raw is None or context is None:
            return
        while (wait := self._porch.wait_for_handshake(self._caller)) > 0:
            await asyncio.sleep(wait)
            if self._transport is None:
                return
        self._porch.shakes_hands(self._caller)
        try:
            secured = await asyncio.get_running_loop().start_tls(
                raw, self, context, server_side=True, ssl_handshake_timeout=STRANGER_SECONDS
            )
        except OSError as error:
            self._refusals.tell(self.peer, error)
            raw.abort()
            return
        finally:
            self._porch.handshakes.pop(self._caller, None)
        if secured is None or self._transport is None:
            # The connection ended meanwhile.
            raw.abort()
            return
        self._stage = _Stage.OPEN
        self.goes_on_over(secured)
        self.greeted()
        early, self._early = self._early, []
        self.take(iter(early))


# -- The port


class BookKeeperDoor:
    """The port ``bookkeeper_port`` of one bookie. All calls run on the loop of ``server``, which has to be started."""

    def __init__(self, config: BookieConfig, server: BookieServer, read_digest_type: ReadDigestType) -> None:
        """Open nothing yet. ``read_digest_type``: reads the metadata, in a thread. Raises MissingExtraError."""
        # Import the library and build the schema before the first client waits.
        SCHEMA.message("Request"), SCHEMA.message("Response")
        self._config = config
        self._server = server
        self._read_digest_type = read_digest_type
        self._porch: Porch | None = None
        self._digest_types: DigestTypes | None = None

    async def start(self) -> tuple[str, int]:
        """Listen and serve; returns host and port. Raises BookieError if the bookie can't listen there."""
        loop = asyncio.get_running_loop()
        host, port = self._config.host, max(self._config.bookkeeper_port, 0)
        try:
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            listening = listening_sockets([(family, address) for family, *_, address in found], port)
        except OSError as error:
            why = "is in use" if error.errno == errno.EADDRINUSE else f"can't be listened on: {error}"
            raise BookieError(f"bookkeeper_port {port} on {host} {why}; set bookkeeper_port to another one") from error
        bookie, admission, chunks = self._server.behind
        self._digest_types = DigestTypes(self._read_digest_type, bookie.storage.looks)
        disks = partial(_disk_bytes, tuple(bookie.storage.directories))
        disk_bytes = await loop.run_in_executor(None, disks)
        shared = SharedByClients(bookie, self._digest_types, OrderedDict(), KeptBatches(), lambda: disk_bytes)

        def connection(stranger: Stranger, address: str) -> BookKeeperConnection:
            return BookKeeperConnection(shared, admission, chunks, stranger, address, porch, self._server.tls())

        # The porch sees START_TLS in clear text; TLS starts later.
        porch = self._porch = Porch(
            admission, connection, bookie.incarnation, lambda: None, bookie.refusals, first_message_size
        )
        self._porch.open(listening)
        address = listening[0].getsockname()
        return address[0], address[1]

    async def stop(self) -> None:
        """Accept nothing more. The connections end with those of the request server."""
        if self._porch is not None and self._digest_types is not None:
            await self._porch.close()
            self._digest_types.close()
            self._porch = None


def _disk_bytes(directories: tuple[str, ...]) -> int:
    return sum(shutil.disk_usage(directory).total for directory in directories)

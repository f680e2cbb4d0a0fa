"""A client's connection to a bookie: frames in, answers out, with bounds on both. ``Dispatch`` answers the requests.

Law: invalid bytes end the connection, after a frame with the reason. While a peer does not read its answers, its requests wait in
the bookie too, and no more entries are read for them from the logs. They also wait while too many of its reads are under way.
Answers are gathered and written once per turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from struct import Struct
from time import monotonic
from typing import Any, NamedTuple, Protocol, cast

import msgspec

from bookspark.protocol.bookie.bookie_ledger import answer_last_add_confirmed
from bookspark.protocol.bookie.peer_memory import NOTHING_HELD, Held
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX, NO_ENTRY
from bookspark.store.bookie.disk.index import log_of
from bookspark.store.bookie.disk.rewritten_log import RewrittenLog
from bookspark.store.bookie.holdings.reads import PART_BYTES, READ_BYTES_MAX, Fetched, ReadPlan, Stop
from bookspark.store.bookie.serving.admission import Admission, Stranger
from bookspark.store.bookie.serving.served_bookie import ServedBookie, WriterConnection
from bookspark.store.bookie.storage import Storage
from bookspark.store.decisions.seam import decided
from bookspark.store.wire.batch_prefix import PREFIX_BYTES
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.columns import Buffer, consecutive, offsets_of, repeated
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, EntryBatch, encode_pieces, with_header
from bookspark.store.wire.frames import HELLO_BYTES_MAX, Frame, FrameReceiver, control_frame
from bookspark.store.wire.header import NO_KEY, PROTOCOL_VERSION, Flag, Header, Kind, Status, WireError, status_of
from bookspark.store.wire.keepalive import notice_lost_peer
from bookspark.store.wire.messages import Acks, Challenge, EntryLogFacts, EntryLogs, FetchFrom, Hello, Limbo
from bookspark.store.wire.security import NONCE_BYTES, Exchange, ServerContext, new_nonce, proof, proven

log = logging.getLogger(__name__)


# -- Answers to the requests of one connection: their headers, and the count of unanswered requests.
#
# Law: each request is answered once, unless the connection ends first. An answer carries the LAC (last add confirmed) and LAFR
# (last add fully replicated) of the request's ledger and, for a request of a volatile ledger, LastAddSynced.


_VOLATILE = int(Flag.VOLATILE)
_RECOVERY = int(Flag.RECOVERY)
_RESPONSE = int(Flag.RESPONSE)
_ADD, _SYNC = int(Kind.ADD), int(Kind.SYNC)
_OK = int(Status.OK)
_ADDED = _ADD, _OK


class Answers:
    """Builds the answers to one ``peer`` and sends them."""

    def __init__(self, bookie: ServedBookie, peer: Connection) -> None:
        self._storage = bookie.storage
        self._answered = bookie.storage.traffic.answers
        self._incarnation = bookie.incarnation
        self._refusals = bookie.refusals
        self._peer = peer
        self._send = peer.send
        self.under_way = 0
        """Unanswered requests. The code that takes a request counts it here."""

    def answer(self, request: Header, status: int, *, value: int = 0, body: bytes = b"", limit: int = 0) -> None:
        """Answer ``request`` with a control frame. Its entry ids are the request's; a caller with other ids replaces them in
        ``request``."""
        self.under_way -= 1
        self._answered[request.kind, status] += 1
        ledger = self._storage.holdings.ledger(request.ledger_id)
        confirmed, replicated = NO_ENTRY, NO_ENTRY
        if ledger is not None:
            confirmed, replicated = ledger.last_add_confirmed, ledger.last_add_fully_replicated
        synced = NO_ENTRY
        if status == _OK and (request.kind == _SYNC or (request.kind == _ADD and request.flags & _VOLATILE)):
            synced = self._storage.volatile.last_add_synced(request.ledger_id, request.assignment())
        header = Header(
            request.kind,
            request.request_id,
            request.ledger_id,
            request.first_entry_id,
            request.last_entry_id,
            confirmed,
            _RESPONSE,
            status,
            replicated,
            synced,
            self._incarnation,
            NO_KEY,
            limit,
            value,
        )
        self._send(control_frame(header, body))

    def acknowledge(self, request: Header) -> None:
        """Answer OK to an add of a non-volatile ledger, together with other adds (``acks_frame``)."""
        self.under_way -= 1
        self._answered[_ADDED] += 1
        self._peer.acknowledge(request.request_id)

    def refuse(self, request: Header, why: str) -> None:
        """Answer BAD_REQUEST, with ``why`` as the body, for people."""
        self._refusals.tell(self._peer.peer, why)
        self.answer(request, Status.BAD_REQUEST, body=why.encode())


def acks_frame(incarnation: int, request_ids: Sequence[int]) -> bytes:
    header = Header(Kind.ACKS, 0, flags=_RESPONSE, incarnation=incarnation, value=len(request_ids))
    return control_frame(header, Acks.encode(request_ids))


def refusal_frame(incarnation: int, why: str) -> bytes:
    """The last frame of a connection refused for bad bytes or for want of room."""
    header = Header(Kind.REFUSAL, 0, flags=_RESPONSE, status=Status.BAD_REQUEST, incarnation=incarnation)
    return control_frame(header, why.encode())


# -- Reads of entries: stored batches, then an answer with the reason of their end.
#
# Law: a stored batch gets a new prefix with the answer's header, and its body is not copied. Adjacent short batches are joined
# after their checks, so an answer does not depend on the borders of batches in the log. An answer is read and sent in parts, so
# that the client checks a part while the bookie reads the next. A part is read once the peer has taken earlier parts and there
# is room for it (``read_room``), so a peer that does not read holds only a few parts. Cached pages are read on the loop, one
# part in each turn; the rest by a thread of its disk. Each part is planned by itself, because entries may move to another log
# meanwhile. An unreadable copy is given up.


# -- Joining of adjacent short batches
#
# Law: the rows are those of the batches, verbatim and in order, so every digest stays valid. Only whole batches are joined, of
# one ledger, with consecutive ids.
#
# Adds of single entries leave a batch for each in the log. Its header, prefix and two checksums cost a reader twenty times as
# much as joining costs here.


SHORT_BYTES_MAX = 8 << 10
"""Batches up to this size are joined; longer ones stay as they are."""
JOINED_BYTES_MAX = 256 << 10
"""Approximate limit of a joined batch."""

_ROW = Struct("<qqqqii")
"""The only row of a batch with one entry: ledger, entry, last add confirmed, length, and the payload's offsets."""
_TWO_INTS = Struct("<ii")


def runs(batches: Iterable[EntryBatch]) -> Iterator[list[EntryBatch]]:
    """The batches in order, grouped into runs to be joined."""
    run: list[EntryBatch] = []
    size = after = 0
    for batch in batches:
        bytes_more = len(batch.frame)
        short = bytes_more <= SHORT_BYTES_MAX
        if run and (not short or batch.first_entry_id != after or size + bytes_more > JOINED_BYTES_MAX):
            yield run
            run, size = [], 0
        run.append(batch)
        if short:
            size, after = size + bytes_more, batch.first_entry_id + batch.count
        else:
            yield run
            run, size = [], 0
    if run:
        yield run


def joined(batches: Sequence[EntryBatch], header: Header) -> bytearray:
    """One frame under ``header`` with the rows of adjacent ``batches``."""
    confirmed: list[Buffer] = []
    lengths: list[Buffer] = []
    payload_sizes: list[int] = []
    payloads: list[Buffer] = []
    digest_sizes: list[int] = []
    digests: list[Buffer] = []
    for batch in batches:
        count = batch.count
        if count == 1:
            frame = batch.frame
            payload_bytes = _ROW.unpack_from(frame, PREFIX_BYTES)[5]
            at = PREFIX_BYTES + _ROW.size
            confirmed.append(frame[PREFIX_BYTES + 16 : PREFIX_BYTES + 24])
            lengths.append(frame[PREFIX_BYTES + 24 : PREFIX_BYTES + 32])
            payloads.append(frame[at : at + payload_bytes])
            at += (payload_bytes + 7) & -8
            digest_bytes = _TWO_INTS.unpack_from(frame, at)[1]
            at += _TWO_INTS.size
            digests.append(frame[at : at + digest_bytes])
            payload_sizes.append(payload_bytes)
            digest_sizes.append(digest_bytes)
            continue
        confirmed.append(batch.column(2).cast("B"))
        lengths.append(batch.column(3).cast("B"))
        payload_offsets, payload, digest_offsets, digest = batch.binary_columns()
        payload_sizes += _sizes(payload_offsets.tolist())
        digest_sizes += _sizes(digest_offsets.tolist())
        payloads.append(payload)
        digests.append(digest)
    first, total = batches[0], len(payload_sizes)
    columns = (
        repeated(first.ledger_id, total),
        consecutive(first.first_entry_id, total),
        b"".join(confirmed),
        b"".join(lengths),
        offsets_of(payload_sizes),
        offsets_of(digest_sizes),
    )
    return encode_pieces(header, columns, payloads, sum(payload_sizes), b"".join(digests))


def _sizes(offsets: Sequence[int]) -> Iterable[int]:
    return map(int.__sub__, offsets[1:], offsets)


# -- The reads


_FENCE, _SPARSE = int(Flag.FENCE), int(Flag.SPARSE)
_MORE = int(Flag.RESPONSE | Flag.MORE)

_CARRIED_BYTES_MAX = 64 << 10
"""Longer batches do not accompany a LAC: every bookie of the ensemble may get that request at once."""


class _Answer(NamedTuple):
    """Progress of the answer to a read."""

    first: int
    sent: int
    left: int
    """Approximate bytes left."""
    cached: bool
    """Is the page cache tried first? No longer once a thread was needed."""
    begun: float
    """By ``monotonic``."""


class EntryReads:
    """Answers the READ requests of one connection."""

    def __init__(self, bookie: ServedBookie, peer: Connection, answers: Answers) -> None:
        self._bookie = bookie
        self._storage = bookie.storage
        self._traffic = bookie.storage.traffic
        self._peer = peer
        self._answers = answers
        self._loop = asyncio.get_running_loop()

    def read(self, header: Header) -> None:
        """Answer a READ. With FENCE the ledger is fenced first, durably."""
        if not 0 <= header.first_entry_id <= header.last_entry_id:
            self._answers.refuse(header, f"a read of entries {header.first_entry_id}..{header.last_entry_id}")
        elif header.flags & _FENCE:
            self._storage.fence(header.ledger_id, header.master_key, partial(self._read_fenced, header))
        else:
            send, refuse = partial(self._send_entries, header), partial(self._answer_without_entries, header)
            self._storage.when_readable(header.ledger_id, header.master_key, send, refuse)

    def send_along(self, header: Header, entry_id: int) -> None:
        """Send the batch of one entry ahead of another answer, if it is cached and short."""
        plan = self._storage.holdings.plan_read(header.ledger_id, entry_id, entry_id, 0, sparse=False)
        if all(piece.size <= _CARRIED_BYTES_MAX for piece in plan.pieces):
            fetched = self._storage.files.fetch(plan.pieces, cached_only=True)
            self._send_batches(header, plan, () if fetched is None else fetched.frames)

    def _read_fenced(self, header: Header, status: int) -> None:
        if status == Status.OK:
            self._send_entries(header)
        else:
            self._answer_without_entries(header, status)

    def _answer_without_entries(self, header: Header, status: int) -> None:
        self._answers.answer(header._replace(last_entry_id=header.first_entry_id - 1), status)

    def _send_entries(self, header: Header) -> None:
        self._peer.read_begins()
        limit = min(header.limit or READ_BYTES_MAX, READ_BYTES_MAX)
        self._next(header, _Answer(header.first_entry_id, 0, limit, True, monotonic()))

    def _plan(self, header: Header, answer: _Answer, size: int = PART_BYTES) -> ReadPlan:
        """Plan the next part of an answer, of ``size`` bytes at most unless it is a single batch."""
        plan = self._storage.holdings.plan_read(
            header.ledger_id,
            answer.first,
            header.last_entry_id,
            min(answer.left, size),
            sparse=bool(header.flags & _SPARSE),
        )
        return _within(plan, size)

    def _next(self, header: Header, answer: _Answer) -> None:
        self._guarded(header, answer, 0, partial(self._go_on, header, answer))

    def _go_on(self, header: Header, answer: _Answer) -> None:
        """Send the next part if that needs no wait, and leave the rest to the next turn of the loop. Otherwise wait until the
        peer has taken earlier parts, or for a thread."""
        plan = self._plan(header, answer)
        size = max(PART_BYTES, plan.pieces[0].size) if plan.pieces else PART_BYTES
        if answer.cached and self._peer.takes(size):
            fetched = self._fetch_cached(plan)
            if fetched is not None:
                following = self._send_part(header, answer, plan, fetched)
                # If the socket takes these frames now, their memory serves the next part, and the reader checks them meanwhile. A
                # peer that does not read is noticed before its next request is taken.
                del fetched
                self._peer.flush()
                if following is None:
                    self._peer.read_ends()
                else:
                    self._loop.call_soon(self._next, header, following)
                return
            answer = answer._replace(cached=False)
        self._peer.when_it_takes(size, partial(self._begin_part, header, answer))

    def _begin_part(self, header: Header, answer: _Answer, size: int) -> None:
        self._guarded(header, answer, size, partial(self._read_part, header, answer, size))

    def _guarded(self, header: Header, answer: _Answer, size: int, act: Callable[[], None]) -> None:
        """Run ``act``; its failure fails the read. ``size``: of the part under way, 0 if none."""
        try:
            act()
        except Exception:
            log.exception("read %r from %s failed", header, self._peer.peer)
            self._end(header, answer, Status.IO_ERROR, size)

    def _end(self, header: Header, answer: _Answer, status: int, size: int) -> None:
        self._answers.answer(header._replace(last_entry_id=answer.first - 1), status, value=answer.sent)
        self._traffic.reads.observe(monotonic() - answer.begun)
        if size:
            self._peer.part_ends(size)
        self._peer.read_ends()

    def _read_part(self, header: Header, answer: _Answer, size: int) -> None:
        """Read the next part, in a thread unless it is cached. There is room for ``size`` bytes."""
        plan = self._plan(header, answer, size)
        where = next((piece.where for piece in plan.pieces if piece.frame is None), None)
        fetched = self._fetch_cached(plan, size) if answer.cached or where is None else None
        if fetched is not None or where is None:
            self._part_read(header, answer, plan, size, fetched or Fetched([]))
            return
            # The read opens a closed log, and its next entries may well be cached.
        after = answer._replace(cached=not self._storage.files.is_open(log_of(where)))
        fetch = partial(self._storage.files.fetch, plan.pieces, cached_only=False, bytes_max=size)
        try:
            reading = asyncio.wrap_future(self._storage.disk_threads.run(where, fetch))
        except RuntimeError as error:
            log.warning("no thread for the read %r: %s", header, error)
            self._end(header, answer, Status.TOO_MANY_REQUESTS, size)
            return
        ended = partial(self._thread_ended, header, after, plan, size)
        reading.add_done_callback(lambda reading: self._guarded(header, answer, size, partial(ended, reading)))

    def _fetch_cached(self, plan: ReadPlan, size: int = PART_BYTES) -> Fetched | None:
        return self._storage.files.fetch(plan.pieces, cached_only=True, bytes_max=size)

    def _thread_ended(
        self, header: Header, answer: _Answer, plan: ReadPlan, size: int, reading: asyncio.Future[Fetched | None]
    ) -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            log.error("read %r failed", header, exc_info=error)
        fetched = None if error is not None or reading.cancelled() else reading.result()
        self._part_read(header, answer, plan, size, fetched or Fetched([], Stop.FAILED))

    def _part_read(self, header: Header, answer: _Answer, plan: ReadPlan, size: int, fetched: Fetched) -> None:
        following = self._send_part(header, answer, plan, fetched)
        self._peer.flush()
        self._peer.part_ends(size)
        if following is None:
            self._peer.read_ends()
        else:
            # The part has ended, and a later failure must not end it twice.
            self._next(header, following)

    def _send_part(self, header: Header, answer: _Answer, plan: ReadPlan, fetched: Fetched) -> _Answer | None:
        """Send a part. Returns the progress; None if this was the last part, which answers for the id after it."""
        frames, stop = fetched
        sent = answer.sent + self._send_batches(header, plan, frames)
        left = answer.left - sum(map(len, frames))
        end, status = plan.end, Status.OK if plan.refusal is None else status_of(plan.refusal)
        self._storage.holdings.read_well(plan.pieces[: len(frames)])
        if stop is not None and plan.pieces:
            following = plan.pieces[len(frames)]
            self._storage.holdings.read_ended(plan.pieces[len(frames) :], stop)
            if stop is not Stop.LIMIT and self._storage.holdings.has_moved(following):
                # The next plan reads another copy, or reports the entry as lost.
                return answer._replace(first=following.first, sent=sent, left=max(left, 1))
            end, status = following.first - 1, Status.OK if stop is Stop.LIMIT else Status.IO_ERROR
        if status == Status.OK and end < header.last_entry_id and left > 0:
            return answer._replace(first=end + 1, sent=sent, left=left)
        self._answers.answer(header._replace(last_entry_id=end), status, value=sent)
        self._traffic.reads.observe(monotonic() - answer.begun)
        return None

    def _send_batches(self, header: Header, plan: ReadPlan, frames: Sequence[Buffer]) -> int:
        """Send the frames of a plan's first pieces; returns the number of entries."""
        ledger = self._storage.holdings.ledger(header.ledger_id)
        if ledger is None:
            return 0
        answer = Header(
            header.kind,
            header.request_id,
            header.ledger_id,
            last_add_confirmed=ledger.last_add_confirmed,
            flags=_MORE,
            last_add_fully_replicated=ledger.last_add_fully_replicated,
            incarnation=self._bookie.incarnation,
        )
        sent = 0
        whole: list[EntryBatch] = []
        for piece, frame in zip(plan.pieces, frames, strict=False):
            batch = EntryBatch(frame)
            if batch.first_entry_id == piece.first and batch.last_entry_id == piece.last:
                whole.append(batch)
            else:
                self._send_whole(whole, answer)
                whole = []
                part = answer._replace(first_entry_id=piece.first, last_entry_id=piece.last)
                self._peer.send(batch.slice(piece.first, piece.last, part))
            sent += piece.last - piece.first + 1
        self._send_whole(whole, answer)
        self._traffic.entries_out += sent
        self._traffic.bytes_out += sum(map(len, frames))
        return sent

    def _send_whole(self, batches: Sequence[EntryBatch], answer: Header) -> None:
        for run in runs(batches):
            first, last = run[0], run[-1]
            part = answer._replace(first_entry_id=first.first_entry_id, last_entry_id=last.last_entry_id)
            if len(run) > 1:
                self._peer.send(joined(run, part))
            else:
                self._peer.send(*with_header(first.frame, part))


def _within(plan: ReadPlan, size: int) -> ReadPlan:
    """The leading pieces of a plan that fit into ``size`` bytes of the logs, at least one."""
    total = 0
    for count, piece in enumerate(plan.pieces):
        total += piece.size
        if count and total > size:
            return ReadPlan(plan.pieces[:count], piece.first - 1, None)
    return plan


# -- Reads of a ledger's LAC (last add confirmed), and long polls


_ENTRY = int(Flag.ENTRY)
_LONG_POLL_MS_MAX = 300_000


class LacReads:
    """Answers the READ_LAC requests of one connection.

    Law: a read with FENCE is answered after the fence is durable, and never Negative. A long poll is answered once the LAC
    reaches its entry, or at its time-out; also for an unknown ledger. It costs next to nothing, so it does not count as a request
    under way, which would block adds of the same connection; long polls have a bound of their own, as high as that of
    requests."""

    def __init__(self, bookie: ServedBookie, peer: Connection, answers: Answers, entries: EntryReads) -> None:
        self._peer = peer
        self._storage = bookie.storage
        self._polls_max = bookie.requests_in_flight_max
        self._answers = answers
        self._entries = entries
        self._loop = asyncio.get_running_loop()
        self._timers = bookie.poll_timers
        self._writers = bookie.writers
        self._polls: dict[int, tuple[Header, tuple[int, int]]] = {}
        """Long polls of the connection, by their numbers in ``storage.long_polls``."""

    def end(self) -> None:
        for poll, (header, timer) in self._polls.items():
            self._timers.remove(timer)
            self._storage.long_polls.remove(header.ledger_id, poll)
        self._polls.clear()

    def read(self, header: Header) -> None:
        if header.flags & _FENCE:
            self._storage.fence(header.ledger_id, header.master_key, partial(self._answer, header))
        else:
            refuse = partial(self._answers.answer, header._replace(last_entry_id=NO_ENTRY))
            self._storage.when_readable(
                header.ledger_id, header.master_key, partial(self._read_granted, header), refuse
            )

    def _read_granted(self, header: Header) -> None:
        ledger = self._storage.holdings.ledger(header.ledger_id)
        confirmed = NO_ENTRY if ledger is None else ledger.last_add_confirmed
        if header.limit and confirmed < header.first_entry_id:
            self._poll(header)
        else:
            self._answer(header, _OK)

    def _answer(self, header: Header, status: int) -> None:
        last = self._storage.holdings.last_entry_id(header.ledger_id)
        if last is None:
            self._loop.call_soon(self._answer, header, status)
            return
        ledger = self._storage.holdings.ledger(header.ledger_id)
        if status == Status.OK:
            status = status_of(
                self._storage.holdings.absent(header.ledger_id)
                if ledger is None
                else decided(answer_last_add_confirmed, ledger)
            )
        if status == _OK and header.flags & _ENTRY and ledger is not None:
            wanted = header.first_entry_id
            if 0 <= wanted <= ledger.last_add_confirmed:
                self._entries.send_along(header, wanted)
        connected = self._writers.is_connected(header.ledger_id)
        self._answers.answer(header, status, value=last, limit=int(connected))

    def _poll(self, header: Header) -> None:
        def finish() -> None:
            _, timer = self._polls.pop(poll)
            self._peer.polls(-1)
            self._timers.remove(timer)
            self._storage.long_polls.remove(header.ledger_id, poll)
            self._answers.under_way += 1
            self._answer(header, _OK)

        if len(self._polls) >= self._polls_max:
            self._answers.answer(header, Status.TOO_MANY_REQUESTS)
            return
        self._answers.under_way -= 1
        self._peer.polls(1)
        poll = self._storage.long_polls.add(header.ledger_id, header.first_entry_id, finish)
        self._polls[poll] = (header, self._timers.add(min(header.limit, _LONG_POLL_MS_MAX) / 1000, finish))


# -- Lists of a serving bookie's logs, and of its ledgers in limbo
#
# Law: nothing is changed, and no disk is read. A log is listed from its first entry until the removal of its file.


ROWS_MAX = 1 << 11
"""Rows of one answer. The loop builds it in some milliseconds."""


def entry_logs(storage: Storage, start: int) -> tuple[EntryLogs, int]:
    """The logs from number ``start`` on, at most 2,048, also of failed directories; and the next ``start``, −1 at the end."""
    logs = storage.holdings.logs
    numbers = sorted(number for number in logs if number >= start)
    found = []
    for number in numbers[:ROWS_MAX]:
        directory, stored = logs[number]
        sealed = directory in storage.holdings.live and directory.is_sealed(stored)
        rewritten = isinstance(stored, RewrittenLog)
        found.append(EntryLogFacts(number, stored.path, stored.end, stored.synced, sealed, rewritten))
    return EntryLogs(found), numbers[ROWS_MAX] if len(numbers) > ROWS_MAX else -1


def limbo(storage: Storage, ledger_id: int, limit: int) -> tuple[Limbo, int]:
    """The ledgers in limbo from ``ledger_id`` on, at most ``limit`` and 2,048; and the next ``ledger_id``, −1 at the end."""
    limit = min(limit or ROWS_MAX, ROWS_MAX)
    found = storage.lossy_boots.limbo(ledger_id, limit + 1)
    return Limbo(found[:limit]), found[limit][0] if len(found) > limit else -1


# -- Dispatch


_BEFORE_HELLO_MAX = 16
_SOURCE_BYTES_MAX = 4 << 10
"""Limit of the source of a FETCH, which waits in the bookie."""
_OF_A_LEDGER = frozenset((Kind.READ, Kind.READ_LAC, Kind.WRITE_LAC, Kind.SYNC, Kind.RANGES, Kind.LIMBO, Kind.FETCH))
"""Requests with a ledger id, besides ADD. Other kinds may leave it out."""
_NO_LEDGER_ID = f"ledger ids go from 0 to {LEDGER_ID_MAX}"


class Dispatch:
    """Takes the requests of one ``peer``: checks and counts each, and gives it to the handler of its kind.

    Law: each request is answered once, unless the connection ends first. A frame with a readable header and bad content is
    answered BAD_REQUEST, an internal fault IO_ERROR, never a Negative. The first request is HELLO; a bookie with a secret serves
    no peer without a proof of it (``wire.security``), and takes only a few requests until then. A wrong proof ends the
    connection, and the peer's address pauses: its proofs wait, right ones as well, and are judged together at the pause's end. So
    a right client waits for one pause at most, however many guess beside it. Parallel guesses get as many tries a pause as there
    are places for strangers, too few for a secret of 16 random bytes. An impossible ledger id is refused in every request."""

    def __init__(self, bookie: ServedBookie, peer: Connection) -> None:
        self._bookie = bookie
        self._storage = bookie.storage
        self._looks = bookie.storage.looks
        self._peer = peer
        self._answers = Answers(bookie, peer)
        self._entries = EntryReads(bookie, peer, self._answers)
        self._lacs = LacReads(bookie, peer, self._answers, self._entries)
        self._writes = WriterConnection()
        self._wrote = bookie.writers.wrote
        self._greeted = False
        self._exchange: Exchange | None = None
        """The exchange that the peer's proof has to match; None: the peer was not asked for a proof."""
        self._judging: asyncio.TimerHandle | None = None
        """The peer's proof, while it waits for its turn."""
        self._before_hello = 0
        """Requests before the greeting."""

    def end(self) -> None:
        self._lacs.end()
        self._writes.is_open = False
        if self._judging is not None:
            self._judging.cancel()
        if self._exchange is not None:
            self._bookie.refusals.tell(self._peer.peer, "it did not prove the shared secret")

    def handle(self, frame: Frame) -> None:
        """Handle one request; the answer may come later, on the loop. Raises nothing."""
        header = frame.header
        answers = self._answers
        answers.under_way += 1
        self._looks.asker = self._peer
        try:
            if not self._greeted:
                self._before_hello += 1
                if self._before_hello > _BEFORE_HELLO_MAX:
                    self._peer.refuse(f"{_BEFORE_HELLO_MAX} requests came, and none was a HELLO that can be granted")
                    return
            if answers.under_way > self._bookie.requests_in_flight_max:
                answers.answer(header, Status.TOO_MANY_REQUESTS)
            elif header.kind == _ADD:
                self._add(frame)
            elif frame.batch is not None:
                answers.refuse(header, f"kind {header.kind} is not asked for with a batch")
            elif header.kind == Kind.HELLO:
                self._hello(header, frame.body)
            elif not self._greeted:
                answers.refuse(header, "the first request of a connection is HELLO")
            elif not (0 if header.kind in _OF_A_LEDGER else -1) <= header.ledger_id <= LEDGER_ID_MAX:
                answers.refuse(header, _NO_LEDGER_ID)
            else:
                self._answer_by_kind(header, frame.body)
        except WireError as error:
            answers.refuse(header, str(error))
        except Exception:
            log.exception("request %r from %s failed", header, self._peer.peer)
            answers.answer(header, Status.IO_ERROR)

    def _answer_by_kind(self, header: Header, body: memoryview) -> None:
        match header.kind:
            case Kind.READ:
                self._entries.read(header)
            case Kind.READ_LAC:
                self._lacs.read(header)
            case Kind.WRITE_LAC:
                self._write_last_add_confirmed(header)
            case Kind.SYNC:
                self._sync(header)
            case Kind.RANGES:
                self._ranges(header)
            case Kind.STATUS:
                self._answers.answer(header, _OK, body=msgspec.json.encode(self._bookie.status()))
            case Kind.ENTRY_LOGS:
                logs, following = entry_logs(self._storage, header.value)
                self._answers.answer(header, _OK, value=following, body=logs.encode())
            case Kind.LIMBO:
                found, following = limbo(self._storage, header.ledger_id, header.limit)
                self._answers.answer(header, _OK, value=following, body=found.encode())
            case Kind.COLLECT:
                log.info("%s asked for a collection", self._peer.peer)
                self._answers.answer(header, _OK, value=self._bookie.collect())
            case Kind.SWITCH_READ_ONLY:
                log.warning("%s switches read-only %s", self._peer.peer, "on" if header.value else "off")
                self._storage.switch_read_only(bool(header.value), partial(self._answers.answer, header), header.limit)
            case Kind.FETCH:
                self._fetch(header, body)
            case unknown:
                self._answers.refuse(header, f"unknown kind {unknown}")

    def _hello(self, header: Header, body: memoryview) -> None:
        if header.value < PROTOCOL_VERSION:
            self._answers.refuse(header, f"protocol version {header.value}; this bookie speaks {PROTOCOL_VERSION}")
            return
        hello = Hello.decode(body)
        secrets = self._bookie.secrets()
        if self._judging is not None:
            self._peer.refuse("a HELLO came before the one with the proof was answered")
        elif not secrets:
            self._welcome(header, hello)
        elif not hello.proof:
            self._challenge(header, hello, secrets)
        else:
            loop = asyncio.get_running_loop()
            wait = self._bookie.wrong_proofs.wait(self._peer.origin, loop.time())
            if wait:
                self._judging = loop.call_later(wait, self._judge, header, hello)
            else:
                self._judge(header, hello)

    def _challenge(self, header: Header, hello: Hello, secrets: tuple[bytes, ...]) -> None:
        """Prove the secrets to a peer that sent a nonce, and ask it for its proof."""
        body = b""
        if hello.nonce:
            if len(hello.nonce) != NONCE_BYTES:
                raise WireError(f"a nonce of {len(hello.nonce)} bytes")
            bookie = self._bookie
            self._exchange = exchange = Exchange(
                hello.nonce, new_nonce(), bookie.bookie_id, bookie.address(), self._peer.certificate_hash
            )
            proofs = [proof(secret, "bookie", exchange) for secret in secrets]
            body = Challenge(exchange.bookie_id, exchange.address, exchange.bookie_nonce, proofs).encode()
        self._answers.answer(header, Status.UNAUTHORIZED, body=body)

    def _judge(self, header: Header, hello: Hello) -> None:
        """Serve the peer if its proof is right."""
        self._judging = None
        exchange, self._exchange = self._exchange, None
        if exchange is not None and proven(self._bookie.secrets(), "client", [hello.proof], exchange) is not None:
            self._welcome(header, hello)
            return
        self._bookie.wrong_proofs.spend(self._peer.origin, asyncio.get_running_loop().time())
        self._bookie.refusals.tell(self._peer.peer, "a wrong proof of the shared secret")
        self._answers.answer(header, Status.UNAUTHORIZED)
        self._peer.refuse("a wrong proof of the shared secret")

    def _welcome(self, header: Header, hello: Hello) -> None:
        if hello.client:
            self._peer.name_peer(hello.client)
        self._greeted, self._exchange = True, None
        self._peer.greeted()
        self._answers.answer(header, _OK, value=PROTOCOL_VERSION, body=self._bookie.bookie_id.encode())

    def _add(self, frame: Frame) -> None:
        header = frame.header
        if not self._greeted:
            self._answers.refuse(header, "the first request of a connection is HELLO")
        elif frame.batch is None or header.first_entry_id < 0:
            self._answers.refuse(header, "an add is a batch of entries of one ledger, with ids from 0")
        elif not 0 <= header.ledger_id <= LEDGER_ID_MAX:
            self._answers.refuse(header, _NO_LEDGER_ID)
        else:
            if header.flags & _VOLATILE:
                # Raises WireError for an invalid assignment.
                header.assignment()
            batch = EntryBatch.checked(frame.batch, header, frame.body_crc)
            if not header.flags & _RECOVERY:
                self._wrote(header.ledger_id, self._writes)
            self._storage.add(header, batch, partial(self._added, header))

    def _added(self, header: Header, status: int) -> None:
        if status == _OK:
            self._peer.added()
        if status != _OK or header.flags & _VOLATILE:
            self._answers.answer(header, status)
        else:
            self._answers.acknowledge(header)

    def _write_last_add_confirmed(self, header: Header) -> None:
        if header.last_add_confirmed < NO_ENTRY:
            self._answers.refuse(header, "an explicit LAC is an entry id")
            return
        self._wrote(header.ledger_id, self._writes)
        self._storage.write_last_add_confirmed(
            header.ledger_id,
            header.master_key,
            header.last_add_confirmed,
            partial(self._answers.answer, header),
            header.last_add_fully_replicated,
        )

    def _sync(self, header: Header) -> None:
        assignment = header.assignment()
        self._wrote(header.ledger_id, self._writes)
        self._storage.sync(header.ledger_id, header.master_key, assignment, partial(self._answers.answer, header))

    def _fetch(self, header: Header, body: memoryview) -> None:
        fetch = self._bookie.fetch()
        if fetch is None:
            self._answers.refuse(header, "this bookie fetches nothing from others")
        elif len(body) > _SOURCE_BYTES_MAX:
            self._answers.refuse(header, f"a source of {len(body)} bytes; at most {_SOURCE_BYTES_MAX} are allowed")
        elif not 0 <= header.first_entry_id <= header.last_entry_id:
            self._answers.refuse(header, f"a fetch of entries {header.first_entry_id}..{header.last_entry_id}")
        else:
            fetch(header, FetchFrom.decode(body), partial(self._fetched, header))

    def _fetched(self, header: Header, status: int, last: int, byte_count: int, why: str) -> None:
        self._answers.answer(header._replace(last_entry_id=last), status, value=byte_count, body=why.encode())

    def _ranges(self, header: Header) -> None:
        ranges, ledger_id, first = self._storage.holdings.ranges(
            header.ledger_id, max(header.first_entry_id, 0), header.limit, only=header.value == 1
        )
        answered = header._replace(first_entry_id=first)
        # It holds up to 100 KB until its rows are durable, so it counts as a read.
        self._peer.read_begins()
        # A comparison of copies relies on listed copies, so a power cut must not take them back.
        self._storage.when_durable(ranges, partial(self._listed, answered, ledger_id, ranges.encode()))

    def _listed(self, header: Header, following: int, ranges: bytes, status: int) -> None:
        if status == _OK:
            self._answers.answer(header, _OK, value=following, body=ranges)
        else:
            self._answers.answer(header, status)
        self._peer.read_ends()


# -- The connection


_JOINED_BYTES_MAX = 64 << 10
_WRITE_BUFFER_BYTES_MAX = 64 << 10
_GATHERED_BYTES_MAX = 256 << 10
"""Answers of one turn of the loop until they are written, which shows a peer that does not read."""
_POLL_BYTES = 1 << 10
"""Approximate memory of a waiting long poll."""
_POLLS_TOLD = 64
_READS_MAX = 8
_LARGE_PART_BYTES = 1 << 20
"""Size of a part while there is much room."""
_PARTS_MAX = 4
"""Parts of answers read for one peer at the same time."""
_PARTING_SECONDS = 10.0
"""Time of a refused peer to end the connection."""


class Requests(Protocol):
    """Takes the requests of a connection, one after the other."""

    def handle(self, frame: Any) -> None:
        """Handle one request; the answer may come later. Raises nothing."""

    def end(self) -> None:
        """The connection has ended."""


class Connection(asyncio.BufferedProtocol):
    """A client on a socket, an ``admission.Admitted``. ``porch`` creates it after the first message. A connection with another
    protocol overrides ``receiver``, ``requests`` and ``refusal``."""

    def __init__(
        self, bookie: ServedBookie, admission: Admission, chunks: ChunkPool, stranger: Stranger, address: str
    ) -> None:
        self._admission = admission
        self._stranger: Stranger | None = stranger
        """None after the greeting."""
        self.origin = stranger.origin
        self.heard = 0
        self._incarnation = bookie.incarnation
        self._refusals = bookie.refusals
        self._loop = asyncio.get_running_loop()
        self._receiver = self.receiver(chunks)
        self._transport: asyncio.Transport | None = None
        self._refused: asyncio.Transport | None = None
        """Transport of a refused peer. ``_transport`` is None then."""
        self._address = address
        self.peer = address
        """Address and name, for log lines."""
        self._dispatch = self.requests(bookie)
        self._answers: list[Buffer] = []
        self._gathered = 0
        """Bytes in ``_answers``."""
        self._acks: list[int] = []
        """Request ids of the adds acknowledged in this turn of the loop."""
        self._waiting: Iterator[Any] | None = None
        """Requests behind unread answers, or behind too many reads. They wait in the receive buffer."""
        self._has_added = False
        self._polls = 0
        self._looks = bookie.storage.looks
        self._asking = 0
        """Bytes of requests that wait for metadata."""
        self._memory = NOTHING_HELD
        """The memory that the admission knows of."""
        self._reads = 0
        self._room = bookie.read_room
        self._parts: deque[tuple[int, Callable[[int], None]]] = deque()
        """Parts of answers behind earlier parts: size, and the function that reads the part."""
        self._parts_asked = 0
        """Parts being read, or waiting for room."""
        self._part_bytes = 0
        """Bytes of the parts being read."""
        self._aborted = False
        self._writing_paused = False
        self._reading_paused = False
        self._going_on = False
        """Is ``_go_on`` running? Its own work may call it again."""

    # -- the protocol

    def receiver(self, chunks: ChunkPool) -> FrameReceiver:
        """The parser of the incoming bytes."""
        return FrameReceiver(chunks, frame_bytes_max=HELLO_BYTES_MAX)

    def received(self, count: int) -> Iterator[Any]:
        """The requests that ``count`` more bytes complete. Raises WireError."""
        return self._receiver.received(count)

    def requests(self, bookie: ServedBookie) -> Requests:
        """The handler of the requests."""
        return Dispatch(bookie, self)

    def refusal(self, why: str) -> bytes:
        """The last frame to a peer that sent invalid bytes."""
        return refusal_frame(self._incarnation, why)

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._aborted:
            self.abort()
            return
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        notice_lost_peer(transport.get_extra_info("socket"))

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._refused = None
        self._waiting = None
        self._parts.clear()
        self._room.forget(self)
        self._answers.clear()
        self._acks.clear()
        self._dispatch.end()
        self._looks.forget(self)
        # Breaking this reference cycle frees the connection at once. A request without an answer still holds it, not its buffer.
        del self._dispatch
        self._receiver = FrameReceiver()
        stranger, self._stranger = self._stranger, None
        self._admission.lost(stranger, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, count: int) -> None:
        if self._transport is None:
            # The bytes of a refused peer are dropped.
            return
        admission = self._admission
        self.heard = admission.heard = admission.heard + 1
        if admission.heard_last is not self:
            admission.turn_to(self)
        try:
            frames = self.received(count)
        except WireError as error:
            self._refuse_bytes(error)
        else:
            # A waiting iterator brings these requests too.
            if self._waiting is None:
                self.take(frames)
        admission.check_pressure()
        self.adjust_reading()
        if self._memory is not NOTHING_HELD or not self._receiver.is_at_rest:
            self._tell_memory()

    def take(self, frames: Iterator[Any]) -> None:
        """Handle requests. The rest waits until the peer has read its answers."""
        self._waiting = frames
        self._handle_waiting()

    def _handle_waiting(self) -> None:
        waiting = self._waiting
        try:
            while waiting is not None and not self._is_behind():
                frame = next(waiting, None)
                if frame is None:
                    self._waiting = None
                    return
                self._dispatch.handle(frame)
                # A refusal drops the rest.
                waiting = self._waiting
        except WireError as error:
            self._refuse_bytes(error)

    def _refuse_bytes(self, error: WireError) -> None:
        self._refusals.tell(self.peer, error)
        self.refuse(str(error))

    def goes_on_over(self, transport: asyncio.Transport) -> None:
        """Use ``transport``, which runs over the earlier one, for answers and requests from now on."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        self._reading_paused = False
        self.adjust_reading()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._hold()
        self.adjust_reading()
        self._tell_memory()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._hold()
        self._go_on()
        self._tell_memory()

    def greeted(self) -> None:
        """Allow all requests from now on: TLS, the secret and HELLO are through."""
        stranger, self._stranger = self._stranger, None
        if stranger is not None:
            self._receiver.frame_bytes_max = FRAME_BYTES_MAX
            self._admission.greeted(stranger, self)

    def name_peer(self, name: str) -> None:
        self.peer = f"{self._address} ({name[:80]!r})"

    @property
    def certificate_hash(self) -> bytes:
        """SHA-256 of the certificate that the bookie showed the peer; b"" without TLS."""
        context = None if self._transport is None else self._transport.get_extra_info("sslcontext")
        return context.certificate_hash if isinstance(context, ServerContext) else b""

    # -- flow

    def read_begins(self) -> None:
        self._reads += 1

    def read_ends(self) -> None:
        self._reads -= 1
        self._go_on()

    @property
    def is_served(self) -> bool:
        return self._reads > 0 or self._writing_paused or self._waiting is not None or bool(self._parts)

    @property
    def unsent_bytes(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def takes(self, size: int) -> bool:
        """Has the peer taken all earlier parts, and is there room for ``size`` bytes more?"""
        behind = self._transport is None or self._writing_paused or self._parts
        return not behind and self._room.has_room(self, size)

    def when_it_takes(self, size: int, begin: Callable[[int], None]) -> None:
        """Call ``begin``, now or later, once the peer has taken all earlier parts and there is room for ``size`` bytes. Its
        argument is the granted size, which may be larger. ``part_ends`` has to follow with that size. Nothing is called after the
        end of the connection."""
        if self._transport is not None:
            self._parts.append((size, begin))
            self._loop.call_soon(self._go_on)

    def part_ends(self, size: int) -> None:
        self._parts_asked -= 1
        self._part_bytes -= size
        self._hold()
        self._loop.call_soon(self._go_on)

    def _begin_part(self, size: int, begin: Callable[[int], None]) -> None:
        if self._transport is not None:
            self._part_bytes += size
            self._hold()
            begin(size)

    def _hold(self) -> None:
        if self._transport is not None:
            unsent = self.unsent_bytes if self._writing_paused else 0
            self._room.hold(self, self._part_bytes + unsent)

    def _is_behind(self) -> bool:
        return self._writing_paused or self._reads >= _READS_MAX

    def _go_on(self) -> None:
        """Handle held requests, and read parts of answers, as long as the peer and the disk keep up."""
        if self._going_on:
            # The loops below see the change. A recursive call for each held request would need as deep a stack.
            return
        self._going_on = True
        try:
            self._handle_waiting()
            while self._parts and not self._writing_paused and self._parts_asked < _PARTS_MAX:
                size, begin = self._parts.popleft()
                if self._room.is_roomy(_LARGE_PART_BYTES):
                    # Each part costs a switch of threads.
                    size = max(size, _LARGE_PART_BYTES)
                self._parts_asked += 1
                self._room.ask(self, size, partial(self._begin_part, size, begin))
        finally:
            self._going_on = False
        self.adjust_reading()
        if self._memory is not NOTHING_HELD:
            self._tell_memory()

    def adjust_reading(self) -> None:
        pause = self._waiting is not None or self._writing_paused or self._admission.paused
        if self._transport is None or self._transport.is_closing() or pause == self._reading_paused:
            return
        self._reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def refuse(self, why: str) -> None:
        """Send the peer the reason, read nothing more, and give it a moment to end the connection: a socket closed with unread
        bytes resets the connection, and the reset would overtake the reason."""
        transport = self._transport
        if transport is None:
            return
        self.send(self.refusal(why))
        self.flush()
        self._transport, self._refused = None, transport
        self._waiting = None
        self._parts.clear()
        self._room.forget(self)
        self._looks.forget(self)
        self._tell_memory()
        self._receiver = FrameReceiver()
        if self._writing_paused:
            # The peer reads no reason.
            transport.abort()
            return
        if transport.can_write_eof():
            transport.write_eof()
        self._loop.call_later(_PARTING_SECONDS, transport.abort)

    def release(self) -> None:
        self._receiver.shrink()
        bound = self._memory.bound
        self._memory = self._memory._replace(slack=0) if bound else NOTHING_HELD

    def _tell_memory(self) -> None:
        receiver = self._receiver
        if self._transport is None:
            held = NOTHING_HELD
        else:
            unfinished = receiver.unfinished
            unsent = self.unsent_bytes if self._writing_paused else 0
            held = Held(
                unfinished + unsent + self._polls * _POLL_BYTES + self._asking,
                max(0, receiver.memory - unfinished),
                receiver.frame_number if unfinished and not self._is_behind() else 0,
                receiver.frame_bytes,
            )
            if not (held.bound or held.slack):
                held = NOTHING_HELD
        if held != self._memory:
            self._memory = held
            self._admission.holds(self, self._has_added, held)

    def added(self) -> None:
        self._has_added = True

    def waits(self, more: int) -> None:
        """Count bytes of requests that wait for metadata; negative: they wait no longer."""
        self._asking += more
        self._tell_memory()

    def polls(self, more: int) -> None:
        self._polls += more
        if self._polls % _POLLS_TOLD == 0:
            self._tell_memory()

    def close(self) -> None:
        self.flush()
        if (transport := self._transport or self._refused) is not None:
            transport.close()

    def abort(self) -> None:
        """End the connection at once, even before its start."""
        self._aborted = True
        if (transport := self._transport or self._refused) is not None:
            # Later answers can't be sent any more.
            self._transport, self._refused = None, transport
            transport.abort()

    def send(self, *pieces: Buffer) -> None:
        """Send these bytes at the end of this turn of the loop, or with the next ``flush``."""
        if self._transport is None:
            return
        if not (self._answers or self._acks):
            self._loop.call_soon(self.flush)
        self._answers += pieces
        self._gathered += sum(map(len, pieces))
        if self._gathered > _GATHERED_BYTES_MAX:
            self.flush()

    def acknowledge(self, request_id: int) -> None:
        """Answer an add OK. All such answers of one turn of the loop share a frame."""
        if self._transport is None:
            return
        if not (self._answers or self._acks):
            self._loop.call_soon(self.flush)
        self._acks.append(request_id)

    def flush(self) -> None:
        answers, self._answers, self._gathered = self._answers, [], 0
        acks, self._acks = self._acks, []
        if self._transport is None:
            return
        if acks:
            answers.append(acks_frame(self._incarnation, acks))
        if not answers:
            return
        if len(answers) > 1 and sum(map(len, answers)) > _JOINED_BYTES_MAX:
            self._transport.writelines(answers)
        else:
            self._transport.write(b"".join(answers))
        if self._writing_paused:
            self._tell_memory()

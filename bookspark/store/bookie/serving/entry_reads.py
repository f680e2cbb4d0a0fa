"""Reads of entries: stored batches, then an answer with the reason of their end.

Law: a stored batch gets a new prefix with the answer's header, and its body is not copied. Adjacent short batches are joined
after their checks, so an answer does not depend on the borders of batches in the log. An answer is read and sent in parts, so
that the client checks a part while the bookie reads the next. A part is read once the peer has taken earlier parts and there is
room for it (``read_room``), so a peer that does not read holds only a few parts. Cached pages are read on the loop, one part in
each turn; the rest by a thread of its disk. Each part is planned by itself, because entries may move to another log meanwhile. An
unreadable copy is given up.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from struct import Struct
from time import monotonic
from typing import NamedTuple

from bookspark.store.bookie.disk.index import log_of
from bookspark.store.bookie.holdings.reads import PART_BYTES, READ_BYTES_MAX, Fetched, ReadPlan, Stop
from bookspark.store.bookie.ledgers.statuses import status_of
from bookspark.store.bookie.serving.answers import Answers
from bookspark.store.bookie.serving.peer import Peer
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.wire.batch_prefix import PREFIX_BYTES
from bookspark.store.wire.columns import Buffer, consecutive, offsets_of, repeated
from bookspark.store.wire.entry_batch import EntryBatch, encode_pieces, with_header
from bookspark.store.wire.header import Flag, Header, Status

log = logging.getLogger(__name__)


# -- Joining of adjacent short batches
#
# Law: the rows are those of the batches, verbatim and in order, so every digest stays valid. Only whole batches are joined, of
# one ledger, with consecutive ids.
#
# Adds of single entries leave a batch for each in the log. Its header, prefix and two checksums cost a reader twenty times as
# much as joining costs here.


SHORT_BYTES_MAX = 8 << 10
"""Longer batches stay as they are."""
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

    def __init__(self, bookie: ServedBookie, peer: Peer, answers: Answers) -> None:
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
        elif self._storage.holdings.may_read(header.ledger_id, header.master_key):
            self._send_entries(header)
        else:
            self._answer_without_entries(header, Status.UNAUTHORIZED)

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
            # The part has ended; a later failure must not end it again.
            self._next(header, following)

    def _send_part(self, header: Header, answer: _Answer, plan: ReadPlan, fetched: Fetched) -> _Answer | None:
        """Send a part. Returns the progress; None if this was the last part, which answers for the id after it."""
        frames, stop = fetched
        sent = answer.sent + self._send_batches(header, plan, frames)
        left = answer.left - sum(map(len, frames))
        end, status = plan.end, Status.OK if plan.refusal is None else status_of(plan.refusal)
        if stop is not None and plan.pieces:
            following = plan.pieces[len(frames)]
            self._storage.holdings.lose_unreadable(plan.pieces[len(frames) :], stop)
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

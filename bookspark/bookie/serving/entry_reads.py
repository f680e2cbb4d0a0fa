"""Reads of entries: the stored batches are sent as they lie in the logs, then an answer says what comes after them.

Law: a stored batch gets a new prefix with the answer's header, and its body is not copied. What the page cache has is read and
sent on the loop, in parts, so that the client checks one part while the next one is read. The rest is read by a thread. Entries
that are moved to another log while they are read are planned again. A copy that turns out unreadable is held no more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from bookspark.bookie.holdings.reads import Fetched, ReadPlan, Stop, first_part
from bookspark.bookie.ledgers.statuses import status_of
from bookspark.bookie.serving.answers import Answers
from bookspark.bookie.serving.peer import Peer
from bookspark.bookie.serving.served_bookie import ServedBookie
from bookspark.wire.entry_batch import Buffer, EntryBatch, with_header
from bookspark.wire.header import Flag, Header, Status

_FENCE, _SPARSE = int(Flag.FENCE), int(Flag.SPARSE)
_MORE = int(Flag.RESPONSE | Flag.MORE)

_CARRIED_BYTES_MAX = 64 << 10
"""A longer batch does not come along with a LAC: every bookie of the ensemble may be asked for it at once."""

log = logging.getLogger(__name__)


class EntryReads:
    """Answers the READ requests of one connection."""

    def __init__(self, bookie: ServedBookie, peer: Peer, answers: Answers) -> None:
        self._bookie = bookie
        self._storage = bookie.storage
        self._peer = peer
        self._answers = answers
        self._loop = asyncio.get_running_loop()

    def read(self, header: Header) -> None:
        """Answer a READ. With FENCE the ledger is fenced first, durably."""
        if not 0 <= header.first_entry_id <= header.last_entry_id:
            self._answers.refuse(header, f"a read of entries {header.first_entry_id}..{header.last_entry_id}")
        elif header.flags & _FENCE:
            self._storage.fence(header.ledger_id, header.master_key, partial(self._read_fenced, header))
        elif self._storage.may_read(header.ledger_id, header.master_key):
            self._send_entries(header)
        else:
            self._answer_without_entries(header, Status.UNAUTHORIZED)

    def send_along(self, header: Header, entry_id: int) -> None:
        """Send the batch of one entry ahead of an answer of another kind, if it is in the page cache and short."""
        plan = self._storage.plan_read(header.ledger_id, entry_id, entry_id, 0, sparse=False)
        if all(piece.size <= _CARRIED_BYTES_MAX for piece in plan.pieces):
            fetched = self._storage.files.fetch(plan.pieces, cached_only=True)
            self._send_batches(header, plan, () if fetched is None else fetched.frames)
            if fetched is not None:
                self._storage.holdings.lose_unreadable(plan.pieces[len(fetched.frames) :], fetched.stop)

    def _read_fenced(self, header: Header, status: int) -> None:
        if status == Status.OK:
            self._send_entries(header)
        else:
            self._answer_without_entries(header, status)

    def _answer_without_entries(self, header: Header, status: int) -> None:
        self._answers.answer(header._replace(last_entry_id=header.first_entry_id - 1), status)

    def _send_entries(self, header: Header, first_entry_id: int | None = None, sent: int = 0) -> None:
        """Send from ``first_entry_id`` on (None: the request's), after ``sent`` entries before it."""
        plan = self._storage.plan_read(
            header.ledger_id,
            header.first_entry_id if first_entry_id is None else first_entry_id,
            header.last_entry_id,
            header.limit,
            sparse=bool(header.flags & _SPARSE),
        )
        while (fetched := self._storage.files.fetch(part := first_part(plan.pieces), cached_only=True)) is not None:
            if fetched.stop is not None or len(part) == len(plan.pieces):
                self._send_last(header, plan, sent, fetched)
                return
            sent += self._send_batches(header, plan, fetched.frames)
            # If the socket takes these frames, the next ones are read into the same memory.
            del fetched
            # The reader checks these frames while the next ones are read here.
            self._peer.flush()
            plan = plan._replace(pieces=plan.pieces[len(part) :])
        self._peer.read_begins()
        fetch = partial(self._storage.files.fetch, plan.pieces, cached_only=False)
        reading = self._loop.run_in_executor(self._bookie.readers, fetch)
        reading.add_done_callback(partial(self._read_done, header, plan, sent))

    def _read_done(self, header: Header, plan: ReadPlan, sent: int, reading: asyncio.Future[Fetched | None]) -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            log.error("read %r failed", header, exc_info=error)
        fetched = None if error is not None or reading.cancelled() else reading.result()
        self._send_last(header, plan, sent, fetched or Fetched([], Stop.FAILED))
        self._peer.read_ends()

    def _send_last(self, header: Header, plan: ReadPlan, sent: int, fetched: Fetched) -> None:
        """Send the last entries, then the answer, which tells about the id after them."""
        frames, stop = fetched
        sent += self._send_batches(header, plan, frames)
        end, status = plan.end, Status.OK if plan.refusal is None else status_of(plan.refusal)
        if stop is not None:
            following = plan.pieces[len(frames)]
            if stop is Stop.MOVED and self._storage.has_moved(following):
                self._send_entries(header, following.first, sent)
                return
            self._storage.holdings.lose_unreadable(plan.pieces[len(frames) :], stop)
            end, status = following.first - 1, Status.OK if stop is Stop.LIMIT else Status.IO_ERROR
        self._answers.answer(header._replace(last_entry_id=end), status, value=sent)
        # Flush at once: a peer that does not read is noticed before its next request is taken.
        self._peer.flush()

    def _send_batches(self, header: Header, plan: ReadPlan, frames: Sequence[Buffer]) -> int:
        """Send the frames of a plan's first pieces; returns how many entries that are."""
        ledger = self._storage.ledger(header.ledger_id)
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
        for piece, frame in zip(plan.pieces, frames, strict=False):
            part = answer._replace(first_entry_id=piece.first, last_entry_id=piece.last)
            batch = EntryBatch(frame)
            if batch.first_entry_id == piece.first and batch.last_entry_id == piece.last:
                self._peer.send(*with_header(frame, part))
            else:
                self._peer.send(batch.slice(piece.first, piece.last, part))
            sent += piece.last - piece.first + 1
        return sent

"""The requests of one connection: what each kind asks of the storage, and how it is answered.

Law: each request is answered once, whatever happens, unless the connection ends first. A frame whose header can be read but that
makes no sense is answered BAD_REQUEST. A fault of the bookie's own is I/O error, never a Negative.

A stored batch is sent as it lies in the log: a new prefix with the answer's header, and the body that is not copied.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from bookspark.bookie.holdings.reads import Fetched, ReadPlan, Stop, first_part
from bookspark.bookie.ledgers.statuses import status_of
from bookspark.bookie.serving.listings import entry_logs, limbo
from bookspark.protocol.bookie.bookie_ledger import answer_absent, answer_last_add_confirmed
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.wire.entry_batch import Buffer, EntryBatch, with_header
from bookspark.wire.frames import Frame, control_frame
from bookspark.wire.header import NO_KEY, PROTOCOL_VERSION, Flag, Header, Kind, Status, WireError
from bookspark.wire.messages import Acks, Hello
from bookspark.wire.security import is_proof, new_challenge

if TYPE_CHECKING:
    from bookspark.bookie.serving.connection import Connection
    from bookspark.bookie.serving.server import BookieServer

_FENCE, _SPARSE, _VOLATILE, _ENTRY = int(Flag.FENCE), int(Flag.SPARSE), int(Flag.VOLATILE), int(Flag.ENTRY)
_RESPONSE = int(Flag.RESPONSE)
_MORE = int(Flag.RESPONSE | Flag.MORE)
_ADD, _SYNC = int(Kind.ADD), int(Kind.SYNC)
_OK = int(Status.OK)

_LONG_POLL_MS_MAX = 300_000
_CARRIED_BYTES_MAX = 64 << 10
"""A longer batch does not come along with a LAC: every bookie of the ensemble may be asked for it at once."""

log = logging.getLogger(__name__)


class Requests:
    """Of one ``connection``, which sends what is answered, and says when it has ended."""

    def __init__(self, server: BookieServer, connection: Connection) -> None:
        self._server = server
        self._storage = server.storage
        self._connection = connection
        self._send = connection.send
        self._loop = asyncio.get_running_loop()
        self._greeted = False
        self._challenge = b""
        self._under_way = 0
        """Requests that were taken and are not answered."""
        self._polls: dict[int, tuple[Header, asyncio.TimerHandle]] = {}
        """Long polls, by the number of their watch."""

    def end(self) -> None:
        """The connection has ended: nobody waits for anything any more."""
        for watch, (header, timer) in self._polls.items():
            timer.cancel()
            self._storage.watches.remove(header.ledger_id, watch)
        self._polls.clear()

    def handle(self, frame: Frame) -> None:
        header = frame.header
        self._under_way += 1
        try:
            if self._under_way > self._server.requests_in_flight_max:
                self._answer(header, Status.TOO_MANY_REQUESTS)
            elif header.kind == _ADD:
                self._add(frame)
            elif frame.batch is not None:
                self._refuse(header, f"kind {header.kind} is not asked for with a batch")
            elif header.kind == Kind.HELLO:
                self._hello(header, frame.body)
            elif not self._greeted:
                self._refuse(header, "the first request of a connection is HELLO")
            else:
                request = _REQUESTS.get(header.kind)
                if request is None:
                    self._refuse(header, f"unknown kind {header.kind}")
                else:
                    request(self, header)
        except WireError as error:
            self._refuse(header, str(error))
        except Exception:
            log.exception("request %r from %s failed", header, self._connection.peer)
            self._answer(header, Status.IO_ERROR)

    def _hello(self, header: Header, body: memoryview) -> None:
        if header.value < PROTOCOL_VERSION:
            self._refuse(header, f"protocol version {header.value}; this bookie speaks {PROTOCOL_VERSION}")
            return
        hello = Hello.decode(body)
        secret, bookie_id = self._server.secret, self._server.bookie_id
        if secret and not is_proof(hello.proof, secret, self._challenge, bookie_id):
            self._greeted, self._challenge = False, new_challenge()
            self._answer(header, Status.UNAUTHORIZED, body=self._challenge)
            return
        if hello.client:
            self._connection.name_peer(hello.client)
        self._greeted = True
        self._answer(header, _OK, value=PROTOCOL_VERSION, body=bookie_id.encode())

    def _add(self, frame: Frame) -> None:
        header = frame.header
        if not self._greeted:
            self._refuse(header, "the first request of a connection is HELLO")
        elif frame.batch is None or header.ledger_id < 0 or header.first_entry_id < 0:
            self._refuse(header, "an add is a batch of entries of one ledger, with ids from 0")
        else:
            if header.flags & _VOLATILE:
                header.assignment()  # raises if it makes no sense
            batch = EntryBatch.checked(frame.batch, header, frame.body_crc)
            self._storage.add(header, batch, partial(self._added, header))

    def _added(self, header: Header, status: int) -> None:
        if status != _OK or header.flags & _VOLATILE:
            self._answer(header, status)
        else:
            self._under_way -= 1
            self._connection.acknowledge(header.request_id)

    def acks(self, request_ids: Sequence[int]) -> bytes:
        """The frame that answers these adds."""
        header = Header(Kind.ACKS, 0, flags=_RESPONSE, incarnation=self._server.incarnation, value=len(request_ids))
        return control_frame(header, Acks.encode(request_ids))

    def refusal(self, why: str) -> bytes:
        """The frame that ends a connection whose bytes make no sense."""
        header = Header(
            Kind.REFUSAL, 0, flags=_RESPONSE, status=Status.BAD_REQUEST, incarnation=self._server.incarnation
        )
        return control_frame(header, why.encode())

    def _read(self, header: Header) -> None:
        if not 0 <= header.first_entry_id <= header.last_entry_id:
            self._refuse(header, f"a read of entries {header.first_entry_id}..{header.last_entry_id}")
        elif header.flags & _FENCE:
            self._storage.fence(header.ledger_id, header.master_key, partial(self._read_fenced, header))
        elif self._may_read(header):
            self._send_entries(header)

    def _read_fenced(self, header: Header, status: int) -> None:
        if status == Status.OK:
            self._send_entries(header)
        else:
            self._answer(header, status, last=header.first_entry_id - 1)

    def _may_read(self, header: Header) -> bool:
        if self._storage.may_read(header.ledger_id, header.master_key):
            return True
        self._answer(header, Status.UNAUTHORIZED, last=header.first_entry_id - 1)
        return False

    def _send_entries(self, header: Header, first_entry_id: int | None = None, sent: int = 0) -> None:
        """From ``first_entry_id`` on, if that is not the request's, after ``sent`` entries before it."""
        plan = self._storage.plan_read(
            header.ledger_id,
            header.first_entry_id if first_entry_id is None else first_entry_id,
            header.last_entry_id,
            header.limit,
            sparse=bool(header.flags & _SPARSE),
        )
        while (fetched := self._storage.files.fetch(part := first_part(plan.pieces), cached_only=True)) is not None:
            if fetched.stop is not None or len(part) == len(plan.pieces):
                self._send_frames(header, plan, sent, fetched)
                return
            sent += self._send_batches(header, plan, fetched.frames)
            del fetched  # the next ones are read into the same memory if the socket takes these
            self._connection.flush()  # the reader checks them while the next ones are read here
            plan = plan._replace(pieces=plan.pieces[len(part) :])
        self._connection.read_begins()
        fetch = partial(self._storage.files.fetch, plan.pieces, cached_only=False)
        reading = self._loop.run_in_executor(self._server.readers, fetch)
        reading.add_done_callback(partial(self._read_done, header, plan, sent))

    def _read_done(self, header: Header, plan: ReadPlan, sent: int, reading: asyncio.Future[Fetched | None]) -> None:
        error = None if reading.cancelled() else reading.exception()
        if error is not None:
            log.error("read %r failed", header, exc_info=error)
        fetched = None if error is not None or reading.cancelled() else reading.result()
        self._send_frames(header, plan, sent, fetched or Fetched([], Stop.DAMAGED))
        self._connection.read_ends()

    def _send_frames(self, header: Header, plan: ReadPlan, sent: int, fetched: Fetched) -> None:
        """The entries, then what is said of the id after them."""
        frames, stop = fetched
        sent += self._send_batches(header, plan, frames)
        end, status = plan.end, Status.OK if plan.refusal is None else status_of(plan.refusal)
        if stop is not None:
            following = plan.pieces[len(frames)]
            if stop is Stop.MOVED and self._storage.has_moved(following):
                self._send_entries(header, following.first, sent)
                return
            end, status = following.first - 1, Status.OK if stop is Stop.LIMIT else Status.IO_ERROR
        self._answer(header, status, last=end, value=sent)
        self._connection.flush()  # at once, so that a peer that does not read is noticed before its next request is taken

    def _send_batches(self, header: Header, plan: ReadPlan, frames: Sequence[Buffer]) -> int:
        """The frames of a plan's first pieces; returns how many entries that are."""
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
            incarnation=self._server.incarnation,
        )
        sent = 0
        for piece, frame in zip(plan.pieces, frames, strict=False):
            part = answer._replace(first_entry_id=piece.first, last_entry_id=piece.last)
            batch = EntryBatch(frame)
            if batch.first_entry_id == piece.first and batch.last_entry_id == piece.last:
                self._send(*with_header(frame, part))
            else:
                self._send(batch.slice(piece.first, piece.last, part))
            sent += piece.last - piece.first + 1
        return sent

    def _read_last_add_confirmed(self, header: Header) -> None:
        if header.flags & _FENCE:
            self._storage.fence(header.ledger_id, header.master_key, partial(self._answer_last_add_confirmed, header))
        elif self._may_read(header):
            ledger = self._storage.ledger(header.ledger_id)
            confirmed = NO_ENTRY if ledger is None else ledger.last_add_confirmed
            if header.limit and confirmed < header.first_entry_id:
                self._poll(header)
            else:
                self._answer_last_add_confirmed(header, _OK)

    def _answer_last_add_confirmed(self, header: Header, status: int) -> None:
        ledger = self._storage.ledger(header.ledger_id)
        if status == Status.OK:
            absent = answer_absent(ledger, self._storage.damaged)
            status = status_of(absent if ledger is None else answer_last_add_confirmed(ledger))
        if status == _OK and header.flags & _ENTRY and ledger is not None:
            self._send_along(header, ledger.last_add_confirmed)
        self._answer(header, status, value=self._storage.last_entry_id(header.ledger_id))

    def _send_along(self, header: Header, last_add_confirmed: int) -> None:
        """The entry that a long poll waited for, before the answer, if it is confirmed and at hand."""
        wanted = header.first_entry_id
        if not 0 <= wanted <= last_add_confirmed:
            return
        plan = self._storage.plan_read(header.ledger_id, wanted, wanted, 0, sparse=False)
        if all(piece.size <= _CARRIED_BYTES_MAX for piece in plan.pieces):
            fetched = self._storage.files.fetch(plan.pieces, cached_only=True)
            self._send_batches(header, plan, () if fetched is None else fetched.frames)

    def _poll(self, header: Header) -> None:
        """Answer once the LAC is there, or the time is up; of a ledger that is not known yet, too."""

        def finish() -> None:
            _, timer = self._polls.pop(watch)
            timer.cancel()
            self._storage.watches.remove(header.ledger_id, watch)
            self._answer_last_add_confirmed(header, _OK)

        watch = self._storage.watches.add(header.ledger_id, header.first_entry_id, finish)
        self._polls[watch] = (header, self._loop.call_later(min(header.limit, _LONG_POLL_MS_MAX) / 1000, finish))

    def _write_last_add_confirmed(self, header: Header) -> None:
        if header.ledger_id < 0 or header.last_add_confirmed < NO_ENTRY:
            self._refuse(header, "an explicit LAC is of one ledger, and an entry id")
            return
        self._storage.write_last_add_confirmed(
            header.ledger_id,
            header.master_key,
            header.last_add_confirmed,
            partial(self._answer, header),
            header.last_add_fully_replicated,
        )

    def _sync(self, header: Header) -> None:
        assignment = header.assignment()
        self._storage.sync(header.ledger_id, header.master_key, assignment, partial(self._answer, header))

    def _ranges(self, header: Header) -> None:
        ranges, ledger_id, first = self._storage.ranges(
            max(header.ledger_id, 0), max(header.first_entry_id, 0), header.limit, only=header.value == 1
        )
        self._answer(header, _OK, first=first, value=ledger_id, body=ranges.encode())

    def _status(self, header: Header) -> None:
        self._answer(header, _OK, body=msgspec.json.encode(self._server.status()))

    def _entry_logs(self, header: Header) -> None:
        self._answer(header, _OK, body=entry_logs(self._storage).encode())

    def _limbo(self, header: Header) -> None:
        found, following = limbo(self._storage, header.ledger_id, header.limit)
        self._answer(header, _OK, value=following, body=found.encode())

    # -- answers

    def _answer(
        self,
        request: Header,
        status: int,
        *,
        last: int | None = None,
        value: int = 0,
        first: int | None = None,
        body: bytes = b"",
    ) -> None:
        """The control frame that answers a request: its own range unless told otherwise, and what is known of its ledger."""
        self._under_way -= 1
        ledger = self._storage.ledger(request.ledger_id)
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
            request.first_entry_id if first is None else first,
            request.last_entry_id if last is None else last,
            confirmed,
            _RESPONSE,
            status,
            replicated,
            synced,
            self._server.incarnation,
            NO_KEY,
            0,
            value,
        )
        self._send(control_frame(header, body))

    def _refuse(self, request: Header, why: str) -> None:
        """BAD_REQUEST; the body says why, for people."""
        log.warning("request %d from %s refused: %s", request.request_id, self._connection.peer, why)
        self._answer(request, Status.BAD_REQUEST, body=why.encode())


_REQUESTS: dict[int, Callable[[Requests, Header], None]] = {
    Kind.READ: Requests._read,
    Kind.READ_LAC: Requests._read_last_add_confirmed,
    Kind.WRITE_LAC: Requests._write_last_add_confirmed,
    Kind.SYNC: Requests._sync,
    Kind.RANGES: Requests._ranges,
    Kind.STATUS: Requests._status,
    Kind.ENTRY_LOGS: Requests._entry_logs,
    Kind.LIMBO: Requests._limbo,
}

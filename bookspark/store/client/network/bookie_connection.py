"""One connection to a bookie: pipelined requests, each answered once.

Law: each request gets exactly one answer, of one of the three classes of responses: the bookie's own, or Unknown if the request
could not be sent, the connection was cut, or the bookie took too long.

Memory is bounded. While half of ``bookie_bytes_queued_max`` waits to be sent, the connection reports the bookie as behind, and
writers wait. The connection is cut

- if the bookie accepts no byte for ``bookie_stall_seconds`` while that much waits;
- if the bookie is behind and does not answer a request in time;
- if more than ``bookie_bytes_queued_max`` waits;
- if no byte at all came from the bookie between a request and its deadline: its host may be gone, and the bookie may run
  elsewhere;
- if a frame of the bookie is not whole in its time (``protocol.bookie.peer_memory.frame_seconds``), or one answer has more than
  ``_ANSWER_BYTES_MAX``: so much a bookie makes a client hold for each request, and a frame beside.

``Patience`` limits the delay of writers by a slow bookie. (BookKeeper's BP-51 lets the client's memory grow.)

Requests of one turn of the loop share one system call, which costs more than a small frame: a client that writes to many ledgers
would spend most of its time in system calls.

All of it runs in the client's I/O loop.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, cast

from bookspark.protocol.bookie.peer_memory import frame_seconds
from bookspark.protocol.ledger.responses import Positive, Response, Unknown, UnknownReason
from bookspark.store.client.client_config import ClientConfig
from bookspark.store.client.network.io_loop import DeadlineTimer
from bookspark.store.client.network.traffic import ClientTraffic
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Buffer
from bookspark.store.wire.frames import HELLO_BYTES_MAX, Frame, FrameReceiver
from bookspark.store.wire.header import Flag, Header, Kind, Status, WireError
from bookspark.store.wire.messages import Acks
from bookspark.store.wire.security import certificate_hash

log = logging.getLogger(__name__)

_ACKS, _ADD = int(Kind.ACKS), int(Kind.ADD)
_IO_ERROR = int(Status.IO_ERROR)
_MORE = int(Flag.MORE)
_TOGETHER_BYTES = 64 << 10
"""Frames are joined up to this size. A larger frame is sent by itself, without a copy."""
_ANSWER_BYTES_MAX = 2 * FRAME_BYTES_MAX
"""A bookie ends the answer to a read after 4 MiB, and a last frame."""
_DEADLINE_SECONDS = 0.05
"""Interval of the check of deadlines: largest delay in noticing a late request, or a little more if the process was held up."""


class Answer(NamedTuple):
    """The answer to one request. ``header`` is None if the bookie did not answer. ``batches``: the batch frames before the last
    frame, or the results of the request's ``on_batch`` for them."""

    response: Response
    header: Header | None = None
    batches: tuple[Any, ...] = ()
    body: memoryview = memoryview(b"")


OnBatch = Callable[[Frame], object]
OnBookiesAnswer = Callable[[str, Answer], None]
ACKNOWLEDGED = Answer(Positive())


class Request:
    """One request to one bookie, or the same request to several. ``answered`` is called once for each bookie.

    ``on_batch`` is called with each batch frame at its arrival, so its processing overlaps the transfer of the next frame.
    """

    __slots__ = ("deadline", "timeout_seconds")
    on_batch: OnBatch | None = None

    def __init__(self, timeout_seconds: float | None) -> None:
        self.timeout_seconds = timeout_seconds
        self.deadline = math.inf if timeout_seconds is None else time.monotonic() + timeout_seconds

    def batch_came(self, frame: Frame) -> object:
        if self.on_batch is None:
            return frame
        try:
            return self.on_batch(frame)
        except Exception as error:
            log.exception("a part of a bookie's answer could not be read")
            return WireError(f"a part of the answer could not be read: {error!r}")

    def tell(self, bookie_id: str, answer: Answer) -> None:
        """Deliver the bookie's answer, or an Unknown one. An exception is logged, so that other requests still get their
        answers."""
        try:
            self.answered(bookie_id, answer)
        except BaseException:
            log.exception("handling a bookie's answer failed")

    def answered(self, bookie_id: str, answer: Answer) -> None:
        raise NotImplementedError


class Question(Request):
    __slots__ = ("_on_answer", "on_batch")

    def __init__(
        self, on_answer: OnBookiesAnswer, timeout_seconds: float | None, on_batch: OnBatch | None = None
    ) -> None:
        super().__init__(timeout_seconds)
        self._on_answer = on_answer
        self.on_batch = on_batch

    def answered(self, bookie_id: str, answer: Answer) -> None:
        self._on_answer(bookie_id, answer)


class BookieConnection(asyncio.BufferedProtocol):
    """One TCP connection, used once; ``Connections`` makes the next connection.

    ``on_failure``: called for a request that was not answered in time, or with an I/O error. ``on_lost``: called once, when
    nothing can be sent any more. ``on_ended``: called once, when the socket is closed.
    """

    def __init__(
        self,
        bookie_id: str,
        config: ClientConfig,
        on_failure: Callable[[str, Unknown], None],
        on_lost: Callable[[BookieConnection], None],
        on_ended: Callable[[BookieConnection], None],
        chunks: ChunkPool,
        traffic: ClientTraffic,
    ) -> None:
        self.bookie_id = bookie_id
        self._traffic = traffic
        self._seconds = traffic.seconds
        self._config = config
        self._on_failure = on_failure
        self._on_lost = on_lost
        self._on_ended = on_ended
        self._receiver = FrameReceiver(chunks, frame_bytes_max=HELLO_BYTES_MAX)
        self._pending: dict[int, Request] = {}
        self._batches: dict[int, list[object]] = {}
        """Request id → batch frames of an incomplete answer."""
        self._batch_bytes: dict[int, int] = {}
        self._unfinished = 0, 0.0
        """Number of the frame that was incomplete at the last look, and the time of the first look at it."""
        self._transport: asyncio.Transport
        self._gathered: list[Buffer] = []
        """Frames of this turn of the loop, sent together at its end."""
        self._bytes_gathered = self._bytes_written = 0
        self._stall_timer: DeadlineTimer | None = None
        self._deadline_timer: DeadlineTimer | None = None
        self.heard_at = 0.0
        self.incarnation = 0
        """Incarnation of the bookie's process, from its answer to HELLO."""
        self.is_behind = False
        """True while so much waits to be sent that writers should add nothing."""
        self.lost: Unknown | None = None
        """Reason why nothing can be sent any more; None while the connection stands."""
        self.ended = asyncio.Event()

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is another class with the same methods.
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._config.bookie_bytes_queued_max // 2)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        self.heard_at = time.monotonic()
        self._traffic.received_bytes += nbytes
        try:
            for frame in self._receiver.received(nbytes):
                self._received(frame)
        except WireError as error:
            self.abort(f"sent what is no answer: {error}")
        if self._deadline_timer is None and self._receiver.unfinished and self.lost is None:
            self._watch_deadlines()

    def pause_writing(self) -> None:
        if self.lost is not None:
            return
        self._traffic.behind += not self.is_behind
        self.is_behind = True
        self._watch_for_stall()

    def resume_writing(self) -> None:
        self._keeps_up()
        self._stop_watching()

    def _keeps_up(self) -> None:
        self._traffic.behind -= self.is_behind
        self.is_behind = False

    def connection_lost(self, error: Exception | None) -> None:
        self.abort(str(error) if error else "closed by the bookie")
        self.ended.set()
        self._on_ended(self)

    @property
    def queued_bytes(self) -> int:
        """Bytes that the socket has not accepted yet."""
        return 0 if self.lost is not None else self._bytes_gathered + self._transport.get_write_buffer_size()

    @property
    def in_flight(self) -> int:
        return len(self._pending)

    @property
    def certificate_hash(self) -> bytes:
        """SHA-256 of the bookie's certificate on this connection; b"" without TLS."""
        tls = self._transport.get_extra_info("ssl_object")
        return b"" if tls is None else certificate_hash(tls.getpeercert(binary_form=True))

    def greeted(self, incarnation: int) -> None:
        """HELLO is through: allow long answers."""
        self.incarnation = incarnation
        self._receiver.frame_bytes_max = FRAME_BYTES_MAX

    # -- requests

    def send(self, request_id: int, frame: Buffer, request: Request, body: Buffer = b"") -> None:
        """Send ``frame``, or a frame in two parts. ``request`` gets exactly one answer, perhaps before this returns."""
        if self.lost is not None:
            request.tell(self.bookie_id, Answer(self.lost))
            return
        self._pending[request_id] = request
        if self._deadline_timer is None:
            self._watch_deadlines()
        size = len(frame) + len(body)
        if self._bytes_gathered + size > _TOGETHER_BYTES:
            self._flush()
            self._write(frame, body)
        else:
            if not self._gathered:
                asyncio.get_running_loop().call_soon(self._flush)
            self._gathered.append(frame)
            if body:
                self._gathered.append(body)
            self._bytes_gathered += size

    def _flush(self) -> None:
        frames, self._gathered, self._bytes_gathered = self._gathered, [], 0
        if frames:
            self._write(frames[0] if len(frames) == 1 else b"".join(frames))

    def _write(self, content: Buffer, body: Buffer = b"") -> None:
        if self.lost is not None:
            return
        size = len(content) + len(body)
        self._bytes_written += size
        self._traffic.sent_bytes += size
        if body:
            self._transport.writelines((content, body))
        else:
            self._transport.write(content)
        if self.is_behind and self._transport.get_write_buffer_size() > self._config.bookie_bytes_queued_max:
            self.abort(f"is more than {self._config.bookie_bytes_queued_max} bytes behind")

    def abort(self, why: str) -> None:
        """Cut the connection. Every unanswered request is answered Unknown, with ``why``."""
        if self.lost is None:
            self.lost = Unknown(UnknownReason.UNREACHABLE, why)
            self._stop_watching()
            self._transport.abort()
            pending, self._pending = list(self._pending.values()), {}
            self._traffic.failed[self.lost.reason.name.lower()] += len(pending)
            self._batches.clear()
            self._batch_bytes.clear()
            for request in pending:
                request.tell(self.bookie_id, Answer(self.lost))
            self._keeps_up()
            self._on_lost(self)

    def _received(self, frame: Frame) -> None:
        header = frame.header
        if header.kind == _ACKS:
            self._acknowledged(Acks.decode(frame.body))
            return
        request_id = header.request_id
        pending = self._pending.get(request_id)
        if pending is None:
            # A refusal has no request. Any other frame is the answer to a request that timed out before.
            if header.kind == Kind.REFUSAL:
                self.abort(f"refused what it was sent: {bytes(frame.body).decode(errors='replace')}")
            return
        if header.flags & _MORE:
            size = self._batch_bytes.get(request_id, 0) + len(frame.batch or frame.body)
            if size > _ANSWER_BYTES_MAX:
                self.abort(f"sent more than {_ANSWER_BYTES_MAX} bytes for one request")
                return
            self._batch_bytes[request_id] = size
            self._batches.setdefault(request_id, []).append(pending.batch_came(frame))
            return
        batches = tuple(self._batches.pop(request_id, ()))
        self._batch_bytes.pop(request_id, None)
        response = header.response()
        if header.status == _IO_ERROR:
            self._on_failure(self.bookie_id, cast(Unknown, response))
        if type(response) is Unknown:
            self._traffic.failed[response.reason.name.lower()] += 1
        request = self._pending.pop(request_id)
        if request.timeout_seconds is not None and (seconds := self._seconds.get(header.kind)) is not None:
            seconds.observe(self.heard_at - (request.deadline - request.timeout_seconds))
        request.tell(self.bookie_id, Answer(response, header, batches, frame.body))

    def _acknowledged(self, request_ids: Iterable[int]) -> None:
        """Handle acks, which are nearly all answers of a writer's bookies."""
        bookie_id, heard_at = self.bookie_id, self.heard_at
        observe = self._seconds[_ADD].observe
        for request_id in request_ids:
            # No local alias of ``_pending``: the handling of one answer may cut the connection, which answers the others.
            request = self._pending.pop(request_id, None)
            if request is None:
                continue
            if (seconds := request.timeout_seconds) is not None:
                observe(heard_at - (request.deadline - seconds))
            request.tell(bookie_id, ACKNOWLEDGED)

    # -- deadlines

    def _watch_deadlines(self) -> None:
        """Check all deadlines at intervals: a timer for each request would cost as much as its frame."""
        self._deadline_timer = DeadlineTimer(_DEADLINE_SECONDS, self._check_deadlines)

    def _check_deadlines(self) -> None:
        self._deadline_timer = None
        now = time.monotonic()
        for request_id in [request_id for request_id, request in self._pending.items() if request.deadline <= now]:
            self._batches.pop(request_id, None)
            self._batch_bytes.pop(request_id, None)
            late = self._pending.pop(request_id, None)
            if late is not None:
                self._timed_out(late)
        self._check_frame(now)
        if self.lost is None and (self._pending or self._receiver.unfinished):
            self._watch_deadlines()

    def _check_frame(self, now: float) -> None:
        receiver = self._receiver
        number, since = self._unfinished
        if not receiver.unfinished or number != receiver.frame_number:
            self._unfinished = receiver.frame_number, now
        elif now - since > (seconds := frame_seconds(receiver.frame_bytes)):
            self.abort(f"did not end a frame within {seconds:.0f} s")

    def _timed_out(self, request: Request) -> None:
        late = Unknown(UnknownReason.TIMEOUT, f"{request.timeout_seconds:g} s")
        self._traffic.failed[late.reason.name.lower()] += 1
        self._on_failure(self.bookie_id, late)
        request.tell(self.bookie_id, Answer(late))
        if self.is_behind:
            self.abort(f"is behind, and did not answer in {request.timeout_seconds:g} s")
        elif self._is_silent(request):
            self.abort(f"said nothing for {request.timeout_seconds:g} s")

    def _is_silent(self, request: Request) -> bool:
        """Did no byte come since the late ``request`` was sent? Only for requests with at least the time limit of an answer."""
        seconds = request.timeout_seconds or 0.0
        return seconds >= self._config.answer_timeout_seconds and self.heard_at < request.deadline - seconds

    # -- stalls

    def _bytes_taken(self) -> int:
        return self._bytes_written - self._transport.get_write_buffer_size()

    def _watch_for_stall(self) -> None:
        seconds = self._config.bookie_stall_seconds
        self._stall_timer = DeadlineTimer(seconds, partial(self._check_stall, self._bytes_taken()))

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _check_stall(self, taken_before: int) -> None:
        if self._bytes_taken() > taken_before:
            self._watch_for_stall()
        else:
            waiting = self._transport.get_write_buffer_size()
            self.abort(f"took in nothing for {self._config.bookie_stall_seconds:g} s while {waiting} bytes waited")

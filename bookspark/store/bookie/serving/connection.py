"""One client's connection to a bookie: frames in, answers out, and how many of each may wait. ``dispatch`` answers the requests.

Law: bytes that are no frame end the connection, and the peer is told why. While a peer does not read its answers, its requests
wait in the bookie too, and nothing more is read for them from the logs. They also wait while too many of its reads are under way.
Answers are gathered and written once per turn of the loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, Protocol, cast

from bookspark.store.bookie.serving.admission import Admission, Stranger
from bookspark.store.bookie.serving.answers import acks_frame, refusal_frame
from bookspark.store.bookie.serving.dispatch import Dispatch
from bookspark.store.bookie.serving.served_bookie import ServedBookie
from bookspark.store.wire.chunks import ChunkPool
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Buffer
from bookspark.store.wire.frames import HELLO_BYTES_MAX, FrameReceiver
from bookspark.store.wire.header import WireError
from bookspark.store.wire.keepalive import notice_lost_peer

_JOINED_BYTES_MAX = 64 << 10
_WRITE_BUFFER_BYTES_MAX = 64 << 10
_READS_MAX = 8
_LARGE_PART_BYTES = 1 << 20
"""A part is this long while there is much room."""
_PARTS_MAX = 4
"""How many parts of answers are read for one peer at the same time."""
_PARTING_SECONDS = 10.0
"""How long a peer that is refused has to end the connection."""


class Requests(Protocol):
    """What takes the requests of a connection, one after the other."""

    def handle(self, frame: Any) -> None:
        """Take one. It is answered now or later; no error comes out of here."""

    def end(self) -> None:
        """The connection has ended."""


class Connection(asyncio.BufferedProtocol):
    """A ``peer.Peer`` on a socket. ``porch`` makes one for each connection whose first message is there. One that speaks another
    protocol has another ``receiver``, other ``requests`` and another ``refusal``."""

    def __init__(
        self, bookie: ServedBookie, admission: Admission, chunks: ChunkPool, stranger: Stranger, address: str
    ) -> None:
        self._admission = admission
        self._stranger: Stranger | None = stranger
        """What the connection is to the admission until it is greeted."""
        self.origin = stranger.origin
        self.heard = 0
        self._incarnation = bookie.incarnation
        self._refusals = bookie.refusals
        self._loop = asyncio.get_running_loop()
        self._receiver = self.receiver(chunks)
        self._transport: asyncio.Transport | None = None
        self._refused: asyncio.Transport | None = None
        """The transport of a peer that is refused, until the connection ends. ``_transport`` is None then."""
        self._address = address
        self.peer = address
        """Address and name, for log lines."""
        self._dispatch = self.requests(bookie)
        self._answers: list[Buffer] = []
        self._acks: list[int] = []
        """Request ids of the adds that came to be OK in this turn of the loop."""
        self._held: deque[Any] = deque()
        """Requests that came while the peer did not read its answers, or while too many of its reads were under way."""
        self._reads = 0
        """How many reads of this peer are under way."""
        self._room = bookie.read_room
        self._parts: deque[tuple[int, Callable[[int], None]]] = deque()
        """Parts of answers that wait until the peer has taken others: how large they are, and what reads them."""
        self._parts_asked = 0
        """How many parts are being read, or wait for room."""
        self._part_bytes = 0
        """How large those are that are being read."""
        self._aborted = False
        self._writing_paused = False
        self._reading_paused = False
        self._going_on = False
        """Does ``_go_on`` run? What it begins may end at once, and calls it again."""

    # -- the protocol

    def receiver(self, chunks: ChunkPool) -> FrameReceiver:
        """What divides the bytes that come into requests."""
        return FrameReceiver(chunks, frame_bytes_max=HELLO_BYTES_MAX)

    def received(self, count: int) -> Iterator[Any]:
        """The requests that ``count`` more bytes complete. Raises WireError."""
        return self._receiver.received(count)

    def requests(self, bookie: ServedBookie) -> Requests:
        """What takes these requests."""
        return Dispatch(bookie, self)

    def refusal(self, why: str) -> bytes:
        """The last words to a peer whose bytes make no sense."""
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
        self._held.clear()
        self._parts.clear()
        self._room.forget(self)
        self._answers.clear()
        self._acks.clear()
        self._dispatch.end()
        # The two refer to each other. Without this cycle the receive buffer is freed at once.
        del self._dispatch
        stranger, self._stranger = self._stranger, None
        self._admission.lost(stranger, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, count: int) -> None:
        if self._transport is None:
            # The peer was refused, so its bytes are dropped.
            return
        admission = self._admission
        self.heard = admission.heard = admission.heard + 1
        if admission.heard_last is not self:
            admission.turn_to(self)
        try:
            self.take(self.received(count))
        except WireError as error:
            self._refusals.tell(self.peer, error)
            self.refuse(str(error))
        admission.check_pressure()
        self.adjust_reading()

    def take(self, frames: Iterable[Any]) -> None:
        """Handle these requests, or hold them until the peer has read its answers."""
        for frame in frames:
            if self._held or self._is_behind():
                self._held.append(frame)
            else:
                self._dispatch.handle(frame)

    def goes_on_over(self, transport: asyncio.Transport) -> None:
        """From now on this transport, which lies over the one before, takes the answers and brings the requests."""
        self._transport = transport
        transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        self._reading_paused = False
        self.adjust_reading()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self._hold()
        self.adjust_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._hold()
        self._go_on()

    def greeted(self) -> None:
        """The peer may ask for anything from now on."""
        stranger, self._stranger = self._stranger, None
        if stranger is not None:
            self._receiver.frame_bytes_max = FRAME_BYTES_MAX
            self._admission.greeted(stranger, self)

    def name_peer(self, name: str) -> None:
        """Note the name that the client gave itself. It may give another one later."""
        self.peer = f"{self._address} ({name[:80]!r})"

    # -- flow

    def read_begins(self) -> None:
        """The answer to a read begins."""
        self._reads += 1

    def read_ends(self) -> None:
        """That answer is sent."""
        self._reads -= 1
        self._go_on()

    @property
    def is_served(self) -> bool:
        """Does the peer wait for entries that it asked for, or are some of them not sent yet?"""
        return self._reads > 0 or self._writing_paused or bool(self._held or self._parts)

    @property
    def unsent_bytes(self) -> int:
        """How many bytes of its answers the socket has not taken."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def takes(self, size: int) -> bool:
        """Has the peer taken what was sent before, and is there room for ``size`` bytes more?"""
        behind = self._transport is None or self._writing_paused or self._parts
        return not behind and self._room.has_room(self, size)

    def when_it_takes(self, size: int, begin: Callable[[int], None]) -> None:
        """Call ``begin`` as soon as the peer has taken what was sent before, and there is room for ``size`` bytes: now or later.
        It is told how many bytes there is room for, which may be more. ``part_ends`` follows with that number. Nothing is called
        once the connection has ended."""
        if self._transport is not None:
            self._parts.append((size, begin))
            self._loop.call_soon(self._go_on)

    def part_ends(self, size: int) -> None:
        """What ``begin`` began is sent, or failed."""
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
        """Tell how much memory the answers of this peer hold."""
        if self._transport is not None:
            unsent = self.unsent_bytes if self._writing_paused else 0
            self._room.hold(self, self._part_bytes + unsent)

    def _is_behind(self) -> bool:
        return self._writing_paused or self._reads >= _READS_MAX

    def _go_on(self) -> None:
        """Handle held requests, and read parts of answers, for as long as the peer and the disk keep up."""
        if self._going_on:
            # The loops below see what has changed. A call for each request that is held would need a stack as long.
            return
        self._going_on = True
        try:
            while self._held and not self._is_behind():
                self._dispatch.handle(self._held.popleft())
            while self._parts and not self._writing_paused and self._parts_asked < _PARTS_MAX:
                size, begin = self._parts.popleft()
                if self._room.is_roomy(_LARGE_PART_BYTES):
                    # Each part costs a change of threads.
                    size = max(size, _LARGE_PART_BYTES)
                self._parts_asked += 1
                self._room.ask(self, size, partial(self._begin_part, size, begin))
        finally:
            self._going_on = False
        self.adjust_reading()

    def adjust_reading(self) -> None:
        """Begin or stop reading from the socket."""
        pause = bool(self._held) or self._writing_paused or self._admission.paused
        if self._transport is None or self._transport.is_closing() or pause == self._reading_paused:
            return
        self._reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def refuse(self, why: str) -> None:
        """Tell the peer why, read nothing more, and give the peer a moment to end the connection. A socket that is closed with
        bytes unread resets the connection, and the reset would overtake the words."""
        transport = self._transport
        if transport is None:
            return
        self.send(self.refusal(why))
        self.flush()
        self._transport, self._refused = None, transport
        self._held.clear()
        self._parts.clear()
        self._room.forget(self)
        self._receiver = FrameReceiver()
        if transport.can_write_eof():
            transport.write_eof()
        self._loop.call_later(_PARTING_SECONDS, transport.abort)

    def close(self) -> None:
        """Send what is answered, then end the connection."""
        self.flush()
        if (transport := self._transport or self._refused) is not None:
            transport.close()

    def abort(self) -> None:
        """End the connection at once. It may not have begun."""
        self._aborted = True
        if (transport := self._transport or self._refused) is not None:
            # What is answered until its end is noticed can't be sent any more.
            self._transport, self._refused = None, transport
            transport.abort()

    def send(self, *pieces: Buffer) -> None:
        """Send these bytes at the end of this turn of the loop, or with the next ``flush``."""
        if self._transport is None:
            return
        if not (self._answers or self._acks):
            self._loop.call_soon(self.flush)
        self._answers += pieces

    def acknowledge(self, request_id: int) -> None:
        """Answer an add OK. All such answers of one turn of the loop are sent in one frame."""
        if self._transport is None:
            return
        if not (self._answers or self._acks):
            self._loop.call_soon(self.flush)
        self._acks.append(request_id)

    def flush(self) -> None:
        """Send now what is gathered."""
        answers, self._answers = self._answers, []
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

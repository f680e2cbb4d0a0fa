"""One client's connection to a bookie: frames in, answers out, and how many of each may wait. ``requests`` deals with the frames.

Law: what is no frame ends the connection, and the peer is told why. What a peer does not read, it does not get to ask more of:
while its answers wait in the bookie, its requests do too; and so they do while too many of its reads wait for the disk. Answers
are gathered and written once per turn of the loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, cast

from bookspark.bookie.serving.dispatch import Requests
from bookspark.wire.entry_batch import Buffer
from bookspark.wire.frames import Frame, FrameReceiver
from bookspark.wire.header import WireError
from bookspark.wire.keepalive import notice_lost_peer

if TYPE_CHECKING:
    from bookspark.bookie.serving.server import BookieServer

_JOINED_BYTES_MAX = 64 << 10
_WRITE_BUFFER_BYTES_MAX = 4 << 20
_READS_MAX = 8
_PARTING_SECONDS = 10.0
"""So long a peer that is refused has to end the connection."""

log = logging.getLogger(__name__)


class Connection(asyncio.BufferedProtocol):
    """Made by ``BookieServer`` for each connection that it accepts."""

    def __init__(self, server: BookieServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._receiver = FrameReceiver(server.chunks)
        self._transport: asyncio.Transport | None = None
        self._refused: asyncio.Transport | None = None
        """In place of the other once the peer is refused, until it has ended the connection."""
        self._address = "?"
        self.peer = "?"
        """For people."""
        self._requests = Requests(server, self)
        self._answers: list[Buffer] = []
        self._acks: list[int] = []
        """Request ids of adds that are OK, of this turn of the loop."""
        self._held: deque[Frame] = deque()
        """Requests that came while the peer's answers, or the disk, were behind."""
        self._reads = 0
        """Reads that a thread is doing."""
        self._writing_paused = False
        self._reading_paused = False

    # -- asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BUFFER_BYTES_MAX)
        if not self._server.has_room():
            self.send(
                self._requests.refusal("it has as many connections as it may have open; try another bookie, or later")
            )
            self.close()
            self._transport = None
            return
        notice_lost_peer(transport.get_extra_info("socket"))
        self.peer = self._address = str(transport.get_extra_info("peername"))
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = self._refused = None
        self._held.clear()
        self._answers.clear()
        self._acks.clear()
        self._requests.end()
        del self._requests  # which refers to this: the memory that was received into comes free at once
        self._server.lost(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, count: int) -> None:
        if self._transport is None:
            return  # the peer was refused
        try:
            for frame in self._receiver.received(count):
                if self._held or self._is_behind():
                    self._held.append(frame)
                else:
                    self._requests.handle(frame)
        except WireError as error:
            log.warning("connection from %s closed: %s", self.peer, error)
            self._refuse(str(error))
        self._server.check_pressure()
        self.adjust_reading()

    def pause_writing(self) -> None:
        self._writing_paused = True
        self.adjust_reading()

    def resume_writing(self) -> None:
        self._writing_paused = False
        self._go_on()

    def name_peer(self, name: str) -> None:
        """As it calls itself, and may do again and again."""
        self.peer = f"{self._address} ({name[:80]!r})"

    # -- flow

    def read_begins(self) -> None:
        """A thread reads from the disk for a request."""
        self._reads += 1

    def read_ends(self) -> None:
        """It is through, and its answer is sent."""
        self._reads -= 1
        self._go_on()

    def _is_behind(self) -> bool:
        return self._writing_paused or self._reads >= _READS_MAX

    def _go_on(self) -> None:
        """Take up held requests, as far as the peer and the disk keep up."""
        while self._held and not self._is_behind():
            self._requests.handle(self._held.popleft())
        self.adjust_reading()

    def adjust_reading(self) -> None:
        """Read from the socket, or don't."""
        pause = bool(self._held) or self._writing_paused or self._server.overloaded
        if self._transport is None or self._transport.is_closing() or pause == self._reading_paused:
            return
        self._reading_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _refuse(self, why: str) -> None:
        """Say why, look at nothing more, and leave the end to the peer for a moment: a socket that is closed while there is
        something to be read resets the connection, and the reset would overtake the words."""
        transport = self._transport
        if transport is None:
            return
        self.send(self._requests.refusal(why))
        self.flush()
        self._transport, self._refused = None, transport
        self._held.clear()
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
        if (transport := self._transport or self._refused) is not None:
            transport.abort()

    def send(self, *pieces: Buffer) -> None:
        """At the end of this turn of the loop, or with ``flush``."""
        if self._transport is None:
            return
        if not (self._answers or self._acks):
            self._loop.call_soon(self.flush)
        self._answers += pieces

    def acknowledge(self, request_id: int) -> None:
        """The same of an add that is OK; those of one turn go out as one frame."""
        if self._transport is None:
            return
        if not (self._answers or self._acks):
            self._loop.call_soon(self.flush)
        self._acks.append(request_id)

    def flush(self) -> None:
        """Send what is gathered now."""
        answers, self._answers = self._answers, []
        acks, self._acks = self._acks, []
        if self._transport is None:
            return
        if acks:
            answers.append(self._requests.acks(acks))
        if not answers:
            return
        if len(answers) > 1 and sum(map(len, answers)) > _JOINED_BYTES_MAX:
            self._transport.writelines(answers)
        else:
            self._transport.write(b"".join(answers))

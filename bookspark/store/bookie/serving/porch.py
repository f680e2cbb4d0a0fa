"""Where connections wait before they cost the bookie anything: accepted, counted, and silent so far.

Law: before HELLO a connection costs at most 16 KiB and 5 seconds. What it sent stays with the kernel until its first message is
whole: HELLO, or with TLS the ClientHello. Only then it gets a transport, and TLS its state (some 50 KiB), of which there are at
most ``_HANDSHAKES_MAX`` at a time; ``admission`` says which of them goes for another one. Bytes that can be no first message end
the connection at once. So nobody is waited for: a connection is looked at only when the kernel has what was missing
(``SO_RCVLOWAT``).

Measured, per connection in KiB of the process: 6.6 with a plain transport, 47 while TLS shakes hands.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from bookspark.store.bookie.serving.admission import STRANGER_SECONDS, Admission, Stranger, origin_of
from bookspark.store.bookie.serving.answers import refusal_frame
from bookspark.store.bookie.serving.connection import Connection
from bookspark.store.bookie.serving.refusals import Refusals
from bookspark.store.wire.frames import FRAME_START_BYTES, HELLO_BYTES_MAX, frame_size
from bookspark.store.wire.header import WireError
from bookspark.store.wire.security import client_hello_size

_BACKLOG = 4096
_ACCEPTED_AT_ONCE = 64
_HANDSHAKES_MAX = 32
_PEEK_BYTES = 17 << 10
"""Longer than any record of TLS, and so than any first message."""
_NO_DESCRIPTOR_SECONDS = 0.1
"""How long nothing is accepted when the process has no descriptor left although connections are counted."""
_NO_ROOM = "it has as many connections as it may have open; try another bookie, or later"

log = logging.getLogger(__name__)


def listening_sockets(infos: list[tuple[int, tuple[object, ...]]], port: int) -> list[socket.socket]:
    """One for each (family, address). With port 0 the first one's port, which is any free one, is everybody's. Raises OSError."""
    made: list[socket.socket] = []
    try:
        for family, address in infos:
            if made:
                port = made[0].getsockname()[1]
            made.append(socket.create_server((str(address[0]), port), family=family, backlog=_BACKLOG))
            made[-1].setblocking(False)
    except BaseException:
        for one in made:
            one.close()
        raise
    return made


class Porch:
    """Accepts the connections of one bookie, and hands over those whose first message is there. Owned by the loop."""

    def __init__(
        self,
        admission: Admission,
        make: Callable[[Stranger, str], Connection],
        incarnation: int,
        tls: Callable[[], ssl.SSLContext | None],
        refusals: Refusals,
        first_message: Callable[[bytes], int] | None = None,
    ) -> None:
        """``make(stranger, address)`` makes what serves a connection. ``tls()`` is the context of a connection that is made
        now; None without TLS. ``first_message(seen)``: of another protocol than ours, as ``first_message_size``; who is refused
        there is told nothing."""
        self.first_message = first_message or first_message_size
        self._tells = first_message is None
        self.admission = admission
        self.make = make
        self.tls = tls
        self.handshakes: dict[Stranger, None] = {}
        """Those with which TLS shakes hands, the oldest first."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Connections that are being handed over."""
        self._incarnation = incarnation
        self._loop = asyncio.get_running_loop()
        self._listening: list[socket.socket] = []
        self._refusals = refusals

    def open(self, listening: list[socket.socket]) -> None:
        """Accept connections from now on."""
        self._listening = listening
        for one in listening:
            self._loop.add_reader(one.fileno(), self._accept, one)

    async def close(self) -> None:
        """Accept no more, and end who is not greeted."""
        for one in self._listening:
            self._loop.remove_reader(one.fileno())
            one.close()
        self._listening = []
        for stranger in list(self.admission.strangers):
            stranger.end()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def shakes_hands(self, stranger: Stranger) -> None:
        """TLS begins with this one, until it leaves ``handshakes``. The oldest other one may have to go for it."""
        if len(self.handshakes) >= _HANDSHAKES_MAX:
            self.admission.end_oldest(self.handshakes)
        self.handshakes[stranger] = None

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # No descriptor is left, for example because the limit was lowered.
                if self.admission.end_oldest(self.admission.strangers):
                    return
                log.warning("no connection can be accepted: %s", error.strerror)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_NO_DESCRIPTOR_SECONDS, self._go_on, listening)
                return
            accepted.setblocking(False)
            origin = origin_of(str(address[0]))
            if self.admission.make_room(origin):
                Caller(self, accepted, origin, str(address))
            else:
                self.refuse(accepted, str(address), _NO_ROOM)

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self._listening:
            self._loop.add_reader(listening.fileno(), self._accept, listening)

    def refuse(self, connection: socket.socket, address: str, why: str) -> None:
        """End a connection that nobody serves. Without TLS it is told why."""
        self._refusals.tell(address, why)
        with suppress(OSError):
            # A socket that is closed with bytes unread resets the connection, and the reset overtakes the words.
            connection.recv(_PEEK_BYTES)
        with suppress(OSError):
            if self._tells and self.tls() is None:
                connection.send(refusal_frame(self._incarnation, why))
            connection.shutdown(socket.SHUT_WR)
        connection.close()


class Caller:
    """A ``Stranger``: one connection from its acceptance until it is greeted."""

    def __init__(self, porch: Porch, accepted: socket.socket, origin: str, address: str) -> None:
        self.origin = origin
        self._porch = porch
        self._socket = accepted
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._needed = 1
        """The kernel tells of the connection when it has so many bytes, or its end."""
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self.until = self._loop.time() + STRANGER_SECONDS
        porch.admission.arrived(self)
        self._loop.add_reader(accepted.fileno(), self._look)

    def _look(self) -> None:
        try:
            seen = self._socket.recv(_PEEK_BYTES, socket.MSG_PEEK)
            tls = self._porch.tls()
            needed = self._porch.first_message(seen) if tls is None else client_hello_size(seen)
            if len(seen) >= needed:
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
                self._hand_over(tls)
            elif len(seen) < self._needed or needed <= self._needed:
                # It was told of although that is missing: nothing more comes.
                self.end()
            else:
                self._needed = needed
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, needed)
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:
            self.end()
        except WireError as error:
            self._leave()
            self._porch.refuse(self._socket, self._address, str(error))

    def _hand_over(self, tls: ssl.SSLContext | None) -> None:
        self._loop.remove_reader(self._socket.fileno())
        if tls is not None:
            self._porch.shakes_hands(self)
        self._task = self._loop.create_task(self._connect(tls))
        self._porch.tasks.add(self._task)
        self._task.add_done_callback(self._handed_over)

    async def _connect(self, tls: ssl.SSLContext | None) -> None:
        connection = self._connection = self._porch.make(self, self._address)
        seconds = None if tls is None else STRANGER_SECONDS
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, self._socket, ssl=tls, ssl_handshake_timeout=seconds
            )
        except (OSError, asyncio.CancelledError) as error:
            log.debug("connection from %s closed before it began: %r", self._address, error)
            self._porch.admission.lost(self)
        finally:
            self._porch.handshakes.pop(self, None)

    def _handed_over(self, task: asyncio.Task[None]) -> None:
        self._porch.tasks.discard(task)
        if self._connection is None:
            # It was ended before it was begun.
            self._socket.close()

    def _leave(self) -> None:
        """Stop looking at the socket. Nothing else knows of it yet."""
        self._porch.admission.lost(self)
        self._loop.remove_reader(self._socket.fileno())

    def end(self) -> None:
        """End it at once, in whatever state it is."""
        if self._task is None:
            self._leave()
            self._socket.close()
            return
        self._porch.admission.lost(self)
        if self._connection is None:
            # Its task has not begun, and begins no more.
            self._task.cancel()
        else:
            self._connection.abort()
        if self._porch.handshakes.pop(self, self) is None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._task.cancel()


def first_message_size(seen: bytes) -> int:
    """How long the first frame of a connection is that begins with ``seen``, or how many bytes it takes to tell. Raises
    WireError."""
    size = frame_size(seen, bytes_max=HELLO_BYTES_MAX)
    return size if size is not None else FRAME_START_BYTES if len(seen) >= 8 else 8

"""The porch: accepted connections wait here, at little cost, for their first message.

Law: before HELLO a connection costs at most 16 KiB and 5 seconds. The kernel keeps its bytes until its first message is complete:
HELLO, or with TLS the ClientHello. Only then it gets a transport, and TLS its state (some 50 KiB), for at most
``_HANDSHAKES_MAX`` connections at a time; ``admission`` chooses the connection that goes for another. Bytes that can't be a first
message end the connection. The loop wakes for a connection only when the kernel has the missing bytes (``SO_RCVLOWAT``).

A handshake costs the loop a millisecond or more before its peer has proved anything. So each address begins
``_HANDSHAKES_PER_SECOND`` of them, after a first ``_HANDSHAKES_BURST``, and all addresses ``_OF_ALL_PER_SECOND``. Until its turn
a connection waits here, without TLS's state; a later one of the same address may have its turn first.

Measured, per connection in KiB of the process: 6.6 with a plain transport, 47 during a TLS handshake.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import Callable
from contextlib import suppress

from bookspark.protocol.bookie.address_rates import AddressRates
from bookspark.store.bookie.serving.admission import STRANGER_SECONDS, Admission, Stranger
from bookspark.store.bookie.serving.connection import Connection, refusal_frame
from bookspark.store.bookie.serving.served_bookie import Refusals
from bookspark.store.wire.frames import FRAME_START_BYTES, HELLO_BYTES_MAX, frame_size
from bookspark.store.wire.header import WireError
from bookspark.store.wire.security import client_hello_size
from bookspark.support.addresses import origin_of

_BACKLOG = 4096
_ACCEPTED_AT_ONCE = 64
_HANDSHAKES_MAX = 32
_HANDSHAKES_PER_SECOND, _HANDSHAKES_BURST = 20, 100
_OF_ALL_PER_SECOND, _OF_ALL_BURST = 100, 200
_ALL = "all addresses"
_PEEK_BYTES = 17 << 10
"""Longer than any TLS record, and so than any first message."""
_NO_DESCRIPTOR_SECONDS = 0.1
"""Pause of accepting when the process has no descriptor left, although connections are counted."""
_NO_ROOM = "it has as many connections as it may have open; try another bookie, or later"

log = logging.getLogger(__name__)


def listening_sockets(infos: list[tuple[int, tuple[object, ...]]], port: int) -> list[socket.socket]:
    """A listening socket for each (family, address). With port 0 all share the free port of the first. Raises OSError."""
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
    """Accepts the connections of one bookie, and hands them over after their first message. Owned by the loop."""

    def __init__(
        self,
        admission: Admission,
        make: Callable[[Stranger, str], Connection],
        incarnation: int,
        tls: Callable[[], ssl.SSLContext | None],
        refusals: Refusals,
        first_message: Callable[[bytes], int] | None = None,
    ) -> None:
        """``make(stranger, address)``: the handler of a connection. ``tls()``: context for a new connection; None without TLS.
        ``first_message(seen)``: as ``first_message_size``, for another protocol, whose refused connections get no reason."""
        self.first_message = first_message or first_message_size
        self._tells = first_message is None
        self.admission = admission
        self.make = make
        self.tls = tls
        self.handshakes: dict[Stranger, None] = {}
        """Connections in a TLS handshake, oldest first."""
        self._rates = AddressRates(_HANDSHAKES_PER_SECOND, _HANDSHAKES_BURST)
        self._rate_of_all = AddressRates(_OF_ALL_PER_SECOND, _OF_ALL_BURST)
        self.tasks: set[asyncio.Task[None]] = set()
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
        """Accept no more, and end all strangers."""
        for one in self._listening:
            self._loop.remove_reader(one.fileno())
            one.close()
        self._listening = []
        for stranger in list(self.admission.strangers):
            stranger.end()
        if self.tasks:
            await asyncio.wait(self.tasks)

    def wait_for_handshake(self, stranger: Stranger) -> float:
        """Seconds until the stranger may ask again for a handshake; 0: it begins now, and is counted."""
        now = self._loop.time()
        wait = max(self._rates.wait(stranger.origin, now), self._rate_of_all.wait(_ALL, now))
        if wait == 0:
            self._rates.spend(stranger.origin, now)
            self._rate_of_all.spend(_ALL, now)
        return wait

    def shakes_hands(self, stranger: Stranger) -> None:
        """Count a TLS handshake, until it leaves ``handshakes``. It may push out the oldest other handshake."""
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
                # No descriptor is left, for example after the limit was lowered.
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
        """End an unserved connection. Without TLS it gets the reason."""
        self._refusals.tell(address, why)
        with suppress(OSError):
            # A socket closed with unread bytes resets the connection, and the reset overtakes the reason.
            connection.recv(_PEEK_BYTES)
        with suppress(OSError):
            if self._tells and self.tls() is None:
                connection.send(refusal_frame(self._incarnation, why))
            connection.shutdown(socket.SHUT_WR)
        connection.close()


class Caller:
    """A ``Stranger``: a connection from its acceptance until it is greeted."""

    def __init__(self, porch: Porch, accepted: socket.socket, origin: str, address: str) -> None:
        self.origin = origin
        self._porch = porch
        self._socket = accepted
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._needed = 1
        """The kernel reports this many bytes, or the end."""
        self._task: asyncio.Task[None] | None = None
        self._connection: Connection | None = None
        self._timer: asyncio.TimerHandle | None = None
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
                # The kernel reported the connection although bytes are missing: no more will come.
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
            if (wait := self._porch.wait_for_handshake(self)) > 0:
                self._timer = self._loop.call_later(wait, self._hand_over, tls)
                return
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
            # The connection was ended before its start.
            self._socket.close()

    def _leave(self) -> None:
        """Stop watching the socket, still unknown elsewhere."""
        self._porch.admission.lost(self)
        self._loop.remove_reader(self._socket.fileno())
        if self._timer is not None:
            self._timer.cancel()

    def end(self) -> None:
        """End the connection at once, in any state."""
        if self._task is None:
            self._leave()
            self._socket.close()
            return
        self._porch.admission.lost(self)
        if self._connection is None:
            # The connection's task has not started, and never will.
            self._task.cancel()
        else:
            self._connection.abort()
        if self._porch.handshakes.pop(self, self) is None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._task.cancel()


def first_message_size(seen: bytes) -> int:
    """Size of a connection's first frame, or the number of bytes needed to tell, from its start ``seen``. Raises WireError."""
    size = frame_size(seen, bytes_max=HELLO_BYTES_MAX)
    return size if size is not None else FRAME_START_BYTES if len(seen) >= 8 else 8

"""The wire between clients and bookies under a test's control: a TCP proxy before each bookie that parses the frames.

Law: bookies and clients run as in production. A bookie registers its proxy's address (``advertised_address``), so the
clients of all processes come through here. The ``client_name`` in its HELLO identifies a client. The end of one side of a
connection ends the other, but a held request of a gone client is still delivered, as by a network. A connection with TLS
can't be parsed.

::

    park = wire.park(Kind.ADD, bookie=bookie_id, client="writer")
    park.wait()  # an add is held
    park.release()

All sockets belong to one I/O thread. All public calls are thread-safe.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from random import Random
from typing import Any

from bookspark.store.client.network.io_loop import IoLoop
from bookspark.store.wire.frames import Frame, control_frame, frame_size, parse_frame
from bookspark.store.wire.header import Flag, Header, Kind, WireError
from bookspark.store.wire.messages import Acks, Hello
from bookspark.support.addresses import address_text, split_address
from bookspark.support.arguments import BytesOrNone, WaitSeconds, check_names, checks_methods
from bookspark.testing.wire_faults import Delay, Delivery, Duplicate, Fault, Message, Park, Pattern, Rules

_READ_BYTES = 256 << 10

log = logging.getLogger(__name__)


def _pattern(kind: Kind | None, fields: dict[str, Any]) -> Pattern:
    check_names(fields, set(Pattern._fields) - {"kind"}, "field of a pattern")
    return Pattern(kind, **fields).checked()


@checks_methods
class Cut:
    """A cut link: old and new connections are reset until ``mend()`` or the end of the ``with`` statement."""

    def __init__(self, wire: Wire, bookie: str | None, client: str | None) -> None:
        self._wire = wire
        self._bookie = bookie
        self._client = client

    def is_between(self, client: str | None, bookie: str) -> bool:
        """Whether the link between this client and this bookie is cut. A client without a known name is None: only a cut of
        all clients affects it."""
        return self._bookie in (None, bookie) and (self._client is None or self._client == client)

    def mend(self) -> None:
        """Allow connections again."""
        self._wire.mend(self)

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.mend()


@checks_methods
class Wire:
    """All proxies of a cluster, and the faults of its wire.

    ``park``, ``drop``, ``delay`` and ``duplicate`` set a rule and return it. The rule applies until its ``remove()`` or the
    end of its ``with`` statement. All take the fields of ``Pattern`` as arguments, and ``count`` (maximum number of
    messages; None: all). They raise InvalidArgumentError for a pattern that no message can match.
    """

    def __init__(self) -> None:
        self._io = IoLoop("bookspark-wire")
        self._rules = Rules()
        self._proxies: list[Proxy] = []
        self._cuts: list[Cut] = []

    # -- faults

    def park(self, kind: Kind | None = None, *, count: BytesOrNone | None = None, **pattern: Any) -> Park:
        """Hold messages until release or loss."""
        return self._rules.add(Park(_pattern(kind, pattern), count))

    def drop(self, kind: Kind | None = None, *, count: BytesOrNone | None = None, **pattern: Any) -> Fault:
        """Lose messages. ``drop(bookie=…)`` alone silences a bookie."""
        return self._rules.add(Fault(_pattern(kind, pattern), count))

    def delay(
        self,
        seconds: WaitSeconds,
        kind: Kind | None = None,
        *,
        count: BytesOrNone | None = None,
        random: Random | None = None,
        **pattern: Any,
    ) -> Delay:
        """Delay messages by ``seconds`` or, with a ``random``, by a random time from 0 to ``seconds``."""
        return self._rules.add(Delay(_pattern(kind, pattern), seconds, count, random))

    def duplicate(
        self, kind: Kind | None = None, *, seconds: WaitSeconds = 0.0, count: BytesOrNone | None = None, **pattern: Any
    ) -> Duplicate:
        """Send messages twice, the second time ``seconds`` later."""
        return self._rules.add(Duplicate(_pattern(kind, pattern), seconds, count))

    def cut(self, bookie: str | None = None, client: str | None = None) -> Cut:
        """Reset the connections between a client and a bookie, now and until the cut is mended.

        Arguments:
            bookie: the bookie's id; None: all bookies.
            client: the client's ``client_name``; None: all clients.
        """
        Pattern(bookie=bookie, client=client).checked()
        cut = Cut(self, bookie, client)
        self._io.call(self._cut(cut))
        return cut

    def mend(self, cut: Cut) -> None:
        self._io.call(self._mend(cut))

    def heal(self) -> None:
        """Remove every rule and mend every cut."""
        self._rules.clear()
        self._io.call(self._mend(None))

    # -- proxies

    def add_proxy(self) -> Proxy:
        """A new listening proxy. Its connections wait until ``Proxy.leads_to`` names its bookie."""
        return self._io.call(self._add_proxy())

    def close(self) -> None:
        """End every connection and the thread."""
        with contextlib.suppress(TimeoutError):
            self._io.call(self._close())
        self._io.stop()

    # -- in the I/O thread

    async def _add_proxy(self) -> Proxy:
        proxy = Proxy(self, self._io, self._rules)
        await proxy.listen()
        self._proxies.append(proxy)
        return proxy

    async def _cut(self, cut: Cut) -> None:
        self._cuts.append(cut)
        for proxy in self._proxies:
            for link in list(proxy.links):
                if cut.is_between(link.client, proxy.bookie_id):
                    link.abort()

    async def _mend(self, cut: Cut | None) -> None:
        self._cuts = [] if cut is None else [other for other in self._cuts if other is not cut]

    async def _close(self) -> None:
        for proxy in self._proxies:
            await proxy.close()

    def is_cut(self, client: str | None, bookie: str) -> bool:
        """Whether any cut affects this pair; ``client`` is None before its name is known. Only in the I/O thread."""
        return any(cut.is_between(client, bookie) for cut in self._cuts)


class Proxy:
    """The proxy of a bookie. Its address survives restarts of the bookie."""

    def __init__(self, wire: Wire, io: IoLoop, rules: Rules) -> None:
        self.wire = wire
        self.rules = rules
        self.bookie_id = ""
        self.links: dict[_Link, asyncio.Task[Any] | None] = {}
        self.address = ""
        """``host:port``, registered as the bookie's own."""
        self._io = io
        self._server: asyncio.Server | None = None
        self._target = ""
        self._known = asyncio.Event()

    async def listen(self) -> None:
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", 0)
        host, port = self._server.sockets[0].getsockname()
        self.address = address_text(host, port)

    def leads_to(self, bookie_id: str, address: str) -> None:
        """Send connections to ``address`` from now on. While it is empty, they wait."""
        self._io.call(self._leads_to(bookie_id, address))

    async def _leads_to(self, bookie_id: str, address: str) -> None:
        self.bookie_id, self._target = bookie_id or self.bookie_id, address
        if address:
            self._known.set()
        else:
            self._known.clear()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = _Link(self, reader, writer)
        self.links[link] = asyncio.current_task()
        try:
            await self._known.wait()
            if not self.wire.is_cut(None, self.bookie_id):
                await link.run(*await asyncio.open_connection(*split_address(self._target)))
        # No listener there: the client sees the end of its connection. Or ``close`` cancelled this task.
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            link.close()
            del self.links[link]

    async def close(self) -> None:
        """End every connection, and stop listening."""
        if self._server is not None:
            self._server.close()
        tasks = [task for task in self.links.values() if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


class _Link:
    """A client's connection, together with its continuation to the bookie."""

    def __init__(self, proxy: Proxy, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.client: str | None = None
        self._proxy = proxy
        self._from_client, self._to_client = reader, writer
        self._to_bookie: asyncio.StreamWriter | None = None
        self._requests: dict[int, Header] = {}
        self._parts: dict[int, bytes] = {}
        """By request id, frames of answers without their last frame yet: an answer is one message."""
        self._unsettled = 0
        """Number of requests neither sent on nor lost."""
        self._settled = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass messages on until either side ends."""
        self._to_bookie = writer
        requests = asyncio.ensure_future(self._pump(self._from_client, writer, response=False))
        responses = asyncio.ensure_future(self._pump(reader, self._to_client, response=True))
        try:
            await asyncio.wait([requests, responses], return_when=asyncio.FIRST_COMPLETED)
            while self._unsettled and not responses.done():
                self._settled.clear()
                settled = asyncio.ensure_future(self._settled.wait())
                await asyncio.wait([settled, responses], return_when=asyncio.FIRST_COMPLETED)
                settled.cancel()
            await _drain(writer)
        finally:
            for task in (requests, responses):
                task.cancel()
            for outcome in await asyncio.gather(requests, responses, return_exceptions=True):
                if isinstance(outcome, WireError):
                    log.warning("a connection of %s was cut: %s", self.client, outcome)

    def settle(self) -> None:
        """A request was sent on or lost."""
        self._unsettled -= 1
        self._settled.set()

    def close(self) -> None:
        """End both connections. Sent data still arrives."""
        for writer in (self._to_client, self._to_bookie):
            if writer is not None:
                writer.close()

    def abort(self) -> None:
        """Reset both connections."""
        for writer in (self._to_client, self._to_bookie):
            if writer is not None:
                writer.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, response: bool) -> None:
        received = bytearray()
        while data := await reader.read(_READ_BYTES):
            received += data
            at = 0
            while (size := frame_size(memoryview(received), at)) is not None and at + size <= len(received):
                self._pass_on(bytes(received[at : at + size]), writer, response)
                at += size
            del received[:at]
            await _drain(writer)

    def _pass_on(self, frame: bytes, writer: asyncio.StreamWriter, response: bool) -> None:
        parsed = parse_frame(memoryview(frame))
        header = parsed.header
        if response and header.kind == Kind.ACKS:
            for request_id in Acks.decode(parsed.body):
                self._pass_on_ack(header, request_id, writer)
            return
        if response:
            frame = self._parts.pop(header.request_id, b"") + frame
            if header.flags & Flag.MORE:
                self._parts[header.request_id] = frame
                return
            request = self._requests.pop(header.request_id, header)
        else:
            request = self._requests[header.request_id] = header
            self._unsettled += 1
            if self.client is None or header.kind == Kind.HELLO:
                # A client with a secret names itself in its second HELLO.
                self._greeted(parsed)
        self._deliver(request, header, frame, writer, response)

    def _pass_on_ack(self, acks: Header, request_id: int, writer: asyncio.StreamWriter) -> None:
        """Pass on each acknowledgement of a frame as a message of its own."""
        frame = control_frame(acks._replace(value=1), Acks.encode((request_id,)))
        request = self._requests.pop(request_id, acks)
        self._deliver(request, acks._replace(value=1), frame, writer, response=True)

    def _deliver(
        self, request: Header, header: Header, frame: bytes, writer: asyncio.StreamWriter, response: bool
    ) -> None:
        message = Message(self.client or "", self._proxy.bookie_id, response, request, header, len(frame))
        outgoing = _Outgoing(writer, frame, None if response else self)
        self._proxy.rules.apply(Delivery(message, outgoing.send, outgoing.abandon))

    def _greeted(self, hello: Frame) -> None:
        self.client = Hello.decode(hello.body).client if hello.header.kind == Kind.HELLO else ""
        if self._proxy.wire.is_cut(self.client, self._proxy.bookie_id):
            self.abort()
            raise ConnectionAbortedError("this link is cut")


class _Outgoing:
    """A frame to send at once, later, never, or twice. Its methods are callable from any thread."""

    def __init__(self, writer: asyncio.StreamWriter, frame: bytes, request_of: _Link | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._writer = writer
        self._frame = frame
        self._link = request_of

    def send(self, delay_seconds: WaitSeconds) -> None:
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._send, delay_seconds)
        else:
            self._send(delay_seconds)

    def abandon(self) -> None:
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self._settle)
        else:
            self._settle()

    def _send(self, delay_seconds: WaitSeconds) -> None:
        if delay_seconds > 0:
            self._loop.call_later(delay_seconds, self._write)
        else:
            self._write()

    def _write(self) -> None:
        if not self._writer.is_closing():
            self._writer.write(self._frame)
        self._settle()

    def _settle(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            link.settle()


async def _drain(writer: asyncio.StreamWriter) -> None:
    """Wait until the peer accepts more data. An error is ignored: the next read from the peer shows it."""
    if not writer.is_closing():
        with contextlib.suppress(OSError):
            await writer.drain()

"""Helpers of the bookie's tests: batches, a storage with a loop stood in for, a server in a thread, a client that blocks."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import uvloop

from bookspark.bookie.config import BookieConfig
from bookspark.bookie.file_system import FileSystem
from bookspark.bookie.server import BookieServer
from bookspark.bookie.storage import Storage
from bookspark.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.wire.frames import Frame, FrameReceiver, control_frame
from bookspark.wire.header import PROTOCOL_VERSION, Header, Kind, Status, decode

KEY = b"k" * 16
OTHER_KEY = b"o" * 16
SECONDS_MAX = 20.0


def config(*directories: Path, **options: Any) -> BookieConfig:
    return BookieConfig(directories=tuple(map(str, directories)), zookeeper="-", **options)


def entries(ledger_id: int, first: int, last: int, payload: bytes = b"payload", confirmed: int = -1) -> list[Entry]:
    """Entries whose payload tells their id, all of one size, so that their cumulative length is the same in any grouping."""
    made = []
    for entry_id in range(first, last + 1):
        content = b"%08d:%s" % (entry_id, payload)
        made.append(Entry(ledger_id, entry_id, confirmed, len(content) * (entry_id + 1), content, b"dgst"))
    return made


def add_frame(ledger_id: int, first: int, last: int | None = None, **options: Any) -> bytes:
    """An ADD frame of ``entries``; options: payload, confirmed, and the fields of a header."""
    last = first if last is None else last
    payload = options.pop("payload", b"payload")
    rows = entries(ledger_id, first, last, payload, options.get("last_add_confirmed", -1))
    request_id = options.pop("request_id", 0)
    options.setdefault("master_key", KEY)
    return encode_entries(Header(Kind.ADD, request_id, ledger_id, first, last, **options), rows)


class Pumped:
    """A storage whose loop is the test itself: what commit threads post runs when the test waits."""

    def __init__(self, settings: BookieConfig, file_system: FileSystem | None = None) -> None:
        self._posted: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self.storage = Storage(settings, file_system).open()
        self.storage.start(lambda function, *arguments: self._posted.put((function, arguments)))

    def wait(self, done: Callable[[], bool]) -> None:
        while not done():
            function, arguments = self._posted.get(timeout=SECONDS_MAX)
            function(*arguments)

    def run(self, call: Callable[..., None], *arguments: Any) -> Status:
        """Make a call that ends with a ``done(status)``, and wait for it."""
        statuses: list[int] = []
        call(*arguments, statuses.append)
        self.wait(lambda: bool(statuses))
        return Status(statuses[0])

    def submit(self, frame: bytes) -> list[int]:
        """Add without waiting; the status will be in the list."""
        statuses: list[int] = []
        header, crc = decode(frame, 88)
        self.storage.add(header, EntryBatch.checked(frame, header, crc), statuses.append)
        return statuses

    def add(self, ledger_id: int, first: int, last: int | None = None, **options: Any) -> Status:
        statuses = self.submit(add_frame(ledger_id, first, last, **options))
        self.wait(lambda: bool(statuses))
        return Status(statuses[0])

    def fence(self, ledger_id: int, key: bytes = KEY) -> Status:
        return self.run(self.storage.fence, ledger_id, key)

    def read(self, ledger_id: int, first: int, last: int, *, sparse: bool = False) -> tuple[list[Entry], Any]:
        """The entries, and the refusal of the id after them (None: none)."""
        plan = self.storage.plan_read(ledger_id, first, last, 0, sparse=sparse)
        frames = self.storage.files.fetch(plan.pieces, cached_only=False)
        assert frames is not None
        found: list[Entry] = []
        for piece, frame in zip(plan.pieces, frames, strict=False):
            found += EntryBatch(frame).entries(piece.first, piece.last)
        return found, "bad frame" if len(frames) < len(plan.pieces) else plan.refusal

    def ids(self, ledger_id: int) -> list[int]:
        return [entry.entry_id for entry in self.read(ledger_id, 0, 1 << 40, sparse=True)[0]]

    def checkpoint(self) -> None:
        steps = self.storage.checkpoint()
        try:
            while True:
                next(steps)
        except StopIteration as prepared:
            self.storage.write_checkpoints(prepared.value)


class Client:
    """A connection that sends frames and waits for frames."""

    def __init__(self, address: tuple[str, int], *, greet: bool = True) -> None:
        self.socket = socket.create_connection(address, timeout=SECONDS_MAX)
        self._receiver = FrameReceiver()
        self._frames: list[Frame] = []
        self._requests = 0
        if greet:
            self.call(Header(Kind.HELLO, 0, value=PROTOCOL_VERSION))

    def send(self, *frames: bytes) -> None:
        self.socket.sendall(b"".join(frames))

    def receive(self) -> Frame:
        """The next frame; EOFError if the bookie closed the connection."""
        while not self._frames:
            count = self.socket.recv_into(self._receiver.buffer())
            if count == 0:
                raise EOFError
            self._frames += self._receiver.received(count)
        return self._frames.pop(0)

    def call(self, header: Header, body: bytes = b"") -> Frame:
        """Send a control frame, wait for its one answer."""
        self._requests += 1
        self.send(control_frame(header._replace(request_id=self._requests), body))
        answer = self.receive()
        assert answer.header.request_id == self._requests
        return answer

    def add(self, ledger_id: int, first: int, last: int | None = None, **options: Any) -> Header:
        self.send(add_frame(ledger_id, first, last, **options))
        return self.receive().header

    def read(self, ledger_id: int, first: int, last: int, **options: Any) -> tuple[list[Entry], Header]:
        """The entries of all batch frames, and the header of the control frame that ends the answer."""
        self.send(control_frame(Header(Kind.READ, 7, ledger_id, first, last, **options)))
        found: list[Entry] = []
        while (answer := self.receive()).batch is not None:
            batch = EntryBatch.checked(answer.batch, answer.header, answer.body_crc)
            found += batch.entries()
        return found, answer.header

    def close(self) -> None:
        self.socket.close()


@contextmanager
def serving(
    settings: BookieConfig, file_system: FileSystem | None = None
) -> Iterator[tuple[BookieServer, tuple[str, int]]]:
    """A bookie's server on a loop in a thread of its own; stopped and closed at the end."""
    storage = Storage(settings, file_system).open()
    server = BookieServer(settings, storage, "bookie-test", 77)
    loop = uvloop.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="bookie loop")
    thread.start()
    try:
        address = asyncio.run_coroutine_threadsafe(server.start(), loop).result(SECONDS_MAX)
        try:
            yield server, address
        finally:
            asyncio.run_coroutine_threadsafe(server.stop(), loop).result(3 * SECONDS_MAX)
            storage.close()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join(SECONDS_MAX)
        loop.close()


def payloads(found: Sequence[Entry]) -> list[bytes]:
    return [entry.payload for entry in found]

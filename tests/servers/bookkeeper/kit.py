"""A client of BookKeeper's protocol for tests: it encodes requests and reads answers from a socket."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bookspark.protocol.ledger.bookkeeper_keys import bookkeeper_master_key
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.servers.bookkeeper.door import BookKeeperDoor
from bookspark.servers.bookkeeper.messages import SCHEMA, Operation
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.wire.digests import digester
from tests.store.bookie.kit import SECONDS_MAX, serving

PASSWORD = b"secret"
KEY = bookkeeper_master_key(PASSWORD)


def framed(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def add_2(key: bytes, body: bytes, flags: int = 0) -> bytes:
    """An add of version 2."""
    return framed(struct.pack(">BBH", 2, 1, flags) + key + body)


def read_2(ledger_id: int, entry_id: int, key: bytes = b"") -> bytes:
    """A read of version 2; with a key, a fencing read."""
    return framed(struct.pack(">BBHqq", 2, 2, 1 if key else 0, ledger_id, entry_id) + key)


def request(operation: Operation, txn: int, name: str, **fields: Any) -> bytes:
    """A request of version 3."""
    made = SCHEMA.message("Request")()
    made.header.version, made.header.operation, made.header.txnId = 3, operation, txn
    part = getattr(made, name)
    part.SetInParent()
    for field, value in fields.items():
        setattr(part, field, value)
    return framed(made.SerializeToString())


def body(
    ledger_id: int,
    entry_id: int,
    payload: bytes,
    confirmed: int = -1,
    length: int | None = None,
    digest_type: DigestType = DigestType.BOOKKEEPER_CRC32C,
) -> bytes:
    """An entry's body, encoded as by BookKeeper's client."""
    row = (ledger_id, entry_id, confirmed, len(payload) * (entry_id + 1) if length is None else length)
    return struct.pack(">qqqq", *row) + digester(digest_type, PASSWORD)(*row, payload) + payload


class Caller:
    """One connection to the BookKeeper port."""

    def __init__(self, address: tuple[str, int]) -> None:
        self.socket = socket.create_connection(address, SECONDS_MAX)

    def send(self, *requests: bytes) -> None:
        self.socket.sendall(b"".join(requests))

    def frame(self) -> bytes:
        """The next answer, without its length prefix."""
        (size,) = struct.unpack(">I", self._exactly(4))
        return self._exactly(size)

    def answer(self) -> Any:
        """The next answer of version 3."""
        return SCHEMA.message("Response").FromString(self.frame())

    def statuses(self, count: int) -> dict[int, int]:
        """The status of each of the next answers of version 3, by transaction."""
        answers = [self.answer() for _ in range(count)]
        return {answer.header.txnId: answer.status for answer in answers}

    def answer_2(self) -> tuple[int, int, int, bytes]:
        """The next answer of version 2: code, ledger id, entry id and the rest."""
        told = self.frame()
        _, code, ledger_id, entry_id = struct.unpack_from(">IIqq", told)
        return code, ledger_id, entry_id, told[24:]

    def _exactly(self, count: int) -> bytes:
        found = b""
        while len(found) < count:
            if not (piece := self.socket.recv(count - len(found))):
                raise ConnectionError("the bookie ended the connection")
            found += piece
        return found


@contextmanager
def open_door(
    settings: BookieConfig,
    digest_type: Callable[[int], DigestType] = lambda ledger_id: DigestType.BOOKKEEPER_CRC32C,
    **options: Any,
) -> Iterator[tuple[Any, Callable[[], Caller], tuple[str, int]]]:
    """A bookie with both ports: its server, a function that connects to the BookKeeper port, and the address of its own port.
    ``options``: of ``serving``."""
    callers: list[Caller] = []
    with serving(settings, **options) as (server, address):
        door = BookKeeperDoor(settings, server, digest_type)
        loop = server._porch._loop

        def on_loop(work: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result(SECONDS_MAX)

        there = on_loop(door.start())

        def call() -> Caller:
            callers.append(Caller(there))
            return callers[-1]

        try:
            yield server, call, address
        finally:
            for caller in callers:
                caller.socket.close()
            on_loop(door.stop())

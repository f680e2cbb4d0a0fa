"""Reads of entries from Apache BookKeeper's bookies, by version 3 of its wire protocol.

Law: a body without the digest of its ledger's password is no copy, and the reader asks the next bookie of the write set. Each
socket operation has a timeout. An entry that no bookie returns is an error with each bookie's reason; it never counts as absent.
Requests are pipelined, ``_AT_ONCE`` entries at a time, which bounds the memory.

Source: BookKeeper's ``PendingReadOp`` and ``BookkeeperProtocol.proto``.
"""

from __future__ import annotations

import socket
import struct
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from bookspark.errors import ReadError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.servers.bookkeeper.entries import entry_of
from bookspark.servers.bookkeeper.messages import SCHEMA, VERSION_3, Operation
from bookspark.store.wire.digests import digester
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Entry
from bookspark.store.wire.header import WireError

_AT_ONCE = 64
_SECONDS = 30.0
_SIZE = struct.Struct(">I")
_OK = 0


class EntryReader:
    """Reads the entries of many ledgers, until ``close``. For one thread. A bookie that fails once is not asked again."""

    def __init__(self, addresses: Mapping[str, tuple[str, int]]) -> None:
        """``addresses``: host and port of each live bookie, by bookie id (``Source.addresses``)."""
        self._addresses = addresses
        self._connections: dict[str, socket.socket] = {}
        self._failed: dict[str, str] = {}

    def __enter__(self) -> EntryReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def entries(self, metadata: LedgerMetadata) -> Iterator[list[Entry]]:
        """All entries of a closed ledger in order, as lists of at most ``_AT_ONCE``. Raises ReadError."""
        for first in range(0, metadata.last_entry_id + 1, _AT_ONCE):
            yield self._read(metadata, range(first, min(first + _AT_ONCE, metadata.last_entry_id + 1)))

    def _read(self, metadata: LedgerMetadata, ids: range) -> list[Entry]:
        found: dict[int, Entry] = {}
        why: dict[int, list[str]] = defaultdict(list)
        for attempt in range(metadata.write_quorum):
            asked: dict[str, list[int]] = defaultdict(list)
            for entry_id in ids:
                if entry_id not in found:
                    asked[metadata.write_set_of(entry_id)[attempt]].append(entry_id)
            for bookie_id, wanted in asked.items():
                for entry_id, told in self._ask(bookie_id, metadata.ledger_id, wanted):
                    try:
                        found[entry_id] = _checked(told, metadata, entry_id)
                    except WireError as error:
                        why[entry_id].append(f"{bookie_id}: {error}")
            if len(found) == len(ids):
                return [found[entry_id] for entry_id in ids]
        lost = next(entry_id for entry_id in ids if entry_id not in found)
        raise ReadError(
            f"entry {lost} of ledger {metadata.ledger_id} can't be read from any of its bookies: {'; '.join(why[lost])}"
        )

    def _ask(self, bookie_id: str, ledger_id: int, ids: list[int]) -> Iterator[tuple[int, bytes | str]]:
        """For each entry id the entry's body as bytes, or the reason of its absence as text."""
        left = dict(enumerate(ids))
        try:
            connection = self._connection(bookie_id)
            connection.sendall(b"".join(_request(txn, ledger_id, entry_id) for txn, entry_id in left.items()))
            while left:
                answer = SCHEMA.parse("Response", _frame(connection))
                entry_id = left.pop(answer.header.txnId)
                if answer.status != _OK or answer.read.status != _OK:
                    yield entry_id, f"status {answer.read.status or answer.status}"
                else:
                    yield entry_id, answer.read.body
        except (OSError, ValueError, KeyError) as error:
            # Later frames of this connection can't be assigned to requests any more.
            if (broken := self._connections.pop(bookie_id, None)) is not None:
                broken.close()
            self._failed[bookie_id] = str(error)
            for entry_id in left.values():
                yield entry_id, str(error)

    def _connection(self, bookie_id: str) -> socket.socket:
        if bookie_id in self._failed:
            raise OSError(self._failed[bookie_id])
        if bookie_id not in self._connections:
            if bookie_id not in self._addresses:
                raise OSError("it is not up")
            self._connections[bookie_id] = socket.create_connection(self._addresses[bookie_id], _SECONDS)
        return self._connections[bookie_id]


def _request(txn: int, ledger_id: int, entry_id: int) -> bytes:
    message: Any = SCHEMA.message("Request")()
    message.header.version, message.header.operation, message.header.txnId = VERSION_3, Operation.READ_ENTRY, txn
    message.read.ledgerId, message.read.entryId = ledger_id, entry_id
    body: bytes = message.SerializeToString()
    return _SIZE.pack(len(body)) + body


def _frame(connection: socket.socket) -> bytes:
    (size,) = _SIZE.unpack(_exactly(connection, _SIZE.size))
    if size > FRAME_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    return _exactly(connection, size)


def _exactly(connection: socket.socket, count: int) -> bytes:
    found = bytearray()
    while len(found) < count:
        piece = connection.recv(count - len(found))
        if not piece:
            raise ConnectionError("it ended the connection")
        found += piece
    return bytes(found)


def _checked(told: bytes | str, metadata: LedgerMetadata, entry_id: int) -> Entry:
    """The entry in a body. Raises WireError if the body is a reason, another entry, or has another digest."""
    if isinstance(told, str):
        raise WireError(told)
    entry = entry_of(told, metadata.ledger_id, entry_id, metadata.digest_type, recovery=True)
    if digester(metadata.digest_type, metadata.password)(*entry[:5]) != entry.digest:
        raise WireError(f"its copy does not carry the digest ({metadata.digest_type.value})")
    return entry

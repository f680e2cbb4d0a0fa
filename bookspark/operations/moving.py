"""Copy of one ledger from an Apache BookKeeper cluster, under the same ledger id.

Law: only closed ledgers are copied. The copy has the same payloads, entry ids, quorums, digest type, password and custom
metadata. It counts as copied only after every payload was read back here and is equal. Each failure is an error with its remedy.

A second run compares a ledger that is here already. It finishes an interrupted copy, or deletes it and copies again. Every other
ledger here stays unchanged.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
import socket
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, NamedTuple

from bookspark import errors
from bookspark.errors import ConfigurationError, MetadataStoreError, NoSuchClusterError, NoSuchLedgerError, ReadError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.servers.bookkeeper.entries import entry_of
from bookspark.servers.bookkeeper.messages import SCHEMA, VERSION_3, Operation
from bookspark.store.client.bookkeeper import BookKeeper
from bookspark.store.cluster_view import known_bookies
from bookspark.store.metadata.records.bookkeeper_format import is_service_info, ledger_of, rpc_address
from bookspark.store.metadata.records.versioned import compare_and_set
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.layout import parse_address
from bookspark.store.metadata.zookeeper.nodes import Nodes
from bookspark.store.wire.digests import digester
from bookspark.store.wire.entry_batch import FRAME_BYTES_MAX, Entry
from bookspark.store.wire.header import WireError
from bookspark.support.addresses import address_text, split_address

log = logging.getLogger(__name__)


# -- Reads of entries from Apache BookKeeper's bookies, by version 3 of its wire protocol.
#
# Law: a body without the digest of its ledger's password is no copy, and the reader asks the next bookie of the write set. Each
# socket operation has a timeout. An entry that no bookie returns is an error with each bookie's reason; it never counts as
# absent. Requests are pipelined, ``_AT_ONCE`` entries at a time, which bounds the memory.
#
# Source: BookKeeper's ``PendingReadOp`` and ``BookkeeperProtocol.proto``.


_AT_ONCE = 64
_READ_SECONDS = 30.0
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

    def __exit__(self, *exc_info: object) -> None:
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
            self._connections[bookie_id] = socket.create_connection(self._addresses[bookie_id], _READ_SECONDS)
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


# -- Ledgers and bookie addresses of an Apache BookKeeper cluster, read from its ZooKeeper.
#
# Law: the source cluster is never written to. Each read is as new as every earlier acknowledged write. A ledger with an
# unreadable record is an error that names the ledger, never an absent ledger.
#
# Source: BookKeeper's ``HierarchicalLedgerManager``, ``LongHierarchicalLedgerManager`` and ``ZKRegistrationManager``.


_MANAGERS = ("HierarchicalLedgerManagerFactory", "LongHierarchicalLedgerManagerFactory")
_TIMEOUT_SECONDS = 10.0
_START_SECONDS = 15.0
_SHORT_LEVELS = (2, 4)
_LONG_LEVELS = (3, 4, 4, 4)
_LAST_DIGITS = 4


class Source:
    """The source cluster of a copy, until ``close``. Not for use after a fork."""

    def __init__(self, connect: str) -> None:
        """``connect``: ``[zk://]host[:port][,…]/ledgers``, with the ledgers' root path at the end.

        Raises ConfigurationError, NoSuchClusterError if LAYOUT is missing or unknown, MetadataStoreError if no server answers.
        """
        address = parse_address(connect)
        if not address.chroot:
            raise ConfigurationError(f"{connect!r} names no root path; BookKeeper's own is /ledgers")
        self._root = address.chroot
        self._connection = Connection(
            address,
            timeout_seconds=_TIMEOUT_SECONDS,
            session_timeout_seconds=_TIMEOUT_SECONDS,
            start_timeout_seconds=_START_SECONDS,
            connected=lambda: None,
        )
        self._nodes = Nodes(self._connection)
        try:
            self._check_layout()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()

    def _check_layout(self) -> None:
        found = self._nodes.read("reading LAYOUT", f"{self._root}/LAYOUT")
        told = "" if found is None else found.value.decode(errors="replace")
        manager = told.partition("\n")[2].partition(":")[0].rpartition(".")[2]
        if manager not in _MANAGERS:
            raise NoSuchClusterError(
                f"{self._root}/LAYOUT of {self._connection.address.servers} "
                + (f"says {told[:100]!r}" if found is not None else "is not there")
                + f"; ledgers are copied from clusters with one of {', '.join(_MANAGERS)}"
            )

    @cached_property
    def identity(self) -> str:
        """The cluster's instance id, else its servers and root path. Raises MetadataStoreError."""
        found = self._nodes.read("reading INSTANCEID", f"{self._root}/INSTANCEID")
        return (
            f"{self._connection.address.servers}{self._root}" if found is None else found.value.decode(errors="replace")
        )

    def ledger_ids(self) -> list[int]:
        """The ids of all ledgers, ascending. Raises MetadataStoreError."""
        return sorted({*self._below(_SHORT_LEVELS), *self._below(_LONG_LEVELS)})

    def _below(self, levels: tuple[int, ...]) -> list[int]:
        what, paths = "listing the ledgers", {"": self._root}
        for digits in levels:
            names = self._nodes.children_of_each(what, list(paths.values()))
            paths = {
                before + name: f"{path}/{name}"
                for (before, path), found in zip(paths.items(), names, strict=True)
                for name in found
                if len(name) == digits and name.isdecimal()
            }
        leaves = self._nodes.children_of_each(what, list(paths.values()))
        return [
            int(before + name[1:])
            for before, names in zip(paths, leaves, strict=True)
            for name in names
            if name[:1] == "L" and len(name) == 1 + _LAST_DIGITS and name[1:].isdecimal()
        ]

    def ledger(self, ledger_id: int) -> LedgerMetadata:
        """A ledger's metadata with its password. Raises NoSuchLedgerError, UnreadableRecordError, MetadataStoreError."""
        levels, width = (_SHORT_LEVELS, 10) if ledger_id < 1 << 31 else (_LONG_LEVELS, 19)
        digits, path = f"{ledger_id:0{width}}", self._root
        for count in levels:
            path, digits = f"{path}/{digits[:count]}", digits[count:]
        found = self._nodes.read(f"reading ledger {ledger_id}", f"{path}/L{digits}")
        if found is None:
            raise NoSuchLedgerError(f"no ledger {ledger_id} at {self._root} of {self._connection.address.servers}")
        return ledger_of(ledger_id, found.value)

    def addresses(self) -> dict[str, tuple[str, int]]:
        """Host and port of each live bookie, writable or read-only, by bookie id. Raises MetadataStoreError."""
        what, found = "reading the bookies", {}
        for parent in (f"{self._root}/available", f"{self._root}/available/readonly"):
            names = [name for name in self._nodes.children(what, parent) if name != "readonly"]
            documents = self._nodes.read_each(what, [f"{parent}/{name}" for name in names])
            for name, document in zip(names, documents, strict=True):
                if document is None:
                    continue
                told = rpc_address(document) if is_service_info(document) else address_text(*name.rpartition(":")[::2])
                try:
                    found[name] = split_address(told)
                except ValueError as error:
                    raise MetadataStoreError(f"the registration of bookie {name} has no address: {error}") from error
        return found


# -- Interrupted copies: the copying process ended before the copy was complete and compared.
#
# Law: a copy carries a label with the source cluster's identity until its comparison. Only labelled ledgers are deleted. Ledger
# recovery comes first and fences the copy's writer, which may still live. A copy with all entries is then only compared. Any
# other is deleted, and every bookie collects its entries, because the id is used again; so every bookie must be up. Stale entries
# on an unknown bookie are harmless: the source ledger is closed, so they equal the new ones.
#
# Only the creator of the record ``copies/<ledger>.<token>`` (token: of the ledger's creation) deletes, and only if the copy is
# still there afterwards. The record is deleted last. So a run with an old view never deletes the copy's replacement.


LABEL = "bookspark.copy_from"
_RECORDS = "copies"
_COLLECT_SECONDS = 600.0


def labelled(metadata: LedgerMetadata, source: str) -> dict[str, bytes]:
    """The custom metadata of an unfinished copy."""
    return {**metadata.custom_metadata, LABEL: source.encode()}


def is_broken_off(here: LedgerMetadata, source: str) -> bool:
    """Is the ledger an unfinished copy from this source cluster?"""
    return here.custom_metadata.get(LABEL) == source.encode()


def recovered(bookkeeper: BookKeeper, there: LedgerMetadata) -> LedgerMetadata:
    """Recover the copy of ``there``, which fences its writer, and return its metadata. Raises as ``BookKeeper.open_ledger``."""
    with bookkeeper.open_ledger(there.ledger_id, there.password):
        return bookkeeper.get_ledger_metadata(there.ledger_id)


def delete(bookkeeper: BookKeeper, here: LedgerMetadata) -> None:
    """Delete an interrupted copy and collect its entries on all bookies.

    Raises BookieError if a bookie is down, LedgerExistsError if another run deletes the copy or was stopped during the deletion.
    """
    store, ledger_id = bookkeeper.metadata, here.ledger_id
    away = known_bookies(store).down()
    if away:
        raise errors.BookieError(
            f"the copy of ledger {ledger_id} was broken off, and {', '.join(away)} may hold entries of it and is not up; start "
            "it, or decommission it, and run the job again"
        )
    name = f"{ledger_id}.{here.c_token}"
    try:
        # The random value identifies this run's record if the reply is lost.
        store.write_record(_RECORDS, name, secrets.token_bytes(16), None)
    except errors.MetadataVersionError as error:
        raise _by_another(ledger_id) from error
    if not _is_there(bookkeeper, here):
        store.delete_record(_RECORDS, name)
        raise _by_another(ledger_id)
    log.warning("the copy of ledger %d was broken off; it is deleted and made anew", ledger_id)
    bookkeeper.delete_ledger(ledger_id)
    for bookie_id in store.bookies():
        bookkeeper.collect_now(bookie_id, _COLLECT_SECONDS)
    store.delete_record(_RECORDS, name)


def finish(bookkeeper: BookKeeper, ledger_id: int) -> None:
    """Remove the label of a complete, compared copy. Raises MetadataVersionError if each attempt meets a changed record."""
    store = bookkeeper.metadata

    def without_label(found: LedgerMetadata | None) -> LedgerMetadata:
        assert found is not None
        labels = {name: value for name, value in found.custom_metadata.items() if name != LABEL}
        return replace(found, custom_metadata=labels)

    def write(found: LedgerMetadata, version: int | None) -> int:
        assert version is not None
        return store.write_ledger(found, version)

    # Autorecovery may change an ensemble meanwhile.
    compare_and_set(f"ledger {ledger_id}", partial(store.read_ledger, ledger_id), without_label, write)


def _is_there(bookkeeper: BookKeeper, here: LedgerMetadata) -> bool:
    """Does the ledger id still name the ledger ``here``?"""
    try:
        return bookkeeper.get_ledger_metadata(here.ledger_id).c_token == here.c_token
    except errors.NoSuchLedgerError:
        return False


def _by_another(ledger_id: int) -> errors.LedgerExistsError:
    return errors.LedgerExistsError(
        f"the copy of ledger {ledger_id} was broken off, and another run deletes it; if none is at work, that one was stopped: "
        f"`bookspark ledger delete {ledger_id}`, and run the job again"
    )


# -- Copies of ledgers


_SECONDS = 120.0


class Copied(NamedTuple):
    """A ledger that is equal in both clusters."""

    ledger_id: int
    entries: int
    byte_count: int
    was_there: bool
    """The ledger was here before this run."""


class _Sum:
    """Count, bytes and digest of payloads; the digest covers each payload's length and bytes."""

    def __init__(self) -> None:
        self.entries = self.byte_count = 0
        self._digest = hashlib.sha256()

    def take(self, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            self.entries += 1
            self.byte_count += len(payload)
            self._digest.update(len(payload).to_bytes(8, "big"))
            self._digest.update(payload)

    def told(self) -> tuple[int, int, str]:
        return self.entries, self.byte_count, self._digest.hexdigest()


def copy_ledger(source: Source, reader: EntryReader, bookkeeper: BookKeeper, ledger_id: int) -> Copied:
    """Copy a ledger, or compare it with the ledger that is here already.

    Raises:
        NoSuchLedgerError: the source has no ledger with this id.
        ReadError: the source ledger is not closed, or no bookie there returns one of its entries.
        LedgerExistsError: another ledger has this id here, or another run copies it.
        BookieError: an interrupted copy must be deleted, and a bookie that may hold its entries is down.
        DataLossError: the copy differs from the source.
        BookKeeperError: errors of the writing and reading of a ledger.
    """
    metadata = source.ledger(ledger_id)
    if not metadata.closed:
        raise errors.ReadError(
            f"ledger {ledger_id} is {metadata.state.value} there; closed ledgers are copied: let its writer close it, or have it "
            f"recovered (bookkeeper shell readledger -ledgerid {ledger_id} -force-recovery)"
        )
    wrong = errors.DataLossError(f"the copy of ledger {ledger_id} is not what was copied; delete it, and copy it again")
    try:
        here = bookkeeper.get_ledger_metadata(ledger_id)
    except errors.NoSuchLedgerError:
        there = _written(reader, bookkeeper, metadata, source.identity)
    else:
        if is_broken_off(here, source.identity):
            there = _gone_on(source, reader, bookkeeper, metadata)
            _compare(bookkeeper, metadata, there, wrong)
            finish(bookkeeper, ledger_id)
            return Copied(ledger_id, there.entries, there.byte_count, was_there=False)
        if not here.closed or here.last_entry_id != metadata.last_entry_id:
            raise _another(ledger_id, f"it is {here.state.value}, and its last entry is {here.last_entry_id}")
        there = _read(reader, metadata)
        _compare(bookkeeper, metadata, there, _another(ledger_id, "its entries are others"))
        return Copied(ledger_id, there.entries, there.byte_count, was_there=True)
    _compare(bookkeeper, metadata, there, wrong)
    finish(bookkeeper, ledger_id)
    return Copied(ledger_id, there.entries, there.byte_count, was_there=False)


def _gone_on(source: Source, reader: EntryReader, bookkeeper: BookKeeper, metadata: LedgerMetadata) -> _Sum:
    """Complete an interrupted copy."""
    here = recovered(bookkeeper, metadata)
    if here.last_entry_id == metadata.last_entry_id:
        return _read(reader, metadata)
    delete(bookkeeper, here)
    return _written(reader, bookkeeper, metadata, source.identity)


def _read(reader: EntryReader, metadata: LedgerMetadata) -> _Sum:
    """Read the whole source ledger."""
    there = _Sum()
    for entries in reader.entries(metadata):
        there.take(entry.payload for entry in entries)
    return there


def _written(reader: EntryReader, bookkeeper: BookKeeper, metadata: LedgerMetadata, identity: str) -> _Sum:
    there = _Sum()
    chunks = reader.entries(metadata)
    # Read before the creation, so an unreadable source ledger leaves nothing here.
    first = next(chunks, [])
    with bookkeeper.create_ledger_adv(
        metadata.ledger_id,
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        metadata.digest_type,
        metadata.password,
        labelled(metadata, identity),
    ) as ledger:
        entries = first
        while entries:
            appended = [ledger.append_at_async(entry.entry_id, entry.payload) for entry in entries]
            there.take(entry.payload for entry in entries)
            # Read the next chunk while the appends are pending.
            entries = next(chunks, [])
            for each in appended:
                each.result(_SECONDS)
    return there


def _compare(bookkeeper: BookKeeper, metadata: LedgerMetadata, there: _Sum, wrong: errors.BookKeeperError) -> None:
    """Read the whole copy. Raises ``wrong`` if it differs."""
    here = _Sum()
    if there.entries:
        with bookkeeper.open_ledger_no_recovery(metadata.ledger_id, metadata.password) as ledger:
            here.take(entry.payload for entry in ledger.read(0, metadata.last_entry_id))
    if here.told() != there.told():
        raise wrong


def _another(ledger_id: int, what: str) -> errors.LedgerExistsError:
    return errors.LedgerExistsError(
        f"ledger {ledger_id} is here already, and {what}: it is another one, or a copy that an earlier version broke off. "
        f"If it is that: `bookspark ledger delete {ledger_id}`, `bookspark bookie collect` for each bookie, then copy it again"
    )

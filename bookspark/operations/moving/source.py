"""Ledgers and bookie addresses of an Apache BookKeeper cluster, read from its ZooKeeper.

Law: the source cluster is never written to. Each read is as new as every earlier acknowledged write. A ledger with an unreadable
record is an error that names the ledger, never an absent ledger.

Source: BookKeeper's ``HierarchicalLedgerManager``, ``LongHierarchicalLedgerManager`` and ``ZKRegistrationManager``.
"""

from __future__ import annotations

from functools import cached_property
from types import TracebackType

from bookspark.errors import ConfigurationError, MetadataStoreError, NoSuchClusterError, NoSuchLedgerError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.metadata.records.bookkeeper_format import is_service_info, ledger_of, rpc_address
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.layout import parse_address
from bookspark.store.metadata.zookeeper.nodes import Nodes

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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
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
                told = rpc_address(document) if is_service_info(document) else name
                host, _, port = told.rpartition(":")
                if not host or not port.isdecimal():
                    raise MetadataStoreError(f"bookie {name} tells no address, but {told!r}")
                found[name] = host, int(port)
        return found

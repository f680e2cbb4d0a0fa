"""Paths in ZooKeeper, and connection strings.

Law: LAYOUT is made once, together with the other nodes, and defines the paths of ledger ids. Every client follows it, whatever
its options. Below the chroot (BookKeeper's layout; docs/decisions/zookeeper.md)::

    /ledgers/LAYOUT                  "2\\nhierarchical:1"   format, ledger manager, the manager's version; for BookKeeper's
                                     clients the manager is "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
    /ledgers/INSTANCEID              a random uuid
    /ledgers/INSTANCEID/<uuid>       exists as long as it is that cluster: every change checks for it; with BookKeeper's formats
                                     it is /ledgers/underreplication/locks/cluster-<uuid>
    /ledgers/available/<bookie>      ephemeral, a BookieRegistration
    /ledgers/available/readonly/<bookie>
    /ledgers/cookies/<bookie>        a Cookie
    /ledgers/underreplication/…      see ``metadata.autorecovery``
    /ledgers/idgen                   its version counts the assigned ledger ids; for BookKeeper's clients the
                                     nodes ``ID-<number>`` below it do
    /ledgers/idgiven                 the highest ledger id chosen by a user, absent without one; with BookKeeper's
                                     formats it is /bookspark/ids/given
    /ledgers/00/0000/L0001           ledger 1 with the hierarchical manager: its ten digits cut 2, 4, 4
    /ledgers/L0000000001             ledger 1 with the flat manager
    /bookspark/<kind>/<name>         records of other layers; the name is percent-encoded
    /bookspark/clocks/<number>       ephemeral, and gone at once: a client read the time by it (``store_clock``)
    /bookspark/deletions/<kind>-<h>  its version counts the deletions of some records of the kind (``ZooKeeperStore``)

A cluster begun for BookKeeper's clients has ``/ledgers/underreplication/LAYOUT`` with a line for Bookspark from its beginning:
its cookies and tasks are in BookKeeper's formats (``records.bookkeeper_texts``).

BookKeeper's ``format`` removes INSTANCEID only if nothing is below it, but ``locks`` with everything below it. So the node
that every change checks for is there: clients of a removed cluster can't change anything any more.

A ledger id has at most ten digits. The counter of ``idgen`` has 31 bits and can't assign more.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, NamedTuple

from bookspark.errors import ConfigurationError, InvalidArgumentError, MetadataStoreError
from bookspark.protocol.ledger.ledger_metadata import BOOKKEEPERS_LEDGER_ID_MAX
from bookspark.store.metadata.records.names import READONLY, check_ledger_id, check_name, check_record, encode_name
from bookspark.support.arguments import Rule

DEFAULT_PORT = 2181
_LAYOUT_FORMAT = 2
_MANAGER_VERSION = 1
_BOOKKEEPERS_MANAGER = "org.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory"
"""The manager that BookKeeper's clients expect."""


class LedgerManager(Enum):
    """The distribution of ledger records over nodes. The flat manager lists all ledgers in one answer. BOOKKEEPER is the
    hierarchical manager, under the name known to BookKeeper's clients."""

    HIERARCHICAL = "hierarchical"
    FLAT = "flat"
    BOOKKEEPER = "bookkeeper"

    @property
    def told(self) -> str:
        return _BOOKKEEPERS_MANAGER if self is LedgerManager.BOOKKEEPER else self.value


class Access(NamedTuple):
    """The options of a connection string. Each is a file on every connecting host; "" is none."""

    auth_file: str = ""
    """``user:password`` for the digest scheme. New nodes are for this user alone."""
    sasl_file: str = ""
    """``user:password`` for SASL (DIGEST-MD5). New nodes are for this user alone."""
    tls_ca: str = ""
    """PEM file of the CA of the dialled servers' certificates. With it the connection is TLS."""
    tls_certificate: str = ""
    """PEM file of the client's own certificate, for servers that ask for it."""
    tls_key: str = ""
    """PEM file of the certificate's key. "": it is in the file of the certificate."""


_NO_ACCESS = Access()


@dataclass(frozen=True, slots=True)
class Address:
    """ZooKeeper servers, ``host:port,…``, and a path on them (``""`` or ``/a/b``)."""

    servers: str
    chroot: str
    access: Access = _NO_ACCESS

    def __str__(self) -> str:
        return self.servers + self.chroot


def parse_address(connect: str) -> Address:
    """Parse ``[zk://]host[:port][,host[:port]…][/chroot][?option=file[&option=file…]]``, with the options of ``Access``.
    Raises ConfigurationError for anything else."""

    def refused(why: str) -> ConfigurationError:
        return ConfigurationError(
            f"{connect!r} does not name a ZooKeeper: {why}; write it like zk://host1:2181,host2:2181/chroot"
        )

    scheme, separator, rest = connect.strip().rpartition("://")
    if separator and scheme != "zk":
        raise refused(f"the scheme is {scheme!r}")
    rest, _, query = rest.partition("?")
    options: dict[str, str] = {}
    for one in query.split("&") if query else ():
        name, _, file = one.partition("=")
        if name not in Access._fields or not file or name in options:
            raise refused(f"{one!r} in ?{query} is not one of {', '.join(Access._fields)} with =path, each once")
        options[name] = file
    access = Access(**options)
    if (access.tls_certificate or access.tls_key) and not access.tls_ca:
        raise refused("tls_certificate and tls_key are of no use without tls_ca")
    if access.tls_key and not access.tls_certificate:
        raise refused("tls_key is of no use without tls_certificate")
    hosts, _, path = rest.partition("/")
    parts = [part for part in path.split("/") if part]
    if any(part in (".", "..", "zookeeper") for part in parts) or "\0" in path:
        raise refused(f"/{path} can't be a chroot")
    servers = []
    for server in hosts.split(","):
        found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^\s:\[\]]+)(?::(\d{1,5}))?", server.strip())
        if found is None:
            raise refused(f"{server!r} is not host:port" if server.strip() else "a host is missing")
        port = int(found[2]) if found[2] else DEFAULT_PORT
        if not 1 <= port <= 65535:
            raise refused(f"{port} is not a port")
        servers.append(f"{found[1]}:{port}")
    return Address(",".join(servers), "".join(f"/{part}" for part in parts), access)


ConnectionString = Annotated[str, Rule("host:port[,host:port…][/chroot]", parse_address)]
"""The address of a cluster's metadata: ``[zk://]host[:port][,host[:port]…][/chroot]``."""


class _Below:
    """The path ``name`` below the path ``above`` of a layout."""

    def __init__(self, above: str, name: str) -> None:
        self._above, self._name = above, name

    def __get__(self, layout: Layout, kind: type) -> str:
        return f"{getattr(layout, self._above)}/{self._name}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths below ``root`` (a chroot) under one ledger manager."""

    root: str
    manager: LedgerManager = LedgerManager.HIERARCHICAL
    bookkeepers_formats: bool = False

    ledgers = _Below("root", "ledgers")
    layout = _Below("ledgers", "LAYOUT")
    instance_id = _Below("ledgers", "INSTANCEID")
    available = _Below("ledgers", "available")
    readonly = _Below("available", READONLY)
    cookies = _Below("ledgers", "cookies")
    underreplication = _Below("ledgers", "underreplication")
    locks = _Below("underreplication", "locks")
    formats = _Below("underreplication", "LAYOUT")
    idgen = _Below("ledgers", "idgen")
    all_records = _Below("root", "bookspark")
    sharing = _Below("all_records", "sharing")
    clocks = _Below("all_records", "clocks")
    deletions = _Below("all_records", "deletions")

    def mark(self, instance_id: str) -> str:
        return (
            f"{self.locks}/cluster-{instance_id}" if self.bookkeepers_formats else f"{self.instance_id}/{instance_id}"
        )

    @property
    def idgiven(self) -> str:
        # BookKeeper's tools do not remove a cluster with an unknown node below "ledgers".
        return f"{self.records('ids')}/given" if self.bookkeepers_formats else f"{self.ledgers}/idgiven"

    def bookie(self, bookie_id: str, read_only: bool) -> str:
        return f"{self.readonly if read_only else self.available}/{check_name(bookie_id, 'bookie id')}"

    def cookie(self, bookie_id: str) -> str:
        return f"{self.cookies}/{check_name(bookie_id, 'bookie id')}"

    def records(self, kind: str) -> str:
        return f"{self.all_records}/{check_name(kind, 'record kind')}"

    def record(self, kind: str, name: str) -> str:
        check_record(kind, name)
        return f"{self.records(kind)}/{encode_name(name)}"

    def ledger(self, ledger_id: int) -> str:
        digits = f"{check_ledger_id(ledger_id):010}"
        if self.manager is LedgerManager.FLAT:
            return f"{self.ledgers}/L{digits}"
        return f"{self.ledgers}/{digits[:2]}/{digits[2:6]}/L{digits[6:]}"

    def check_new(self, ledger_id: int) -> int:
        """``ledger_id`` if it is valid for a new ledger, else an InvalidArgumentError."""
        if check_ledger_id(ledger_id) > BOOKKEEPERS_LEDGER_ID_MAX and self.manager is LedgerManager.BOOKKEEPER:
            raise InvalidArgumentError(
                f"ledger id {ledger_id} can't be used: in a cluster for BookKeeper's clients they go from 0 to "
                f"{BOOKKEEPERS_LEDGER_ID_MAX}",
                "ledger_id",
            )
        return ledger_id

    def document(self) -> bytes:
        return f"{_LAYOUT_FORMAT}\n{self.manager.told}:{_MANAGER_VERSION}".encode()

    def follow(self, document: bytes) -> Layout:
        """This layout under the manager of a LAYOUT. Raises MetadataStoreError if that is unknown."""
        found = re.fullmatch(rb"(\d+)\n([\w.]+):(\d+)", document)
        managers = {m.told: m for m in LedgerManager}
        if found is None or int(found[1]) != _LAYOUT_FORMAT or int(found[3]) != _MANAGER_VERSION:
            manager = None
        else:
            manager = managers.get(found[2].decode())
        if manager is None:
            raise MetadataStoreError(
                f"{self.layout} is {document!r}, which this version of Bookspark does not know; "
                "upgrade it, or use another chroot if this one belongs to another system"
            )
        return Layout(self.root, manager)


def two_digits(node: str) -> bool:
    return len(node) == 2 and node.isdecimal()


def four_digits(node: str) -> bool:
    return len(node) == 4 and node.isdecimal()


def ledger_ids(nodes: list[str], prefix: str = "") -> list[int]:
    """The ledgers among ``nodes``. ``prefix``: the digits of the levels above."""
    width = 11 - len(prefix)
    return [int(prefix + n[1:]) for n in nodes if len(n) == width and n[0] == "L" and n[1:].isdecimal()]

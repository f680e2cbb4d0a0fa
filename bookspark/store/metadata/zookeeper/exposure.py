"""Doors that a ZooKeeper leaves open although its cluster is closed by an ACL, seen as a stranger would see them.

Law: a look changes nothing, and ends within ``SECONDS_MAX`` beside ZooKeeper's own answers. Two doors go round the ACLs of the
cluster's nodes:

* A node above them that the world may change. Under ``/`` as it is born, anybody makes nodes until ZooKeeper's memory is full,
  and takes the names that the cluster has not used yet. ZooKeeper checks the ACL of a node and, for a deletion, of its parent
  alone, so nodes with an ACL stay closed below.
* The AdminServer, on all interfaces by default. Since 3.9 its commands ``snapshot`` and ``restore`` read and replace all nodes.
  They ask for all rights on ``/`` only, and while the world has these, any made-up user passes.

Source: ZooKeeper's ``Commands.runCommand`` and ``PrepRequestProcessor``, tried with 3.9.5.
"""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import NamedTuple

from kazoo.exceptions import NoAuthError, NoNodeError
from kazoo.security import ACL, CREATOR_ALL_ACL, Permissions

from bookspark.errors import MetadataStoreError
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.layout import Layout
from bookspark.support.addresses import address_text, bracketed, is_loopback, split_address

ADMIN_PORT = 8080
SECONDS_MAX = 2.0
_SECONDS_MIN = 0.001
_BYTES_MAX = 1 << 16
_CHANGES = Permissions.WRITE | Permissions.CREATE | Permissions.DELETE | Permissions.ADMIN
_ZOOKEEPERS = ("/", "/zookeeper", "/zookeeper/quota")
"""Nodes that every ZooKeeper is born with, open to the world."""


class AdminServer(NamedTuple):
    address: str
    commands: tuple[str, ...] = ()
    """Names of the commands that are on, out of ``snapshot`` and ``restore``."""


class Exposure(NamedTuple):
    nodes: tuple[str, ...] = ()
    """Nodes at and above the cluster's root, its own, and ZooKeeper's own, that the world may change."""
    admin_servers: tuple[AdminServer, ...] = ()

    @property
    def bypass(self) -> bool:
        """May whoever reaches an AdminServer go round the ACLs?"""
        return "/" in self.nodes and any(one.commands for one in self.admin_servers)

    def doors(self) -> list[Door]:
        return [*self._nodes(), *self._admin_servers()]

    def _nodes(self) -> Iterator[Door]:
        if self.nodes:
            born = [one for one in self.nodes if one in _ZOOKEEPERS]
            tops = [one for one in self.nodes if one not in born]
            tops = [one for one in tops if not any(one.startswith(f"{other}/") for other in tops)]
            # Everybody goes on reading "/", so other users of this ZooKeeper find their nodes.
            commands = [f"setAcl {one} auth::cdrwa,world:anyone:r" for one in born]
            commands += [f"setAcl -R {one} auth::cdrwa" for one in tops]
            yield Door(
                "zookeeper-open",
                f"ZooKeeper has an ACL for this cluster, and the world may change {', '.join(self.nodes)}",
                "a stranger makes nodes there until ZooKeeper's memory is full"
                + (", and changes or removes what has no ACL of its own" if tops else ""),
                "in zkCli.sh, after addauth digest USER:PASSWORD (with SASL, as its user): " + "; ".join(commands),
            )

    def _admin_servers(self) -> Iterator[Door]:
        where = ", ".join(one.address for one in self.admin_servers)
        on = " and ".join(sorted({name for one in self.admin_servers for name in one.commands}))
        if self.admin_servers:
            yield Door(
                "zookeeper-admin",
                f"ZooKeeper's AdminServer answers everybody at {where}",
                "with a made-up user whoever reaches it reads and replaces all nodes, whatever their ACLs: its commands "
                f'{on} are on, and the world has all rights on "/"'
                if self.bypass
                else "it names clients, sessions, paths and settings, and lets everybody change its log",
                "in zoo.cfg of each server set admin.enableServer=false, or else admin.serverAddress=127.0.0.1, "
                "admin.snapshot.enabled=false and admin.restore.enabled=false; restart the servers one after the other",
            )


class Door(NamedTuple):
    """One kind of open door: a keyword, what is open, what it lets strangers do, and the remedy."""

    kind: str
    what: str
    effect: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.effect}; {self.remedy} (docs/security.md)"


def world_may_change(acls: Iterable[ACL]) -> bool:
    """Does an ACL let everybody change the node, its children or its ACL?"""
    return any(
        acl.perms & _CHANGES and (acl.id.scheme == "world" or (acl.id.scheme == "ip" and acl.id.id.endswith("/0")))
        for acl in acls
    )


def exposure(connection: Connection, layout: Layout) -> Exposure:
    """Look at nodes and AdminServers. Nothing is exposed where no ACL is asked for. Raises MetadataStoreError."""
    if not connection.wants_acl:
        return Exposure()
    parts = layout.root.split("/")[1:]
    own = ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
    own += [layout.ledgers, layout.available, layout.readonly, layout.cookies, layout.underreplication]
    own += [layout.instance_id, layout.layout, layout.idgen, layout.all_records]
    own += [f"{layout.all_records}/{kind}" for kind in _children(connection, layout.all_records)]
    servers = [split_address(server)[0] for server in connection.address.servers.split(",")]
    with ThreadPoolExecutor(len(servers), "admin server") as threads:
        asked = [threads.submit(_admin_server, server) for server in servers]
        nodes = tuple(path for path in (*_ZOOKEEPERS, *own) if world_may_change(_acls(connection, path)))
        found = [one for one in (each.result() for each in asked) if one is not None]
    # On loopback an AdminServer does harm only by its commands, and these only while "/" is open.
    there = [one for one in found if not is_loopback(split_address(one.address)[0]) or (one.commands and "/" in nodes)]
    return Exposure(nodes, tuple(there))


def claim(connection: Connection, path: str) -> None:
    """Make a node, and those above it, with the connection's ACL. An empty node that was there before gets it too: whoever made
    it would otherwise have a say in the new cluster. Raises MetadataStoreError."""
    client, what = connection.client, f"making {path}"
    connection.call(what, lambda: client.ensure_path_async(path))
    if connection.wants_acl and world_may_change(_acls(connection, path)) and not _children(connection, path):
        connection.call(f"closing {path}", lambda: client.set_acls_async(path, CREATOR_ALL_ACL))


def _acls(connection: Connection, path: str) -> list[ACL]:
    """The node's ACL; none if it is absent, or if its ACL is hidden from this user, and so from the world."""
    try:
        found: list[ACL] = connection.call(
            f"reading the ACL of {path}", lambda: connection.client.get_acls_async(path)
        )[0]
        return found
    except NoNodeError:
        return []
    except MetadataStoreError as error:
        if isinstance(error.__cause__, NoAuthError):
            return []
        raise


def _children(connection: Connection, path: str) -> list[str]:
    try:
        found: list[str] = connection.call(f"listing {path}", lambda: connection.client.get_children_async(path))
        return sorted(found)
    except NoNodeError:
        return []


def _admin_server(host: str) -> AdminServer | None:
    """The AdminServer of a host, asked as anybody may: None without one."""
    deadline = time.monotonic() + SECONDS_MAX
    listed = _answer(host, "/commands", deadline)
    if "/commands/ruok" not in listed:
        return None
    properties = _answer(host, "/commands/system_properties", deadline)
    on = (
        name
        for name in ("snapshot", "restore")
        if f"/commands/{name}" in listed
        and not re.search(rf'"zookeeper\.admin\.{name}\.enabled"\s*:\s*"false"', properties, re.IGNORECASE)
    )
    return AdminServer(address_text(host, ADMIN_PORT), tuple(on))


def _answer(host: str, path: str, deadline: float) -> str:
    """The first bytes of an answer over HTTP; "" without one. The time is for all of it."""
    answer = bytearray()
    with (
        suppress(OSError),
        socket.create_connection((host, ADMIN_PORT), max(_SECONDS_MIN, deadline - time.monotonic())) as asked,
    ):
        asked.sendall(f"GET {path} HTTP/1.0\r\nHost: {bracketed(host)}\r\n\r\n".encode())
        while len(answer) < _BYTES_MAX and (left := deadline - time.monotonic()) > 0:
            asked.settimeout(left)
            if not (part := asked.recv(_BYTES_MAX)):
                break
            answer += part
    return answer.decode(errors="replace")

"""Which cluster is at a place of ZooKeeper, and how a new one is begun.

Law: a cluster is begun only by who says so: ``bookspark init``, the bookies' Spark job, a bookie's first start, a cluster for
tests. For anybody else a place without a cluster is an error, not an empty cluster, because it is most likely mistyped: a report
that finds nothing wrong with nothing is worse than none. All nodes of a new cluster are made in one transaction. None is begun
over records of a cluster that was there before: they name ledgers by ids that the new one gives out again.

Source: BookKeeper's ``ZKRegistrationManager.initNewCluster`` and ``bookkeeper shell initnewcluster``.
"""

from __future__ import annotations

import contextlib
import uuid
from dataclasses import replace
from difflib import get_close_matches
from itertools import islice
from typing import Any

from kazoo.exceptions import KazooException, NodeExistsError

from bookspark.errors import MetadataStoreError, NoSuchClusterError
from bookspark.store.metadata.autorecovery.votes import ELECTION
from bookspark.store.metadata.records.bookkeeper_texts import LAYOUT, is_layout
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.layout import Layout, LedgerManager
from bookspark.store.metadata.zookeeper.nodes import Nodes

_LEVELS_LOOKED_AT = 3
_PLACES_LOOKED_AT = 100
_CLUSTERS_NAMED = 3
_NO_CHROOTS = frozenset({"zookeeper", "ledgers", "bookspark"})


def find_cluster(connection: Connection, nodes: Nodes, begin: LedgerManager | None) -> Layout:
    """The layout that is at the connection's chroot. If none is, a cluster is begun there with the manager ``begin``. Raises
    NoSuchClusterError if that is None, and MetadataStoreError, also if ``begin`` is BOOKKEEPER and the cluster that is there has
    another manager."""
    manager = begin or LedgerManager.HIERARCHICAL
    wanted = Layout(connection.address.chroot, manager, manager is LedgerManager.BOOKKEEPER)
    for _ in range(2):
        found = nodes.read("reading LAYOUT", wanted.layout)
        if found is not None:
            return _formats(nodes, _as_begun(connection, wanted, wanted.follow(found.value)))
        if begin is None:
            raise _no_cluster(connection, nodes)
        _refuse_records_left(nodes, wanted)
        if wanted.root:
            connection.call("making the chroot", lambda: connection.client.ensure_path_async(wanted.root))
        # NodeExists: another client was faster; or our own first attempt was, and its reply was lost.
        with contextlib.suppress(NodeExistsError):
            connection.commit("making the layout", lambda transaction: _build(transaction, wanted))
    raise MetadataStoreError(
        f"{wanted.ledgers} in ZooKeeper at {connection.address.servers} has no LAYOUT: it belongs to another system; "
        "use another chroot"
    )


def _as_begun(connection: Connection, wanted: Layout, found: Layout) -> Layout:
    if wanted.manager is LedgerManager.BOOKKEEPER and found.manager is not wanted.manager:
        raise MetadataStoreError(
            f"{found.ledgers} in ZooKeeper at {connection.address.servers} was begun with the ledger manager "
            f"{found.manager.value} and stays as it is; BookKeeper's clients don't accept that: begin a cluster for them at "
            "another chroot"
        )
    return found


def _refuse_records_left(nodes: Nodes, layout: Layout) -> None:
    """A MetadataStoreError if records stand at a place without a LAYOUT. BookKeeper's shell (``nukeexistingcluster``) leaves
    them, because it removes only what it knows."""
    what, top = "looking for records of another cluster", layout.all_records
    # (What counts deletions names nothing.)
    kinds = sorted(kind for kind in nodes.children(what, top) if f"{top}/{kind}" != layout.deletions)
    named = nodes.children_of_each(what, [f"{top}/{kind}" for kind in kinds])
    left = [kind for kind, names in zip(kinds, named, strict=True) if names]
    # A LAYOUT that is there by now is that of a client that was faster, and so are the records.
    if left and nodes.read("reading LAYOUT", layout.layout) is None:
        raise MetadataStoreError(
            f"{top} in ZooKeeper has records ({', '.join(left)}) of a cluster that was removed from there; they name ledgers "
            f"that are gone. Remove them (zkCli.sh: deleteall {top}), or begin the cluster at another chroot"
        )


def _formats(nodes: Nodes, found: Layout) -> Layout:
    """The layout with what it says of formats."""
    if found.manager is not LedgerManager.BOOKKEEPER:
        return found
    told = nodes.read("reading the formats", found.formats)
    return replace(found, bookkeepers_formats=told is not None and is_layout(told.value))


def identify(connection: Connection, nodes: Nodes, layout: Layout) -> str:
    """The cluster's id. Nothing is changed through the connection from here on unless it is still that cluster. Raises
    MetadataStoreError."""
    what, path = "reading INSTANCEID", layout.instance_id
    found, marks = nodes.read_and_list(what, path)
    if found is None:
        raise MetadataStoreError(f"{layout.ledgers} has a LAYOUT but no INSTANCEID; restore it, or use another chroot")
    instance_id = found.value.decode()
    mark = layout.mark(instance_id)
    there = nodes.read(what, mark) is not None if layout.bookkeepers_formats else instance_id in marks
    # A cluster that an earlier version of Bookspark laid out, or that BookKeeper's tools made anew, has no such node.
    if not there:
        with contextlib.suppress(NodeExistsError):
            nodes.create("marking the cluster", mark, b"")
    connection.mark = mark
    return instance_id


def _build(transaction: Any, layout: Layout) -> None:
    for path in (layout.ledgers, layout.available, layout.readonly, layout.cookies, layout.idgen):
        transaction.create(path)
    transaction.create(layout.underreplication)
    if layout.bookkeepers_formats:
        transaction.create(layout.formats, LAYOUT)
        for name in ("ledgers", "locks", ELECTION):
            transaction.create(f"{layout.underreplication}/{name}")
    instance_id = str(uuid.uuid4())
    transaction.create(layout.instance_id, instance_id.encode())
    transaction.create(layout.mark(instance_id))
    transaction.create(layout.layout, layout.document())


def _no_cluster(connection: Connection, nodes: Nodes) -> NoSuchClusterError:
    """The error for a chroot without a cluster. It names clusters that are near."""
    address = connection.address
    near = _clusters_near(nodes, address.chroot)
    there = ", ".join(f"zk://{address.servers}{chroot}" for chroot in near)
    return NoSuchClusterError(
        f"no cluster at zk://{address}{f'; there is one at {there}' if near else ''}; name the place of a cluster, or begin one "
        f"there: `bookspark init --zookeeper zk://{address}`"
    )


def _clusters_near(nodes: Nodes, root: str) -> list[str]:
    """Chroots of clusters above ``root``, and a little below these, the one most like it first. Only a few places are
    looked at."""
    what, parts = "looking for clusters", root.split("/")
    # The nearest first: of a place with many names only some are looked at.
    places, found = ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)], set[str]()
    # A place that is not for our eyes ends the looking.
    with contextlib.suppress(KazooException, MetadataStoreError):
        for _ in range(_LEVELS_LOOKED_AT):
            names = dict(zip(places, nodes.children_of_each(what, [place or "/" for place in places]), strict=True))
            begun = (place for place in places if "ledgers" in names[place])
            found |= {place for place in begun if nodes.read(what, Layout(place).layout) is not None}
            below = (f"{place}/{name}" for place in places for name in sorted(names[place]) if name not in _NO_CHROOTS)
            places = list(islice(dict.fromkeys(below), _PLACES_LOOKED_AT))
    return get_close_matches(root, sorted(found), _CLUSTERS_NAMED, cutoff=0.0)

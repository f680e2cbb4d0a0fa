"""The metadata store over ZooKeeper: the cluster at a chroot, ledger ids, listings, small records, registrations, documents.

Law: as in ``store``. ``nodes`` settles the outcome of a write whose reply was lost. After the loss of a session registrations
and watches are set again, and watchers are called, because something may have changed meanwhile. "No such ledger" is answered,
and a record is changed, only while INSTANCEID has its value of the start: a ZooKeeper that lost its data knows no deletions,
and another cluster in its place has other ledgers under the same ids. A ledger id counter that went back also proves lost data.

Source: BookKeeper's ``AbstractZkLedgerManager`` and ``ZKRegistrationManager``; ``layout`` has the paths.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError

from bookspark.errors import InvalidCookieError, MetadataStoreError, NoSuchClusterError, NoSuchLedgerError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.metadata.autorecovery.auditors import ELECTION, Auditors
from bookspark.store.metadata.autorecovery.underreplication_tasks import Underreplication
from bookspark.store.metadata.documents.locks import ChangeLock
from bookspark.store.metadata.documents.sharing import Sharing
from bookspark.store.metadata.notifier import Notifier, Once, Upkeep
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.bookkeeper_texts import LAYOUT, is_layout
from bookspark.store.metadata.records.codec import (
    decode_cookie,
    decode_ledger,
    encode_cookie,
    encode_ledger,
    encode_registration,
    readable_ledger,
    readable_registration,
)
from bookspark.store.metadata.records.ledger_room import changed_ledger, new_ledger
from bookspark.store.metadata.records.ledger_spans import IDS_PER_SPAN, LedgerSpan, spans_of
from bookspark.store.metadata.records.names import decode_name, is_name
from bookspark.store.metadata.records.refusals import (
    check_recorded,
    ledger_exists,
    no_cookie,
    no_such_ledger,
    sized,
    version_changed,
)
from bookspark.store.metadata.records.versioned import (
    Record,
    RecordVersion,
    Versioned,
    VersionedLedger,
    compare_and_set,
)
from bookspark.store.metadata.store_clock import StoreClock
from bookspark.store.metadata.zookeeper.connection import Connection, DefiniteError
from bookspark.store.metadata.zookeeper.exposure import Exposure, claim, exposure
from bookspark.store.metadata.zookeeper.layout import (
    Layout,
    LedgerManager,
    four_digits,
    ledger_ids,
    parse_address,
    two_digits,
)
from bookspark.store.metadata.zookeeper.nodes import Check, Marks, Nodes, gone, ignored, unknown

log = logging.getLogger(__name__)


# -- The cluster at a chroot: found or begun.
#
# Law: only an explicit command begins a cluster: ``bookspark init``, the bookies' Spark job, a bookie's first start, a test
# cluster. For all other callers a chroot without a cluster is an error, because it is most likely mistyped. A new cluster is
# made in one transaction, and never over records of a removed cluster: they name ledgers by ids that it would assign again.
#
# Source: BookKeeper's ``ZKRegistrationManager.initNewCluster`` and ``bookkeeper shell initnewcluster``.


_LEVELS_LOOKED_AT = 3
_PLACES_LOOKED_AT = 100
_CLUSTERS_NAMED = 3
_NO_CHROOTS = frozenset({"zookeeper", "ledgers", "bookspark"})


def find_cluster(connection: Connection, nodes: Nodes, begin: LedgerManager | None) -> Layout:
    """The layout at the connection's chroot; without one, begin a cluster with the manager ``begin``. Raises
    NoSuchClusterError if ``begin`` is None then, and MetadataStoreError, also if ``begin`` is BOOKKEEPER and the existing
    cluster has another manager."""
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
            claim(connection, wanted.root)
        # A place that is made later, below an open root, may be a stranger's by then; an empty one can be taken away.
        claim(connection, wanted.all_records)
        claim(connection, wanted.deletions)
        # NodeExists: another client was faster; or our own first attempt succeeded, and its reply was lost.
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
    """Raise MetadataStoreError if there are records without a LAYOUT. BookKeeper's shell (``nukeexistingcluster``) leaves
    them, because it does not know them."""
    what, top = "looking for records of another cluster", layout.all_records
    # (Deletion counters name no ledgers.)
    kinds = sorted(kind for kind in nodes.children(what, top) if f"{top}/{kind}" != layout.deletions)
    named = nodes.children_of_each(what, [f"{top}/{kind}" for kind in kinds])
    left = [kind for kind, names in zip(kinds, named, strict=True) if names]
    # A LAYOUT that exists by now is a faster client's, and so are the records.
    if left and nodes.read("reading LAYOUT", layout.layout) is None:
        raise MetadataStoreError(
            f"{top} in ZooKeeper has records ({', '.join(left)}) of a cluster that was removed from there; they name ledgers "
            f"that are gone. Remove them (zkCli.sh: deleteall {top}), or begin the cluster at another chroot"
        )


def _formats(nodes: Nodes, found: Layout) -> Layout:
    if found.manager is not LedgerManager.BOOKKEEPER:
        return found
    told = nodes.read("reading the formats", found.formats)
    return replace(found, bookkeepers_formats=told is not None and is_layout(told.value))


def identify(connection: Connection, nodes: Nodes, layout: Layout) -> str:
    """The cluster's id. From now on the connection changes nothing unless it is still that cluster. Raises MetadataStoreError."""
    what, path = "reading INSTANCEID", layout.instance_id
    found, marks = nodes.read_and_list(what, path)
    if found is None:
        raise MetadataStoreError(f"{layout.ledgers} has a LAYOUT but no INSTANCEID; restore it, or use another chroot")
    instance_id = found.value.decode()
    mark = layout.mark(instance_id)
    there = nodes.read(what, mark) is not None if layout.bookkeepers_formats else instance_id in marks
    # A cluster laid out by an earlier version of Bookspark, or formatted by BookKeeper's tools, lacks this node.
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
    address = connection.address
    near = _clusters_near(nodes, address.chroot)
    there = ", ".join(f"zk://{address.servers}{chroot}" for chroot in near)
    return NoSuchClusterError(
        f"no cluster at zk://{address}{f'; there is one at {there}' if near else ''}; name the place of a cluster, or begin one "
        f"there: `bookspark init --zookeeper zk://{address}`"
    )


def _clusters_near(nodes: Nodes, root: str) -> list[str]:
    """Chroots of clusters above ``root``, and a little below these, the most similar first."""
    what, parts = "looking for clusters", root.split("/")
    # The nearest first: at a place with many names only some are searched.
    places, found = ["/".join(parts[:count]) for count in range(len(parts) - 1, 0, -1)], set[str]()
    # A place without read permission ends the search.
    with contextlib.suppress(KazooException, MetadataStoreError):
        for _ in range(_LEVELS_LOOKED_AT):
            names = dict(zip(places, nodes.children_of_each(what, [place or "/" for place in places]), strict=True))
            begun = (place for place in places if "ledgers" in names[place])
            found |= {place for place in begun if nodes.read(what, Layout(place).layout) is not None}
            below = (f"{place}/{name}" for place in places for name in sorted(names[place]) if name not in _NO_CHROOTS)
            places = list(islice(dict.fromkeys(below), _PLACES_LOOKED_AT))
    return get_close_matches(root, sorted(found), _CLUSTERS_NAMED, cutoff=0.0)


# -- Registrations of bookies: ephemeral nodes that outlast their sessions.


class _Registered(NamedTuple):
    registration: BookieRegistration
    cookie: Cookie | None
    """The bookie's; None: not compared."""
    replaced: Callable[[InvalidCookieError], None] | None
    """Called once the metadata store has another cookie, or none."""


class Registrar:
    """The registrations of one store. Each method may raise MetadataStoreError.

    Law: from ``register`` to ``unregister`` the node exists whenever a session does, with the last registration. It is
    watched, and restored after a deletion or change by others. A switch between writable and read-only is one transaction, so
    a bookie is always in exactly one of the two places.

    Decision: another session's node is replaced when a bookie registers and when its session is new, because it is then its
    own earlier node. Otherwise it is left alone: two processes under one id would take it from each other for ever.

    A node of another host under this id is not ours to replace: the bookie's cookie tells. It is read with the nodes, after a
    sync, and the transaction that makes a node checks that it has not changed. It is watched like the nodes, so a host that was
    cut off while another one became the bookie gives up, at its next look at the latest.
    """

    def __init__(
        self,
        connection: Connection,
        layout: Layout,
        check: Callable[[], None],
        still_there: Callable[[str], None],
        changed: Callable[[object], None],
    ) -> None:
        """``check`` is called before a node is made, and raises MetadataStoreError to forbid it. ``still_there(what)`` raises it
        if the cluster is gone: then a missing cookie proves nothing. ``changed`` is called, in kazoo's thread, when a node made
        here, or its bookie's cookie, was changed or deleted; it must not block, and has ``restore`` called."""
        self._connection = connection
        self._check = check
        self._still_there = still_there
        self._changed = changed
        self._layout = layout
        self._wanted: dict[str, _Registered] = {}
        self._lock = threading.Lock()

    def register(
        self,
        registration: BookieRegistration,
        cookie: Cookie | None = None,
        replaced: Callable[[InvalidCookieError], None] | None = None,
    ) -> None:
        wanted = _Registered(registration, cookie, replaced)
        with self._lock:
            self._publish(wanted)
            self._wanted[registration.bookie_id] = wanted

    def unregister(self, bookie_id: str) -> None:
        with self._lock:
            self._wanted.pop(bookie_id, None)
            self._replace(f"unregistering {bookie_id}", bookie_id, None)

    def renew(self) -> None:
        """Make the nodes of a lost session again. May block."""
        self._publish_again(from_others=True)

    def restore(self) -> None:
        """Restore nodes that others deleted or changed. May block."""
        self._publish_again(from_others=False)

    def _publish_again(self, *, from_others: bool) -> None:
        with self._lock:
            for wanted in list(self._wanted.values()):
                try:
                    self._publish(wanted, from_others=from_others)
                except InvalidCookieError as error:
                    if wanted.replaced is not None:
                        wanted.replaced(error)

    def _publish(self, wanted: _Registered, *, from_others: bool = True) -> None:
        """Raises InvalidCookieError, and gives the registration up, if another host has become the bookie."""
        bookie_id = wanted.registration.bookie_id
        what = f"registering {bookie_id}"
        self._check()
        try:
            self._replace(what, bookie_id, wanted.registration, wanted.cookie, from_others=from_others)
        except InvalidCookieError:
            self._still_there(what)
            self._wanted.pop(bookie_id, None)
            raise

    def _replace(
        self,
        what: str,
        bookie_id: str,
        registration: BookieRegistration | None,
        cookie: Cookie | None = None,
        *,
        from_others: bool = False,
    ) -> None:
        """Look, bring both possible nodes of a bookie to the wanted state in one transaction, and look again. ``from_others``:
        replace another session's node; otherwise leave it alone, and make nothing beside it. Raises InvalidCookieError if the
        metadata store has another cookie than ``cookie``."""
        client, identity = self._connection.client, self._layout.cookie(bookie_id)
        paths = [self._layout.bookie(bookie_id, read_only) for read_only in (False, True)]
        wanted = None if registration is None else paths[registration.read_only]
        document = b"" if registration is None else encode_registration(registration)
        last: Exception | None = None
        for _ in range(_ATTEMPTS):
            # The last look, at the wanted node, leaves the watch.
            _, recorded, *outcomes = self._connection.gather(
                what,
                lambda: [
                    client.sync_async(identity),
                    client.get_async(identity, watch=None if cookie is None else self._changed),
                    *(client.get_async(path, watch=self._changed if path == wanted else None) for path in paths),
                ],
            )
            if cookie is not None:
                found = None if isinstance(recorded, DefiniteError) else recorded
                check_recorded(cookie, found and decode_cookie(found[0], f"of {bookie_id} in ZooKeeper"))
            session_id = self._connection.session_id
            stale: list[tuple[str, int]] = []
            standing = wanted is None
            for path, outcome in zip(paths, outcomes, strict=True):
                if isinstance(outcome, DefiniteError):
                    continue
                value, stat = outcome
                ours = stat.ephemeralOwner == session_id
                if ours and path == wanted and value == document:
                    standing = True
                elif ours or from_others:
                    stale.append((path, stat.version))
                elif registration is not None:
                    log.warning("%s: another process is registered as it; see that the bookie runs only once", what)
                    return
            if standing and not stale:
                return

            def build(
                transaction: Any,
                recorded: Any = recorded,
                stale: list[tuple[str, int]] = stale,
                missing: bool = not standing,
            ) -> None:
                if cookie is not None:
                    transaction.check(identity, recorded[1].version)
                for path, version in stale:
                    transaction.delete(path, version)
                if missing:
                    transaction.create(wanted, document, ephemeral=True)

            try:
                self._connection.commit(what, build)
            except DefiniteError as error:
                last = error
        raise MetadataStoreError(
            f"{what}: something keeps changing it ({type(last).__name__}); see that the bookie runs only once, and that "
            f"{self._layout.available} is there"
        )


# -- Documents (``documents.tree``) as nodes of ZooKeeper.


class ZooKeeperTree:
    def __init__(self, nodes: Nodes, notifier: Notifier, root: str) -> None:
        self._nodes = nodes
        self._notifier = notifier
        self._root = root

    def read(self, path: str) -> Versioned[bytes] | None:
        return self._nodes.read(f"reading {path}", self._at(path))

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        return self._nodes.read_each(f"reading {len(paths)} documents", [self._at(path) for path in paths])

    def create(self, path: str, value: bytes, ephemeral: bool = False) -> bool:
        try:
            self._nodes.create(f"creating {path}", self._at(path), sized(value, path), ephemeral)
        except NodeExistsError:
            return False
        return True

    def create_numbered(self, path: str, value: bytes) -> str:
        made = self._nodes.create_numbered(f"creating {path}", self._at(path), sized(value, path))
        return made.removeprefix(f"{self._root}/")

    def create_and_read(
        self, path: str, value: bytes, paths: Sequence[str]
    ) -> tuple[bool, list[Versioned[bytes] | None]]:
        what, others = f"creating {path}", [self._at(each) for each in paths]
        return self._nodes.create_and_read(what, self._at(path), sized(value, path), others)

    def create_each(self, documents: Sequence[tuple[str, bytes]]) -> list[bool]:
        what = f"creating {len(documents)} documents"
        return self._nodes.create_each(
            what, self._root, [(self._at(path), sized(value, path)) for path, value in documents]
        )

    def write(self, path: str, value: bytes, version: int) -> bool:
        try:
            self._nodes.write(f"changing {path}", self._at(path), sized(value, path), version)
        except (BadVersionError, NoNodeError):
            return False
        return True

    def touch(self, path: str) -> None:
        self._nodes.touch(f"changing {path}", self._at(path))

    def delete(self, path: str, version: int | None = None) -> bool:
        try:
            self._nodes.delete(f"deleting {path}", self._at(path), -1 if version is None else version)
        except NoNodeError:
            pass
        except BadVersionError:
            return False
        return True

    def forget_empty(self, *paths: str) -> None:
        self._nodes.forget_empty(*(self._at(path) for path in paths))

    def children(self, path: str) -> list[str]:
        return sorted(self._nodes.children(f"listing {path}", self._at(path)))

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        return self._nodes.children_of_each(f"listing {len(paths)} nodes", [self._at(path) for path in paths])

    def watch(self, path: str, changed: Callable[[], None]) -> None:
        self._nodes.watch_existence(f"watching {path}", self._at(path), Once(self._notifier, changed))

    def _at(self, path: str) -> str:
        return f"{self._root}/{path}"


# -- The store.


_ATTEMPTS = 20
_AT_ONCE = 500
GUARDS = 16
_VERSIONS = 1 << 31
_LISTING = "listing the ledgers"


class ZooKeeperStore:
    """A ``MetadataStore`` on the ensemble of ``connect``: ``[zk://]host[:port][,…][/chroot]``.

    ``begin``: where no cluster is, begin it with this ledger manager; an existing cluster keeps its own. None: the cluster
    must exist. Only callers that may begin a cluster pass a manager (``find_cluster``).

    Raises NoSuchClusterError, and MetadataStoreError if no server answers within ``start_timeout_seconds``. Not for use after
    a fork.
    """

    def __init__(
        self,
        connect: str,
        timeout_seconds: float = 10.0,
        *,
        session_timeout_seconds: float = 10.0,
        start_timeout_seconds: float = 5.0,
        begin: LedgerManager | None = None,
    ) -> None:
        address = parse_address(connect)
        self._notifier = Notifier()
        self._upkeep = Upkeep()
        self._registrar: Registrar | None = None
        self._known_bookies: tuple[Marks, dict[str, BookieRegistration]] | None = None
        """Cached bookies, with the marks that validate the cache."""
        self._bookies_changed: list[Callable[[], None]] = []
        self._lock = threading.RLock()
        self.clock = StoreClock(lambda: self._nodes.time_of_a_change("reading the time", self.layout.clocks))
        self.connection = Connection(
            address,
            timeout_seconds=timeout_seconds,
            session_timeout_seconds=session_timeout_seconds,
            start_timeout_seconds=start_timeout_seconds,
            connected=self._connected,
        )
        self._nodes = Nodes(self.connection)
        try:
            self.layout = find_cluster(self.connection, self._nodes, begin)
            self.instance_id = identify(self.connection, self._nodes, self.layout)
        except BaseException:
            self.close()
            raise
        self._counts_below = self.layout.manager is LedgerManager.BOOKKEEPER
        """Ledger ids are counted by nodes below ``idgen``, not by its version."""
        self._seen_id = -1
        """The highest assigned ledger id that this process saw."""
        self._why_back = ""
        """Message about a counter of ledger ids that went back, or ""."""
        self._guards: set[str] = set()
        self._registrar = Registrar(
            self.connection, self.layout, self._check_ids, self._still_there, self._registration_event
        )
        self._autorecovery = ZooKeeperTree(self._nodes, self._notifier, self.layout.underreplication)

    # -- cluster

    @property
    def client(self) -> Any:
        """The kazoo client, for its recipes. It ignores the chroot: take paths from ``layout``."""
        return self.connection.client

    def exposure(self) -> Exposure:
        """Doors that go round the ACL of the cluster's nodes; none where no ACL is asked for. Raises MetadataStoreError."""
        return exposure(self.connection, self.layout)

    def close(self) -> None:
        # Upkeep stops first, so that it does not restore a session that ends on purpose.
        self._upkeep.stop()
        self.connection.close()
        self._upkeep.join()
        self._notifier.close()

    # -- ledgers

    def create_ledger(self, metadata: LedgerMetadata) -> int:
        path = self.layout.ledger(self.layout.check_new(metadata.ledger_id))
        what = f"creating ledger {metadata.ledger_id}"
        try:
            document = new_ledger(encode_ledger(metadata, self.layout.bookkeepers_formats), metadata)
            return self._nodes.create(what, path, document)
        except NodeExistsError:
            found = self._nodes.read(what, path)
            # Ours, if only the answer was lost. A fence by another client meanwhile is noticed by our next write.
            if (
                found
                and metadata.c_token
                and (one := readable_ledger(metadata.ledger_id, found.value, {})) is not None
                and one.c_token == metadata.c_token
            ):
                return 0
            raise ledger_exists(metadata.ledger_id) from None

    def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        found = self._nodes.read(f"reading ledger {ledger_id}", self.layout.ledger(ledger_id))
        if found is None:
            raise self._absent(ledger_id)
        return Versioned(decode_ledger(ledger_id, found.value), found.version)

    def read_ledgers(self, ledger_ids: Iterable[int], unreadable: dict[int, str]) -> Iterator[VersionedLedger]:
        rest = iter(ledger_ids)
        while group := list(islice(rest, _AT_ONCE)):
            nodes = self._nodes.read_versions("reading ledgers", [self.layout.ledger(ledger_id) for ledger_id in group])
            if None in nodes:
                self._still_there("reading ledgers")
            for ledger_id, node in zip(group, nodes, strict=True):
                if node is not None and (found := readable_ledger(ledger_id, node.value, unreadable)) is not None:
                    yield Versioned(found, node.version)

    def write_ledger(self, metadata: LedgerMetadata, version: int, under: RecordVersion | None = None) -> int:
        what, path = f"changing ledger {metadata.ledger_id}", self.layout.ledger(metadata.ledger_id)
        document = changed_ledger(encode_ledger(metadata, self.layout.bookkeepers_formats), metadata)
        try:
            return self._nodes.write(what, path, document, version, self._checks(under))
        except BadVersionError:
            raise version_changed(f"ledger {metadata.ledger_id}", version) from None
        except NoNodeError:
            raise self._absent(metadata.ledger_id) from None

    def delete_ledger(self, ledger_id: int) -> None:
        path = self.layout.ledger(ledger_id)
        try:
            self._nodes.delete(f"deleting ledger {ledger_id}", path)
        except NoNodeError:
            raise self._absent(ledger_id) from None
        if self.layout.manager is not LedgerManager.FLAT:
            second = path.rpartition("/")[0]
            self._nodes.forget_empty(second, second.rpartition("/")[0])

    def watch_ledger(self, ledger_id: int, changed: Callable[[], None]) -> None:
        once = Once(self._notifier, changed)
        self._nodes.watch_value(f"watching ledger {ledger_id}", self.layout.ledger(ledger_id), once)

    # -- ledger ids: the counter of assigned ids, and the note of the highest id chosen by a user
    #
    # Law: the counter never goes back. A ZooKeeper whose counter went back has lost later changes, mostly because an older copy
    # of its data was restored. A process that sees that takes no id from it and registers nothing there, until its restart.
    # (ZooKeeper protects a client only until a new leader is elected.) A process started afterwards does not notice; entries on
    # bookies show it (``protocol.bookie.lost_records``).

    def new_ledger_id(self) -> int:
        what, path = "getting a ledger id", self.layout.idgen
        before = self._seen_id
        count = self._nodes.count_below(what, path) + 1 if self._counts_below else self._nodes.count(what, path)
        if count < 1:
            raise MetadataStoreError(
                f"all 2^31 ledger ids of {self.layout.ledgers} are given out; begin another chroot"
            )
        self._went_back(count - 1, before + 1)
        self._seen_id = max(self._seen_id, count - 1)
        return count - 1

    def last_ledger_id(self) -> int:
        last = self._last_id()
        self._seen_id = max(self._seen_id, last)
        return last

    def _check_ids(self) -> None:
        """Raises MetadataStoreError if the counter went back since this process saw it."""
        self._went_back(self._last_id(), self._seen_id)

    def _went_back(self, now: int, least: int) -> None:
        if now < least and not self._why_back:
            self._why_back = (
                f"{self.layout.idgen} is at ledger id {now} and was at {self._seen_id} before, so an older copy of ZooKeeper's "
                "data was put back; start this process again when that was meant (docs/guides/backup.md)"
            )
        if self._why_back:
            raise MetadataStoreError(self._why_back)

    def note_given_id(self, ledger_id: int) -> None:
        what, path = f"noting the given id {ledger_id}", self.layout.idgiven
        value = b"%d" % self.layout.check_new(ledger_id)

        def noted(document: bytes | None) -> bytes | None:
            return None if document is not None and _noted_id(document, path) >= ledger_id else value

        def write(document: bytes, version: int | None) -> bool:
            with contextlib.suppress(NodeExistsError, BadVersionError):
                if version is None:
                    self._nodes.create(what, path, document)
                else:
                    self._nodes.write(what, path, document, version)
                return True
            return False

        compare_and_set(what, partial(self._nodes.read, what, path), noted, write)

    def highest_ledger_id(self) -> int:
        path = self.layout.idgiven
        given = self._nodes.read("reading the highest given id", path)
        return max(self.last_ledger_id(), -1 if given is None else _noted_id(given.value, path))

    def skip_ledger_ids(self, highest: int) -> None:
        what, path = f"skipping the ledger ids up to {highest}", self.layout.idgen
        skip = self._nodes.skip_below if self._counts_below else self._nodes.skip
        while (missing := highest - self.last_ledger_id()) > 0:
            skip(what, path, min(missing, _AT_ONCE))

    def _last_id(self) -> int:
        counted = self._nodes.counted_below if self._counts_below else self._nodes.counted
        return counted("reading the last ledger id", self.layout.idgen) - 1

    # -- listings of ledgers: all at once, or in spans of ids
    #
    # Law: a listing of a span is whole or raises, as a listing of all. Counts are snapshots, for planning only. A span is the
    # ids of one node of the hierarchy, so a walk over spans holds one node's names at a time: 10⁷ ledgers are a thousand spans.

    def list_ledgers(self) -> list[int]:
        if self.layout.manager is LedgerManager.FLAT:
            return self._flat_ids()
        prefixes = self._prefixes()
        leaves = self._nodes.children_of_each(_LISTING, [self._second_level(prefix) for prefix in prefixes])
        self._still_there(_LISTING)
        return sorted(i for prefix, names in zip(prefixes, leaves, strict=True) for i in ledger_ids(names, prefix))

    def ledger_spans(self) -> list[LedgerSpan]:
        if self.layout.manager is LedgerManager.FLAT:
            return spans_of(self._flat_ids())
        prefixes = sorted(self._prefixes())
        counts = self._nodes.counts_of_each(_LISTING, [self._second_level(prefix) for prefix in prefixes])
        self._still_there(_LISTING)
        return [
            LedgerSpan(int(prefix) * IDS_PER_SPAN, count)
            for prefix, count in zip(prefixes, counts, strict=True)
            if count
        ]

    def list_ledgers_between(self, first: int, last: int) -> Iterator[int]:
        if self.layout.manager is LedgerManager.FLAT:
            yield from (ledger_id for ledger_id in self._flat_ids() if first <= ledger_id <= last)
            return
        low, high = (f"{ledger_id // IDS_PER_SPAN:06}" for ledger_id in (first, last))
        for prefix in sorted(prefix for prefix in self._prefixes(low[:2], high[:2]) if low <= prefix <= high):
            (names,) = self._nodes.children_of_each(_LISTING, [self._second_level(prefix)])
            if not names:
                self._still_there(_LISTING)
            yield from (one for one in sorted(ledger_ids(names, prefix)) if first <= one <= last)
        self._still_there(_LISTING)

    def _flat_ids(self) -> list[int]:
        found = sorted(ledger_ids(self._nodes.children(_LISTING, self.layout.ledgers)))
        self._still_there(_LISTING)
        return found

    def _prefixes(self, low: str = "00", high: str = "99") -> list[str]:
        """The first six digits of each node that has or had ledgers."""
        top = self._nodes.children(_LISTING, self.layout.ledgers)
        firsts = [name for name in top if two_digits(name) and low <= name <= high]
        below = self._nodes.children_of_each(_LISTING, [f"{self.layout.ledgers}/{first}" for first in firsts])
        return [
            first + second
            for first, seconds in zip(firsts, below, strict=True)
            for second in seconds
            if four_digits(second)
        ]

    def _second_level(self, prefix: str) -> str:
        return f"{self.layout.ledgers}/{prefix[:2]}/{prefix[2:]}"

    # -- bookies

    def register_bookie(
        self,
        registration: BookieRegistration,
        cookie: Cookie | None = None,
        replaced: Callable[[InvalidCookieError], None] | None = None,
    ) -> None:
        assert self._registrar is not None
        self._registrar.register(registration, cookie, replaced)

    def unregister_bookie(self, bookie_id: str) -> None:
        assert self._registrar is not None
        self._registrar.unregister(bookie_id)

    def bookies(self) -> dict[str, BookieRegistration]:
        what, places = "listing the bookies", [self.layout.available, self.layout.readonly]
        known = self._known_bookies
        # A registration is made and removed, but never changed.
        if known is not None and self._nodes.children_marks(what, places) == known[0]:
            return dict(known[1])
        for _ in range(_ATTEMPTS):
            listed, marks = self._nodes.children_together(what, places)
            paths = [f"{place}/{name}" for place, names in zip(places, listed, strict=True) for name in names]
            paths.remove(self.layout.readonly)
            values = self._nodes.read_each(what, paths)
            # None: a bookie has gone, or moved to the other place, since the listing. A moved bookie must be in the result.
            if None not in values:
                names = [path.rpartition("/")[2] for path in paths]
                _warn_of_foreign(names)
                found = {
                    n: readable_registration(n, v)
                    for n, v in zip(names, values, strict=True)
                    if v is not None and is_name(n)
                }
                self._known_bookies = marks, found
                return dict(found)
        raise MetadataStoreError(f"{what}: the bookies come and go faster than they can be read; try again")

    def watch_bookies(self, changed: Callable[[], None]) -> None:
        with self._lock:
            self._bookies_changed.append(changed)
        self._set_bookie_watches()

    def _connected(self) -> None:
        """Called from kazoo's thread at each connection."""
        self.clock.doubt()
        if self._registrar is not None:
            self._upkeep.request(self._registrar.renew)

    def _registration_event(self, _: object) -> None:
        """Called from kazoo's thread: the node or cookie of a bookie registered here was changed or deleted."""
        if self._registrar is not None:
            self._upkeep.request(self._registrar.restore)

    def _bookies_event(self, _: object) -> None:
        """Called from kazoo's thread: bookies came or went, or the watch was lost with the connection."""
        self._upkeep.request(self._watch_bookies_again)

    def _watch_bookies_again(self) -> None:
        if self.connection.closed:
            return
        self._set_bookie_watches()
        with self._lock:
            listeners = list(self._bookies_changed)
        for changed in listeners:
            self._notifier.post(changed)

    def _set_bookie_watches(self) -> None:
        places = [self.layout.available, self.layout.readonly]
        self._nodes.watch_children("watching the bookies", places, self._bookies_event)

    # -- cookies

    def read_cookie(self, bookie_id: str) -> Versioned[Cookie] | None:
        found = self._nodes.read(f"reading the cookie of {bookie_id}", self.layout.cookie(bookie_id))
        return found and Versioned(decode_cookie(found.value, f"of {bookie_id} in ZooKeeper"), found.version)

    def write_cookie(self, cookie: Cookie, version: int | None) -> int:
        what = f"the cookie of {cookie.bookie_id}"
        return self._write(
            what, self.layout.cookie(cookie.bookie_id), encode_cookie(cookie, self.layout.bookkeepers_formats), version
        )

    def delete_cookie(self, bookie_id: str, version: int, under: RecordVersion | None = None) -> None:
        what, path = f"the cookie of {bookie_id}", self.layout.cookie(bookie_id)
        try:
            self._nodes.delete(f"deleting {what}", path, version, self._checks(under))
        except NoNodeError:
            raise no_cookie(bookie_id) from None
        except BadVersionError:
            raise version_changed(what, version) from None

    def list_cookies(self) -> list[str]:
        return sorted(filter(is_name, self._nodes.children("listing the cookies", self.layout.cookies)))

    # -- small records
    #
    # The small records of one cluster, with versions that never recur, even if a record is deleted and made again under its
    # name.
    #
    # Law: ZooKeeper restarts the versions of a recreated node at 0, so a compare-and-set of its version alone could overwrite
    # another record of that name. Each deletion of a record therefore changes a *guard* in the same transaction, and each
    # compare-and-set checks that the guard has not changed since the record was read. The store's version combines the guard's
    # and the node's. The deletion of another record with the same guard may refuse a write; the writer reads again, as after any
    # other change.
    #
    # A kind has GUARDS guards, ``/bookspark/deletions/<kind>-<hex digit>``, chosen by the record's name. A guard is made before
    # its first use, at version 0, and never removed. It is read together with the record, so a read and a change take one round
    # trip each. Earlier versions of Bookspark delete without changing a guard.

    def read_record(self, kind: str, name: str) -> Record | None:
        return self._read_records(f"reading {kind} record {name!r}", kind, [name])[0]

    def read_records(self, kind: str, names: Iterable[str]) -> Iterator[Record | None]:
        rest = iter(names)
        while group := list(islice(rest, _AT_ONCE)):
            yield from self._read_records(f"reading {kind} records", kind, group)

    def write_record(self, kind: str, name: str, value: bytes, version: int | None) -> int:
        what = f"{kind} record {name!r}"
        sized(value, what)
        try:
            if version is None:
                return self._create_record(f"creating {what}", kind, name, value)
            self._change_record(f"changing {what}", kind, name, value, version)
        except (NodeExistsError, NoNodeError, BadVersionError):
            raise version_changed(what, version) from None
        return version + 1

    def delete_record(self, kind: str, name: str, version: int | None = None) -> None:
        what = f"{kind} record {name!r}"
        path, guard = self.layout.record(kind, name), self._made_guard(what, self._guard(kind, name))
        guarded, own = (-1, -1) if version is None else divmod(version, _VERSIONS)

        def build(transaction: Any) -> None:
            transaction.delete(path, own)
            transaction.set_data(guard, b"", guarded)

        try:
            self.connection.commit(f"deleting {what}", build, gone)
        except NoNodeError:
            pass
        except BadVersionError:
            raise version_changed(what, version) from None

    def _checks(self, under: RecordVersion | None) -> Check:
        """The condition that this record has not changed; for None no condition."""
        if under is None:
            return ignored
        path = self.layout.record(under.kind, under.name)
        guard = self._made_guard(f"checking {under.kind} record {under.name!r}", self._guard(under.kind, under.name))
        guarded, own = divmod(under.version, _VERSIONS)

        def check(transaction: Any) -> None:
            transaction.check(path, own)
            transaction.check(guard, guarded)

        return check

    def _read_records(self, what: str, kind: str, names: Sequence[str]) -> list[Record | None]:
        guard_of = {name: self._guard(kind, name) for name in names}
        guards, client = sorted(set(guard_of.values())), self.client
        paths = [self.layout.record(kind, name) for name in names]
        _, *outcomes = self.connection.gather(
            what,
            lambda: [
                client.sync_async(paths[0]),
                # Guards before records: a deletion after this point is noticed.
                *(client.exists_async(guard) for guard in guards),
                *(client.get_async(path) for path in paths),
            ],
        )
        versions = {guard: self._guarded_version(guard, stat) for guard, stat in zip(guards, outcomes, strict=False)}
        return [
            None
            if isinstance(one, NoNodeError)
            else Record(one[0], versions[guard_of[name]] + one[1].version, one[1].mtime)
            for name, one in zip(names, outcomes[len(guards) :], strict=True)
        ]

    def _create_record(self, what: str, kind: str, name: str, value: bytes) -> int:
        path, guard, stats = self.layout.record(kind, name), self._guard(kind, name), list[Any]()
        # The read's answer comes before the node is made, or known to exist.
        self._nodes.create(what, path, value, before=lambda: stats.append(self.client.exists_async(guard)))
        return self._guarded_version(guard, stats[-1].get(timeout=0))

    def _change_record(self, what: str, kind: str, name: str, value: bytes, version: int) -> None:
        path, guard = self.layout.record(kind, name), self._made_guard(what, self._guard(kind, name))
        guarded, own = divmod(version, _VERSIONS)

        def build(transaction: Any) -> None:
            transaction.set_data(path, value, own)
            transaction.check(guard, guarded)

        def settle(error: Exception) -> None:
            found = self.read_record(kind, name)
            if found is not None and found.version % _VERSIONS > own + 1:
                raise unknown(what)
            if found is None or (found.value, found.version % _VERSIONS) != (value, own + 1):
                raise error

        self.connection.commit(what, build, settle)

    def _guard(self, kind: str, name: str) -> str:
        return f"{self.layout.deletions}/{kind}-{zlib.crc32(name.encode()) % GUARDS:x}"

    def _guarded_version(self, guard: str, stat: Any) -> int:
        """The store's version for a node at version 0."""
        if stat is None:
            return 0
        self._guards.add(guard)
        return int(stat.version) * _VERSIONS

    def _made_guard(self, what: str, guard: str) -> str:
        if guard not in self._guards:
            with suppress(NodeExistsError):
                self._nodes.create(what, guard, b"")
            self._guards.add(guard)
        return guard

    def list_records(self, kind: str) -> list[str]:
        return sorted(map(decode_name, self._nodes.children(f"listing {kind} records", self.layout.records(kind))))

    def watch_record(self, kind: str, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        once = Once(self._notifier, changed)
        return self._nodes.watch_existence(f"watching {kind} record {name!r}", self.layout.record(kind, name), once)

    # -- autorecovery

    @property
    def underreplication(self) -> Underreplication:
        return Underreplication(self._autorecovery, self.clock, self.layout.bookkeepers_formats)

    @property
    def auditors(self) -> Auditors:
        return Auditors(self._autorecovery, self.layout.bookkeepers_formats)

    @property
    def change_lock(self) -> ChangeLock:
        return ChangeLock(self._autorecovery)

    def sharing(self, path: str, name: str) -> Sharing:
        return Sharing(ZooKeeperTree(self._nodes, self._notifier, self.layout.sharing), path, name)

    # -- within

    def _absent(self, ledger_id: int) -> NoSuchLedgerError:
        """The error for a ledger without a record. Raises MetadataStoreError if all records are gone."""
        self._still_there(f"looking for ledger {ledger_id}")
        return no_such_ledger(ledger_id)

    def _still_there(self, what: str) -> None:
        """Raises MetadataStoreError unless this is still the cluster of the start. Called after any miss: in a ZooKeeper that
        lost its data that is no deletion."""
        found = self._nodes.read(what, self.layout.instance_id)
        if found is None or found.value.decode(errors="replace") != self.instance_id:
            now = "is gone from ZooKeeper" if found is None else "belongs to another cluster now"
            raise MetadataStoreError(
                f"{what}: {self.layout.instance_id} {now} (it was {self.instance_id}), so a missing record may still "
                "exist; restore ZooKeeper's data, or stop the users of the earlier cluster"
            )

    def _write(self, what: str, path: str, value: bytes, version: int | None) -> int:
        sized(value, what)
        try:
            if version is None:
                return self._nodes.create(f"creating {what}", path, value)
            return self._nodes.write(f"changing {what}", path, value, version)
        except (NodeExistsError, NoNodeError, BadVersionError):
            raise version_changed(what, version) from None


def _noted_id(value: bytes, path: str) -> int:
    if not value.isdigit():
        raise MetadataStoreError(
            f"{path} holds {value!r}, not a ledger id; write the highest id that a user gave into it"
        )
    return int(value)


def begin_cluster(connect: str, manager: LedgerManager = LedgerManager.HIERARCHICAL) -> str:
    """Begin a cluster at ``connect`` if none is there; returns its id. Raises MetadataStoreError."""
    with contextlib.closing(ZooKeeperStore(connect, begin=manager)) as store:
        return store.instance_id


def _warn_of_foreign(names: Iterable[str]) -> None:
    """Say which registrations have a name that is no bookie id, as a stranger may make them: they would reach commands."""
    foreign = [name for name in names if not is_name(name)]
    if foreign:
        log.warning("%d registrations are not of bookies, for example %s", len(foreign), foreign[0])

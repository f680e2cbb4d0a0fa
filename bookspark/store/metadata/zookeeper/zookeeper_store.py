"""The metadata store over ZooKeeper.

Law: as in ``store``. ``nodes`` finds out the outcome of a write whose reply was lost. After the loss of a session,
registrations are made again, watches are set again, and watchers are called, because something may have changed meanwhile. "No
such ledger" is answered, and a record is changed, only while INSTANCEID is what it was at the start. A ZooKeeper that lost its
data knows of no deletion, and one that holds another cluster by now has other ledgers under the same ids.

A counter of ledger ids that went back is another such ZooKeeper (``ledger_ids``).

Source: BookKeeper's ``AbstractZkLedgerManager`` and ``ZKRegistrationManager``; ``layout`` has the paths.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from bookspark.errors import MetadataStoreError, NoSuchLedgerError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.metadata.autorecovery.auditors import Auditors
from bookspark.store.metadata.autorecovery.change_lock import ChangeLock
from bookspark.store.metadata.autorecovery.underreplication_tasks import Underreplication
from bookspark.store.metadata.documents.sharing import Sharing
from bookspark.store.metadata.notifier import Notifier, Once, Upkeep
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.codec import (
    decode_cookie,
    decode_ledger,
    encode_cookie,
    encode_ledger,
    readable_ledger,
    readable_registration,
)
from bookspark.store.metadata.records.ledger_spans import LedgerSpan
from bookspark.store.metadata.records.names import decode_name
from bookspark.store.metadata.records.refusals import ledger_exists, no_cookie, no_such_ledger, sized, version_changed
from bookspark.store.metadata.records.versioned import Versioned, VersionedLedger
from bookspark.store.metadata.zookeeper.cluster import find_cluster, identify
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.conversion import convert
from bookspark.store.metadata.zookeeper.layout import (
    LedgerManager,
    parse_address,
)
from bookspark.store.metadata.zookeeper.ledger_ids import LedgerIds
from bookspark.store.metadata.zookeeper.ledger_listing import LedgerListing
from bookspark.store.metadata.zookeeper.nodes import Marks, Nodes
from bookspark.store.metadata.zookeeper.record_nodes import RecordNodes
from bookspark.store.metadata.zookeeper.registration import Registrar
from bookspark.store.metadata.zookeeper.zookeeper_tree import ZooKeeperTree

log = logging.getLogger(__name__)

_ATTEMPTS = 20
_LEDGERS_AT_ONCE = 500


class ZooKeeperStore:
    """A ``MetadataStore`` on the ensemble that ``connect`` names: ``[zk://]host[:port][,…][/chroot]``.

    ``begin``: where no cluster is, one is begun, and its ledgers are spread over nodes in this way; a cluster that is there
    keeps its own. None: then the cluster has to be there. Only who may begin one says how: ``bookspark init``, a bookie's first
    start, a cluster for tests. For anybody else a chroot without a cluster is most likely mistyped.

    Raises NoSuchClusterError, and MetadataStoreError if no server answers within ``start_timeout_seconds``. Not for use after a
    fork.
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
        """The last listing, and the marks that tell whether it still holds."""
        self._bookies_changed: list[Callable[[], None]] = []
        self._lock = threading.RLock()
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
            self._instance_id = identify(self.connection, self._nodes, self.layout)
        except BaseException:
            self.close()
            raise
        self._ids = LedgerIds(self._nodes, self.layout)
        self._records = RecordNodes(self.connection, self._nodes, self.layout)
        self._listing = LedgerListing(self._nodes, self.layout, self._still_there)
        self._registrar = Registrar(self.connection, self.layout, self._ids.check, self._registration_event)
        self._autorecovery = ZooKeeperTree(self._nodes, self._notifier, self.layout.underreplication)

    # -- cluster

    @property
    def client(self) -> Any:
        """The kazoo client, for its recipes. It knows nothing of the chroot: take paths from ``layout``."""
        return self.connection.client

    @property
    def instance_id(self) -> str:
        return self._instance_id

    def close(self) -> None:
        # Upkeep stops before the connection, so that it does not look after one that ends on purpose.
        self._upkeep.stop()
        self.connection.close()
        self._upkeep.join()
        self._notifier.close()

    # -- ledgers

    def new_ledger_id(self) -> int:
        return self._ids.new()

    def last_ledger_id(self) -> int:
        return self._ids.last()

    def note_given_id(self, ledger_id: int) -> None:
        self._ids.note_given(ledger_id)

    def highest_ledger_id(self) -> int:
        return self._ids.highest()

    def skip_ledger_ids(self, highest: int) -> None:
        self._ids.skip_to(highest)

    def create_ledger(self, metadata: LedgerMetadata) -> int:
        path = self.layout.ledger(self.layout.check_new(metadata.ledger_id))
        what = f"creating ledger {metadata.ledger_id}"
        try:
            return self._nodes.create(what, path, sized(encode_ledger(metadata, self.layout.bookkeepers_formats), what))
        except NodeExistsError:
            found = self._nodes.read(what, path)
            # Ours, if only the answer was lost. Somebody may have fenced it since: our next write has to find that out.
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
        while group := list(islice(rest, _LEDGERS_AT_ONCE)):
            nodes = self._nodes.read_versions("reading ledgers", [self.layout.ledger(ledger_id) for ledger_id in group])
            if None in nodes:
                self._still_there("reading ledgers")
            for ledger_id, node in zip(group, nodes, strict=True):
                if node is not None and (found := readable_ledger(ledger_id, node.value, unreadable)) is not None:
                    yield Versioned(found, node.version)

    def write_ledger(self, metadata: LedgerMetadata, version: int) -> int:
        what, path = f"changing ledger {metadata.ledger_id}", self.layout.ledger(metadata.ledger_id)
        try:
            return self._nodes.write(
                what, path, sized(encode_ledger(metadata, self.layout.bookkeepers_formats), what), version
            )
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

    def list_ledgers(self) -> list[int]:
        return self._listing.all()

    def ledger_spans(self) -> list[LedgerSpan]:
        return self._listing.spans()

    def list_ledgers_between(self, first: int, last: int) -> Iterator[int]:
        return self._listing.between(first, last)

    def watch_ledger(self, ledger_id: int, changed: Callable[[], None]) -> None:
        once = Once(self._notifier, changed)
        self._nodes.watch_value(f"watching ledger {ledger_id}", self.layout.ledger(ledger_id), once)

    # -- bookies

    def register_bookie(self, registration: BookieRegistration) -> None:
        assert self._registrar is not None
        self._registrar.register(registration)

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
            # None: a bookie has gone, or has moved to the other place, since the listing. List again: a moved bookie has to be
            # found.
            if None not in values:
                names = [path.rpartition("/")[2] for path in paths]
                found = {n: readable_registration(n, v) for n, v in zip(names, values, strict=True) if v is not None}
                self._known_bookies = marks, found
                return dict(found)
        raise MetadataStoreError(f"{what}: the bookies come and go faster than they can be read; try again")

    def watch_bookies(self, changed: Callable[[], None]) -> None:
        with self._lock:
            self._bookies_changed.append(changed)
        self._set_bookie_watches()

    def _connected(self) -> None:
        """Called from kazoo's thread at each connection."""
        if self._registrar is not None:
            self._upkeep.request(self._registrar.renew)

    def _registration_event(self, _: object) -> None:
        """Called from kazoo's thread: the node of a bookie that is registered here was changed or deleted."""
        if self._registrar is not None:
            self._upkeep.request(self._registrar.restore)

    def _bookies_event(self, _: object) -> None:
        """Called from kazoo's thread: bookies came or went, or the watch was lost together with the connection."""
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

    def delete_cookie(self, bookie_id: str, version: int) -> None:
        what = f"the cookie of {bookie_id}"
        try:
            self._nodes.delete(f"deleting {what}", self.layout.cookie(bookie_id), version)
        except NoNodeError:
            raise no_cookie(bookie_id) from None
        except BadVersionError:
            raise version_changed(what, version) from None

    def list_cookies(self) -> list[str]:
        return sorted(self._nodes.children("listing the cookies", self.layout.cookies))

    # -- records

    def read_record(self, kind: str, name: str) -> Versioned[bytes] | None:
        return self._records.read(kind, name)

    def read_records(self, kind: str, names: Iterable[str]) -> Iterator[Versioned[bytes] | None]:
        return self._records.read_each(kind, names)

    def write_record(self, kind: str, name: str, value: bytes, version: int | None) -> int:
        return self._records.write(kind, name, value, version)

    def delete_record(self, kind: str, name: str, version: int | None = None) -> None:
        self._records.delete(kind, name, version)

    def list_records(self, kind: str) -> list[str]:
        return sorted(map(decode_name, self._nodes.children(f"listing {kind} records", self.layout.records(kind))))

    def watch_record(self, kind: str, name: str, changed: Callable[[], None]) -> None:
        once = Once(self._notifier, changed)
        self._nodes.watch_existence(f"watching {kind} record {name!r}", self.layout.record(kind, name), once)

    # -- autorecovery

    @property
    def underreplication(self) -> Underreplication:
        return Underreplication(self._autorecovery, bookkeepers=self.layout.bookkeepers_formats)

    @property
    def auditors(self) -> Auditors:
        return Auditors(self._autorecovery, self.layout.bookkeepers_formats)

    @property
    def change_lock(self) -> ChangeLock:
        return ChangeLock(self._autorecovery)

    def sharing(self, path: str, name: str) -> Sharing:
        return Sharing(ZooKeeperTree(self._nodes, self._notifier, self.layout.sharing), path, name)

    # -- within

    def take_bookkeepers_formats(self) -> bool:
        """Have cookies and tasks in BookKeeper's formats, in a cluster that an earlier version began for its clients. False: they
        are not, because the cluster is in use. What is connected already keeps the formats that it began with."""
        return convert(self._nodes, self.layout, self._instance_id, self.underreplication.list_tasks())

    def _absent(self, ledger_id: int) -> NoSuchLedgerError:
        """The error for a ledger without a record. Raises MetadataStoreError if the records of all ledgers are gone."""
        self._still_there(f"looking for ledger {ledger_id}")
        return no_such_ledger(ledger_id)

    def _still_there(self, what: str) -> None:
        """Raises MetadataStoreError unless this is still the cluster that this client connected to. It is asked after anything
        was not found: a ZooKeeper that lost its data finds nothing, and that is no deletion."""
        found = self._nodes.read(what, self.layout.instance_id)
        if found is None or found.value.decode(errors="replace") != self._instance_id:
            now = "is gone from ZooKeeper" if found is None else "belongs to another cluster now"
            raise MetadataStoreError(
                f"{what}: {self.layout.instance_id} {now} (it was {self._instance_id}), so what is not found may still "
                "exist; restore ZooKeeper's data, or stop what used the cluster that was there"
            )

    def _write(self, what: str, path: str, value: bytes, version: int | None) -> int:
        sized(value, what)
        try:
            if version is None:
                return self._nodes.create(f"creating {what}", path, value)
            return self._nodes.write(f"changing {what}", path, value, version)
        except (NodeExistsError, NoNodeError, BadVersionError):
            raise version_changed(what, version) from None


def begin_cluster(connect: str, manager: LedgerManager = LedgerManager.HIERARCHICAL) -> str:
    """Begin a cluster at ``connect`` if none is there; returns its id. One that an earlier version began for BookKeeper's clients
    gets the formats of BookKeeper's cookies and tasks, unless it is in use. Raises MetadataStoreError."""
    with contextlib.closing(ZooKeeperStore(connect, begin=manager)) as store:
        if manager is LedgerManager.BOOKKEEPER and not store.take_bookkeepers_formats():
            log.warning(
                "the cluster keeps Bookspark's formats for cookies and tasks, which BookKeeper's autorecovery can't read: to "
                "change that, stop all bookies, clients and autorecovery of the cluster, and say this again"
            )
        return store.instance_id

"""The metadata store in memory: the twin of ``zookeeper.zookeeper_store`` for tests and simulations, with the same answers.

Law: as in ``store``. Records are kept as ZooKeeper's documents, so both stores refuse the same records. Each store is one
client's session; ``another()`` is a second client of the same cluster, in the same process.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial

from bookspark.errors import InvalidCookieError, MetadataStoreError, NoSuchLedgerError, UnreadableRecordError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.metadata.autorecovery.auditors import Auditors
from bookspark.store.metadata.autorecovery.underreplication_tasks import Underreplication
from bookspark.store.metadata.documents.locks import ChangeLock
from bookspark.store.metadata.documents.sharing import Sharing
from bookspark.store.metadata.notifier import Notifier, Once, Owner
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
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
from bookspark.store.metadata.records.ledger_spans import LedgerSpan, spans_of
from bookspark.store.metadata.records.names import check_ledger_id, check_name, check_record
from bookspark.store.metadata.records.refusals import (
    check_recorded,
    ledger_exists,
    no_cookie,
    no_such_ledger,
    sized,
    version_changed,
)
from bookspark.store.metadata.records.versioned import Record, RecordVersion, Versioned, VersionedLedger
from bookspark.store.metadata.store_clock import StoreClock

# -- The world in memory, shared by the stores of one cluster.


Key = tuple[str, str]
RECORD = "record:"
"""Prefix of the kinds whose versions never recur after a deletion."""


class World:
    """Versioned documents under (kind, name), and their watchers, shared by one cluster's stores.

    Law: a thread that reads or changes the world holds its ``lock``.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.instance_id = str(uuid.uuid4())
        self.ledger_ids = 0
        self.highest_given = -1
        self.numbers = 0
        self.documents: dict[Key, Versioned[bytes]] = {}
        self.changed_ms: dict[Key, int] = {}
        self.deletions: Counter[Key] = Counter()
        """Deletions by key, for kinds whose versions never recur."""
        self.watches: dict[Key, list[Once]] = {}
        self.registrations: dict[str, tuple[MemoryStore, bytes]] = {}
        self.ephemerals: dict[Key, MemoryStore] = {}
        self.sessions: list[MemoryStore] = []

    def put(self, key: Key, document: bytes, version: int | None) -> int | None:
        """Create (version None) or compare-and-set; None if that fails."""
        found = self.documents.get(key)
        if (None if found is None else found.version) != version:
            return None
        new = self.deletions[key] << 31 if version is None else version + 1
        self.documents[key] = Versioned(document, new)
        self.changed_ms[key] = self.now_ms()
        self._tell(key)
        return new

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def check(self, under: RecordVersion | None) -> None:
        """Raise MetadataVersionError if the record has changed."""
        if under is not None:
            found = self.documents.get(_record_key(under.kind, under.name))
            if found is None or found.version != under.version:
                raise version_changed(f"{under.kind} record {under.name!r}", under.version)

    def remove(self, key: Key) -> None:
        del self.documents[key]
        if key[0].startswith(RECORD):
            self.deletions[key] += 1
        self.ephemerals.pop(key, None)
        self._tell(key)

    def names(self, kind: str) -> list[str]:
        return sorted(name for k, name in self.documents if k == kind)

    def bookies_changed(self) -> None:
        for session in self.sessions:
            session.post_bookies_changed()

    def unwatch(self, key: Key, once: Once) -> None:
        with self.lock:
            left = [each for each in self.watches.pop(key, []) if each is not once]
            if left:
                self.watches[key] = left

    def _tell(self, key: Key) -> None:
        for once in self.watches.pop(key, []):
            once()


# -- Documents (``documents.tree``) of the world: the twin of ``ZooKeeperTree``.


_KIND = "tree"


class MemoryTree:
    """A ``Tree`` of the session ``owner``; ``opened`` returns its world, locked."""

    def __init__(
        self, opened: Callable[[], AbstractContextManager[World]], notifier: Notifier, owner: MemoryStore
    ) -> None:
        self._opened = opened
        self._notifier = notifier
        self._owner = owner

    def read(self, path: str) -> Versioned[bytes] | None:
        with self._opened() as world:
            return world.documents.get((_KIND, path))

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        found = [self.read(path) for path in paths]
        return [None if one is None else one.value for one in found]

    def create(self, path: str, value: bytes, ephemeral: bool = False) -> bool:
        with self._opened() as world:
            made = world.put((_KIND, path), sized(value, path), None) is not None
            if made and ephemeral:
                world.ephemerals[_KIND, path] = self._owner
            return made

    def create_numbered(self, path: str, value: bytes) -> str:
        with self._opened() as world:
            world.numbers += 1
            made = f"{path}{world.numbers:010}"
        assert self.create(made, value, ephemeral=True)
        return made

    def create_and_read(
        self, path: str, value: bytes, paths: Sequence[str]
    ) -> tuple[bool, list[Versioned[bytes] | None]]:
        return self.create(path, value, ephemeral=True), [self.read(each) for each in paths]

    def create_each(self, documents: Sequence[tuple[str, bytes]]) -> list[bool]:
        return [self.create(path, value) for path, value in documents]

    def write(self, path: str, value: bytes, version: int) -> bool:
        with self._opened() as world:
            return (_KIND, path) in world.documents and world.put(
                (_KIND, path), sized(value, path), version
            ) is not None

    def touch(self, path: str) -> None:
        with self._opened() as world:
            found = world.documents.get((_KIND, path))
            world.put((_KIND, path), b"", None if found is None else found.version)

    def delete(self, path: str, version: int | None = None) -> bool:
        with self._opened() as world:
            found = world.documents.get((_KIND, path))
            if found is not None and version is not None and found.version != version:
                return False
            if found is not None:
                world.remove((_KIND, path))
            return True

    def forget_empty(self, *paths: str) -> None:
        """Nothing to do: every node here has a document."""

    def children(self, path: str) -> list[str]:
        with self._opened() as world:
            below = [name.removeprefix(f"{path}/") for name in world.names(_KIND) if name.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in below})

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        return [self.children(path) for path in paths]

    def watch(self, path: str, changed: Callable[[], None]) -> None:
        with self._opened() as world:
            world.watches.setdefault((_KIND, path), []).append(Once(self._notifier, changed))


# -- The store.


class MemoryStore:
    """A ``MetadataStore`` whose records last as long as its process. ``another()`` returns a second client."""

    def __init__(self) -> None:
        self._join(World())

    def another(self) -> MemoryStore:
        store = MemoryStore.__new__(MemoryStore)
        store._join(self._world)
        return store

    def _join(self, world: World) -> None:
        self._world = world
        self.instance_id = world.instance_id
        self._owner = Owner("metadata store")
        self._closed = False
        self._notifier = Notifier()
        self._bookies_changed: list[Callable[[], None]] = []
        self._registered: dict[str, tuple[Cookie, Callable[[InvalidCookieError], None] | None]] = {}
        """Cookies of the bookies registered here, with the callback for their loss."""
        self.clock = StoreClock(lambda: world.now_ms(), renew_seconds=0.0)
        with world.lock:
            world.sessions.append(self)

    # -- cluster

    def close(self) -> None:
        with self._world.lock:
            if self._closed:
                return
            self._closed = True
            self._world.sessions.remove(self)
            for key in [key for key, owner in self._world.ephemerals.items() if owner is self]:
                self._world.remove(key)
            mine = [i for i, (owner, _) in self._world.registrations.items() if owner is self]
            for bookie_id in mine:
                del self._world.registrations[bookie_id]
            if mine:
                self._world.bookies_changed()
        self._notifier.close()

    # -- ledgers

    def new_ledger_id(self) -> int:
        with self._open() as world:
            world.ledger_ids += 1
            return world.ledger_ids - 1

    def last_ledger_id(self) -> int:
        with self._open() as world:
            return world.ledger_ids - 1

    def note_given_id(self, ledger_id: int) -> None:
        with self._open() as world:
            world.highest_given = max(world.highest_given, check_ledger_id(ledger_id))

    def highest_ledger_id(self) -> int:
        return max(self.last_ledger_id(), self._world.highest_given)

    def skip_ledger_ids(self, highest: int) -> None:
        with self._open() as world:
            world.ledger_ids = max(world.ledger_ids, highest + 1)

    def create_ledger(self, metadata: LedgerMetadata) -> int:
        with self._open() as world:
            key = _ledger_key(metadata.ledger_id)
            document = new_ledger(encode_ledger(metadata), metadata)
            if world.put(key, document, None) is None:
                found = readable_ledger(metadata.ledger_id, world.documents[key].value, {})
                if not metadata.c_token or found is None or found.c_token != metadata.c_token:
                    raise ledger_exists(metadata.ledger_id)
            return 0

    def read_ledger(self, ledger_id: int) -> Versioned[LedgerMetadata]:
        with self._open() as world:
            found = world.documents.get(_ledger_key(ledger_id))
        if found is None:
            raise no_such_ledger(ledger_id)
        return Versioned(decode_ledger(ledger_id, found.value), found.version)

    def read_ledgers(self, ledger_ids: Iterable[int], unreadable: dict[int, str]) -> Iterator[VersionedLedger]:
        for ledger_id in ledger_ids:
            try:
                yield self.read_ledger(ledger_id)
            except NoSuchLedgerError:
                continue
            except UnreadableRecordError as error:
                unreadable[ledger_id] = str(error)

    def write_ledger(self, metadata: LedgerMetadata, version: int, under: RecordVersion | None = None) -> int:
        with self._open() as world:
            world.check(under)
            key = _ledger_key(metadata.ledger_id)
            document = changed_ledger(encode_ledger(metadata), metadata)
            if key not in world.documents:
                raise no_such_ledger(metadata.ledger_id)
            return self._write(f"ledger {metadata.ledger_id}", key, document, version)

    def delete_ledger(self, ledger_id: int) -> None:
        if not self._delete(f"ledger {ledger_id}", _ledger_key(ledger_id), None):
            raise no_such_ledger(ledger_id)

    def list_ledgers(self) -> list[int]:
        with self._open() as world:
            return sorted(int(name) for name in world.names("ledger"))

    def ledger_spans(self) -> list[LedgerSpan]:
        return spans_of(self.list_ledgers())

    def list_ledgers_between(self, first: int, last: int) -> Iterator[int]:
        return (ledger_id for ledger_id in self.list_ledgers() if first <= ledger_id <= last)

    def watch_ledger(self, ledger_id: int, changed: Callable[[], None]) -> None:
        with self._open() as world:
            key, once = _ledger_key(ledger_id), Once(self._notifier, changed)
            if key in world.documents:
                world.watches.setdefault(key, []).append(once)
            else:
                once()

    # -- bookies

    def register_bookie(
        self,
        registration: BookieRegistration,
        cookie: Cookie | None = None,
        replaced: Callable[[InvalidCookieError], None] | None = None,
    ) -> None:
        check_name(registration.bookie_id, "bookie id")
        with self._open() as world:
            if cookie is not None:
                self._registered[cookie.bookie_id] = cookie, replaced
                self._check_cookie(cookie.bookie_id)
            world.registrations[registration.bookie_id] = (self, encode_registration(registration))
            world.bookies_changed()

    def unregister_bookie(self, bookie_id: str) -> None:
        check_name(bookie_id, "bookie id")
        with self._open() as world:
            self._registered.pop(bookie_id, None)
            owner, _ = world.registrations.get(bookie_id, (None, b""))
            if owner is self:
                del world.registrations[bookie_id]
                world.bookies_changed()

    def _check_cookie(self, bookie_id: str) -> None:
        """Compare the recorded cookie with that of the bookie registered here, now and after its next change. Raises
        InvalidCookieError."""
        with self._open() as world:
            if bookie_id in self._registered:
                found = self.read_cookie(bookie_id)
                try:
                    check_recorded(self._registered[bookie_id][0], found and found.value)
                except InvalidCookieError:
                    del self._registered[bookie_id]
                    raise
                again = Once(self._notifier, partial(self._cookie_changed, bookie_id))
                world.watches.setdefault(("cookie", bookie_id), []).append(again)

    def _cookie_changed(self, bookie_id: str) -> None:
        _, replaced = self._registered.get(bookie_id, (None, None))
        try:
            self._check_cookie(bookie_id)
        except InvalidCookieError as error:
            if replaced is not None:
                replaced(error)

    def bookies(self) -> dict[str, BookieRegistration]:
        with self._open() as world:
            return {i: readable_registration(i, document) for i, (_, document) in world.registrations.items()}

    def watch_bookies(self, changed: Callable[[], None]) -> None:
        with self._open():
            self._bookies_changed.append(changed)

    def post_bookies_changed(self) -> None:
        for changed in self._bookies_changed:
            self._notifier.post(changed)

    # -- cookies

    def read_cookie(self, bookie_id: str) -> Versioned[Cookie] | None:
        with self._open() as world:
            found = world.documents.get(("cookie", check_name(bookie_id, "bookie id")))
        return found and Versioned(decode_cookie(found.value, f"of {bookie_id} in memory"), found.version)

    def write_cookie(self, cookie: Cookie, version: int | None) -> int:
        key = ("cookie", check_name(cookie.bookie_id, "bookie id"))
        return self._write(f"the cookie of {cookie.bookie_id}", key, encode_cookie(cookie), version)

    def delete_cookie(self, bookie_id: str, version: int, under: RecordVersion | None = None) -> None:
        with self._open() as world:
            world.check(under)
            if not self._delete(f"the cookie of {bookie_id}", ("cookie", check_name(bookie_id, "bookie id")), version):
                raise no_cookie(bookie_id)

    def list_cookies(self) -> list[str]:
        with self._open() as world:
            return world.names("cookie")

    # -- records

    def read_record(self, kind: str, name: str) -> Record | None:
        with self._open() as world:
            key = _record_key(kind, name)
            found = world.documents.get(key)
            return None if found is None else Record(*found, world.changed_ms[key])

    def read_records(self, kind: str, names: Iterable[str]) -> Iterator[Record | None]:
        return (self.read_record(kind, name) for name in names)

    def write_record(self, kind: str, name: str, value: bytes, version: int | None) -> int:
        return self._write(f"{kind} record {name!r}", _record_key(kind, name), value, version)

    def delete_record(self, kind: str, name: str, version: int | None = None) -> None:
        self._delete(f"{kind} record {name!r}", _record_key(kind, name), version)

    def list_records(self, kind: str) -> list[str]:
        with self._open() as world:
            return world.names(f"{RECORD}{check_name(kind, 'record kind')}")

    def watch_record(self, kind: str, name: str, changed: Callable[[], None]) -> Callable[[], None]:
        key, once = _record_key(kind, name), Once(self._notifier, changed)
        with self._open() as world:
            world.watches.setdefault(key, []).append(once)
        return partial(world.unwatch, key, once)

    # -- autorecovery

    @property
    def underreplication(self) -> Underreplication:
        return Underreplication(self._tree(), self.clock)

    @property
    def auditors(self) -> Auditors:
        return Auditors(self._tree())

    @property
    def change_lock(self) -> ChangeLock:
        return ChangeLock(self._tree())

    def sharing(self, path: str, name: str) -> Sharing:
        return Sharing(self._tree(), f"sharing/{path}", name)

    def _tree(self) -> MemoryTree:
        return MemoryTree(self._open, self._notifier, self)

    # -- within

    @contextmanager
    def _open(self) -> Iterator[World]:
        self._owner.check()
        with self._world.lock:
            if self._closed:
                raise MetadataStoreError("this metadata store is closed; make a new one")
            yield self._world

    def _write(self, what: str, key: Key, document: bytes, version: int | None) -> int:
        with self._open() as world:
            new = world.put(key, sized(document, what), version)
        if new is None:
            raise version_changed(what, version)
        return new

    def _delete(self, what: str, key: Key, version: int | None) -> bool:
        """Delete a document, at any version if ``version`` is None; False if there is none. Raises MetadataVersionError."""
        with self._open() as world:
            found = world.documents.get(key)
            if found is None:
                return False
            if version is not None and found.version != version:
                raise version_changed(what, version)
            world.remove(key)
            return True


def _ledger_key(ledger_id: int) -> Key:
    return ("ledger", str(check_ledger_id(ledger_id)))


def _record_key(kind: str, name: str) -> Key:
    check_record(kind, name)
    return (f"{RECORD}{kind}", name)

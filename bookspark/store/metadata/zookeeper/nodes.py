"""Single nodes of ZooKeeper: read, compare-and-set and watched, with lost replies settled; reads of many nodes at once.

Law: a write whose reply was lost is repeated. When the repetition is refused, the node shows whether the first attempt
succeeded: after a compare-and-set it has the new value at the next version, after a create the value at version 0, after a
delete it is gone. So two clients that write *the same bytes* over the same version may both get a success; a record that
claims something must name its owner. If the node is no proof, the call raises MetadataStoreError.

The definite errors are kazoo's (NoNodeError, NodeExistsError, BadVersionError); ``zookeeper_store`` translates them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, ClassVar

from kazoo.exceptions import EXCEPTIONS, NodeExistsError, NoNodeError
from kazoo.protocol.serialization import GetData, MultiHeader, int_struct, multiheader_struct, read_buffer, stat_struct
from kazoo.protocol.states import ZnodeStat

from bookspark.errors import MetadataStoreError
from bookspark.store.metadata.notifier import Once
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.zookeeper.connection import Connection

# -- Many nodes read by one request, ZooKeeper's ``multiRead``, which kazoo lacks.
#
# A request and its reply cost kazoo some 100 µs of processor time whatever their size: a hundred nodes in one request cost a
# fifth of a hundred requests. ZooKeeper before 3.6 rejects it in a way that kazoo takes for a broken connection: the call ends
# with its deadline.


NODES_PER_REQUEST = 100
_MULTI_READ, _NO_OPERATION = 22, -1


@dataclass(frozen=True)
class ManyReads:
    """A request for many nodes, for kazoo's connection.

    Law: each node's outcome is that of a request of its own, a value or NoNodeError; a missing node does not affect the
    others.

    Request: for each node the header of an operation (i32 type 4, getData; bool false; i32 −1), the path (i32 length, UTF-8)
    and a false, for no watch; then a header of type −1 with true. Reply: for each node such a header, and the value (i32
    length, bytes) and the node's stat, or, after a header of type −1, the error number (i32); then a header with true.

    Source: ZooKeeper's ``MultiOperationRecord`` and ``MultiResponse``, of kind READ.
    """

    paths: tuple[str, ...]

    type: ClassVar[int] = _MULTI_READ

    def serialize(self) -> bytes:
        found = bytearray()
        operation = MultiHeader(GetData.type, False, -1).serialize()
        for path in self.paths:
            found += operation + GetData(path, None).serialize()
        return bytes(found + multiheader_struct.pack(_NO_OPERATION, True, -1))

    @classmethod
    def deserialize(cls, reply: bytes, offset: int) -> list[Any]:
        """The outcome of each node: (value, stat), or an error."""
        found: list[Any] = []
        while True:
            kind, done, _ = multiheader_struct.unpack_from(reply, offset)
            offset += multiheader_struct.size
            if done:
                return found
            if kind == _NO_OPERATION:
                found.append(EXCEPTIONS[int_struct.unpack_from(reply, offset)[0]]())
                offset += int_struct.size
            else:
                value, offset = read_buffer(reply, offset)
                found.append((value, ZnodeStat._make(stat_struct.unpack_from(reply, offset))))
                offset += stat_struct.size


def read_many(client: Any, paths: Sequence[str]) -> list[Any]:
    """Send requests for all of ``paths``; each result is a list of outcomes."""
    sent = []
    for first in range(0, len(paths), NODES_PER_REQUEST):
        sent.append(client.handler.async_result())
        client._call(ManyReads(tuple(paths[first : first + NODES_PER_REQUEST])), sent[-1])
    return sent


# -- Single nodes.


_ATTEMPTS = 20
_LISTINGS_AT_ONCE = 500
_LISTINGS_FIRST = 4
_NAMES_AT_ONCE = 20_000
"""After a group of listings with more names the next group is smaller: its deadline is for all of them."""


Marks = tuple[int, ...]
Check = Callable[[Any], None]


def ignored(transaction: Any) -> None:
    """No conditions."""


class Nodes:
    """The nodes of one connection. ``what``, in each method, names the operation for errors."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._client = connection.client
        self._watchers: dict[str, _Watchers] = {}

    def read(self, what: str, path: str) -> Versioned[bytes] | None:
        """Value and version, as new as any earlier confirmed write; None if there is no such node."""
        try:
            value, stat = self._connection.read(what, path, lambda: self._client.get_async(path))
        except NoNodeError:
            return None
        return Versioned(value, stat.version)

    def create(
        self,
        what: str,
        path: str,
        value: bytes,
        ephemeral: bool = False,
        before: Callable[[], object] = lambda: None,
    ) -> int:
        """Make the node and its missing ancestors; returns its version. An ephemeral node's value must be unique, so that its
        maker recognizes it. ``before`` sends a request to be answered before each attempt. Raises NodeExistsError."""

        def settle(error: Exception) -> str:
            found = self.read(what, path)
            if found == Versioned(value, 0):
                return path
            raise error

        def send() -> Any:
            before()
            return self._client.create_async(path, value, ephemeral=ephemeral, makepath=True)

        for _ in range(_ATTEMPTS):
            try:
                self._connection.call(what, send, settle)
                return 0
            except NoNodeError:
                # Another client removed the empty ancestor between its creation and its use.
                continue
        raise MetadataStoreError(f"{what}: the nodes above {path} are removed as fast as they are made; try again")

    def time_of_a_change(self, what: str, path: str) -> int:
        """ZooKeeper's time, in ms since 1970: that of a node made below ``path`` and removed at once. A leftover of a lost reply
        ends with the session."""
        made, stat = self._connection.call(
            what,
            lambda: self._client.create_async(
                f"{path}/", b"", ephemeral=True, sequence=True, makepath=True, include_data=True
            ),
        )
        self._client.delete_async(made)
        return int(stat.mtime)

    def create_numbered(self, what: str, path: str, value: bytes) -> str:
        """Make an ephemeral node numbered by ZooKeeper, and its missing ancestors; returns its path."""
        made: str = self._connection.call(
            what, lambda: self._client.create_async(path, value, ephemeral=True, sequence=True, makepath=True)
        )
        return made

    def create_and_read(
        self, what: str, path: str, value: bytes, others: list[str]
    ) -> tuple[bool, list[Versioned[bytes] | None]]:
        """Make an ephemeral node, then read ``others``, in one round trip. False if the node exists; its value shows whether
        an earlier attempt made it."""

        def send() -> list[Any]:
            # The servers take a session's requests in order, and apply the first after all confirmed changes: no sync needed.
            return [
                self._client.create_async(path, value, ephemeral=True),
                *(self._client.get_async(other) for other in others),
            ]

        made, *found = self._connection.gather(what, send)
        if isinstance(made, NoNodeError):
            with contextlib.suppress(NodeExistsError):
                self.create(what, path.rpartition("/")[0], b"")
            made, *found = self._connection.gather(what, send)
        if isinstance(made, NoNodeError):
            raise _damaged(what, path.rpartition("/")[0])
        return not isinstance(made, Exception), [*map(_versioned, found)]

    def create_each(self, what: str, root: str, nodes: list[tuple[str, bytes]]) -> list[bool]:
        """Make many nodes at once, and their ancestors below ``root``. False if a node exists, or its parent was removed
        meanwhile: ``create`` distinguishes these."""
        client = self._client
        above = sorted({path[: at.start()] for path, _ in nodes for at in re.finditer("/", path)})
        missing = [path for path in above if len(path) > len(root)]

        def send() -> list[Any]:
            # The servers take a session's requests in order: parents are there before their children.
            return [client.create_async(*node) for node in (*((path, b"") for path in missing), *nodes)]

        return [not isinstance(made, Exception) for made in self._connection.gather(what, send)[len(missing) :]]

    def touch(self, what: str, path: str) -> None:
        """Empty the node at any version, or make it, so that its watchers are called."""
        try:
            self._connection.call(what, lambda: self._client.set_async(path, b""))
        except NoNodeError:
            with contextlib.suppress(NodeExistsError):
                self.create(what, path, b"")

    def write(self, what: str, path: str, value: bytes, version: int, check: Check = ignored) -> int:
        """Compare-and-set; returns the new version. ``check`` adds conditions to the transaction. Raises BadVersionError,
        NoNodeError."""

        def settle(error: Exception) -> Any:
            found = self.read(what, path)
            if found == Versioned(value, version + 1):
                return None
            if found is not None and found.version > version + 1:
                raise unknown(what)
            raise error

        def build(transaction: Any) -> None:
            check(transaction)
            transaction.set_data(path, value, version)

        self._connection.commit(what, build, settle)
        return version + 1

    def delete(self, what: str, path: str, version: int = -1, check: Check = ignored) -> None:
        """``check`` adds conditions to the transaction. Raises NoNodeError, or BadVersionError for another version than the given
        one."""

        def build(transaction: Any) -> None:
            check(transaction)
            transaction.delete(path, version)

        self._connection.commit(what, build, gone)

    def forget_empty(self, *paths: str) -> None:
        """Remove the empty nodes of ``paths``, each above the one before it, up to the first non-empty, later and without a
        wait."""
        if paths:
            self._client.delete_async(paths[0]).rawlink(partial(self._forget_above, paths[1:]))

    def _forget_above(self, paths: tuple[str, ...], deleted: Any) -> None:
        if deleted.successful():
            self.forget_empty(*paths)

    def count(self, what: str, path: str) -> int:
        """A number never returned before, from 1: the node's version after one more change."""
        try:
            return int(self._connection.call(what, lambda: self._client.set_async(path, b"")).version)
        except NoNodeError as error:
            raise _damaged(what, path) from error

    def skip(self, what: str, path: str, numbers: int) -> None:
        """``count`` so often, or more often if an answer is lost."""

        def build(transaction: Any) -> None:
            for _ in range(numbers):
                transaction.set_data(path, b"")

        try:
            self._connection.commit(what, build)
        except NoNodeError as error:
            raise _damaged(what, path) from error

    def counted(self, what: str, path: str) -> int:
        """The number that ``count`` returned last; 0 if none."""
        found = self.read(what, path)
        if found is None:
            raise _damaged(what, path)
        return found.version

    def count_below(self, what: str, path: str) -> int:
        """A number never returned before, from 0: that of a node ``ID-<number>``, made by ZooKeeper below ``path`` and removed
        at once, as by BookKeeper's clients. A leftover of a lost reply ends with the session."""
        below = f"{path}/ID-"
        try:
            made: str = self._connection.call(
                what, lambda: self._client.create_async(below, b"", ephemeral=True, sequence=True)
            )
        except NoNodeError as error:
            raise _damaged(what, path) from error
        self._client.delete_async(made)
        return int(made.removeprefix(below))

    def skip_below(self, what: str, path: str, numbers: int) -> None:
        """``count_below`` so often, or more often if an answer is lost."""
        below = f"{path}/ID-"
        made = self._connection.gather(
            what, lambda: [self._client.create_async(below, b"", ephemeral=True, sequence=True) for _ in range(numbers)]
        )
        if any(isinstance(one, NoNodeError) for one in made):
            raise _damaged(what, path)
        for one in made:
            if isinstance(one, str):
                self._client.delete_async(one)

    def counted_below(self, what: str, path: str) -> int:
        """Count of numbers assigned to ``count_below`` and BookKeeper's clients. A node's ``cversion`` grows with each child
        made, and each removed; it is an i32 that overflows."""
        try:
            _, stat = self._connection.read(what, path, lambda: self._client.get_async(path))
        except NoNodeError as error:
            raise _damaged(what, path) from error
        return int(stat.cversion + stat.numChildren) % (1 << 32) // 2

    def children(self, what: str, path: str) -> list[str]:
        """All names below a node; none without the node."""
        try:
            found: list[str] = self._connection.read(what, path, lambda: self._client.get_children_async(path))
        except NoNodeError:
            return []
        return found

    def read_and_list(self, what: str, path: str) -> tuple[Versioned[bytes] | None, list[str]]:
        """``read`` and ``children`` in one round trip."""
        client = self._client
        _, value, names = self._connection.gather(
            what, lambda: [client.sync_async(path), client.get_async(path), client.get_children_async(path)]
        )
        return _versioned(value), [] if isinstance(names, NoNodeError) else names

    def children_of_each(self, what: str, paths: list[str]) -> list[list[str]]:
        """The names below many nodes, in groups. A group has a deadline, so it shrinks as its nodes have more names."""
        found: list[list[str]] = []
        size = _LISTINGS_FIRST
        while len(found) < len(paths):
            group = paths[len(found) : len(found) + size]
            outcomes = self._connection.gather(what, partial(self._list_each, group))
            for outcome in outcomes:
                if isinstance(outcome, Exception) and not isinstance(outcome, NoNodeError):
                    raise outcome
                found.append([] if isinstance(outcome, NoNodeError) else outcome)
            names = sum(map(len, found[-len(group) :]))
            size = max(1, size // 2) if names > _NAMES_AT_ONCE else min(2 * size, _LISTINGS_AT_ONCE)
        return found

    def counts_of_each(self, what: str, paths: list[str]) -> list[int]:
        found: list[int] = []
        while group := paths[len(found) : len(found) + _LISTINGS_AT_ONCE]:
            found += [
                0 if stat is None else int(stat.numChildren)
                for stat in self._connection.gather(what, partial(self._stat_each, group))
            ]
        return found

    def _stat_each(self, paths: list[str]) -> list[Any]:
        return [self._client.exists_async(path) for path in paths]

    def _list_each(self, paths: list[str]) -> list[Any]:
        return [self._client.get_children_async(path) for path in paths]

    def children_marks(self, what: str, paths: list[str]) -> Marks:
        """Numbers that change with the names below each of ``paths``; cheaper to read than the names."""
        outcomes = self._connection.gather(
            what, lambda: [self._client.sync_async(paths[0]), *(self._client.exists_async(path) for path in paths)]
        )
        return tuple(0 if stat is None else stat.pzxid for stat in outcomes[1:])

    def children_together(self, what: str, paths: list[str]) -> tuple[list[list[str]], Marks]:
        """The names below each of ``paths`` at one moment, and their marks. For a few existing nodes."""
        while True:
            outcomes = self._connection.gather(
                what,
                lambda: [
                    self._client.sync_async(paths[0]),
                    *(self._client.get_children_async(path, include_data=True) for path in paths),
                    *(self._client.exists_async(path) for path in paths),
                ],
            )
            listings, stats = outcomes[1 : 1 + len(paths)], outcomes[1 + len(paths) :]
            for path, outcome in zip(paths, listings, strict=True):
                if isinstance(outcome, Exception):
                    raise _damaged(what, path) from outcome
            # No listed node changed between the first listing and the last stat, so all listings are of one moment.
            if all(
                stat is not None and stat.pzxid == listed[1].pzxid for listed, stat in zip(listings, stats, strict=True)
            ):
                return [listed[0] for listed in listings], tuple(listed[1].pzxid for listed in listings)

    def read_each(self, what: str, paths: list[str]) -> list[bytes | None]:
        """The value at each path; None where there is none."""
        return [None if node is None else node.value for node in self.read_versions(what, paths)]

    def read_versions(self, what: str, paths: list[str]) -> list[Versioned[bytes] | None]:
        """Value and version at each path, as new as any earlier confirmed write."""
        if not paths:
            return []
        _, *found = self._connection.gather(
            what, lambda: [self._client.sync_async(paths[0]), *read_many(self._client, paths)]
        )
        outcomes = list(chain.from_iterable(found))
        # An unreadable node: a request of its own raises the usual error.
        if any(isinstance(one, Exception) and not isinstance(one, NoNodeError) for one in outcomes):
            _, *outcomes = self._connection.gather(
                what, lambda: [self._client.sync_async(paths[0]), *map(self._client.get_async, paths)]
            )
        return [*map(_versioned, outcomes)]

    def watch_children(self, what: str, paths: list[str], event: Callable[[object], None]) -> None:
        """Call ``event``, in kazoo's thread, when the names below one of these nodes change or the connection is lost."""
        outcomes = self._connection.gather(
            what, lambda: [self._client.get_children_async(path, watch=event) for path in paths]
        )
        for path, outcome in zip(paths, outcomes, strict=True):
            if isinstance(outcome, NoNodeError):
                raise _damaged(what, path) from outcome

    def watch_value(self, what: str, path: str, changed: Once) -> None:
        """Call ``changed`` at the next change or deletion; at once if there is no such node."""
        try:
            self._connection.call(what, lambda: self._client.get_async(path, watch=changed))
        except NoNodeError:
            changed()

    def watch_existence(self, what: str, path: str, changed: Once) -> Callable[[], None]:
        """Call ``changed`` when the node is made, changed or deleted. Returns a function that ends the watch."""
        watchers = self._watchers.setdefault(path, _Watchers(path, self._watchers))
        end = watchers.add(changed)
        self._connection.call(what, lambda: self._client.exists_async(path, watch=watchers))
        return end


class _Watchers:
    """The watchers of one node in this session. kazoo and ZooKeeper know this object alone, so ended watches leave nothing there
    but one watch for each node, until its next change.

    A watcher added while an earlier change is reported may be called for that change, before its own watch is set."""

    def __init__(self, path: str, known: dict[str, _Watchers]) -> None:
        self._path, self._known = path, known
        self._all: dict[Once, None] = {}

    def add(self, changed: Once) -> Callable[[], None]:
        self._all[changed] = None
        return partial(self._all.pop, changed, None)

    def __call__(self, *_: object) -> None:
        if self._known.get(self._path) is self:
            del self._known[self._path]
        while self._all:
            self._all.popitem()[0]()


def _versioned(outcome: Any) -> Versioned[bytes] | None:
    return None if isinstance(outcome, NoNodeError) else Versioned(outcome[0], outcome[1].version)


def gone(error: Exception) -> None:
    """Settle a deletion whose answer was lost. Raises ``error`` unless the node is gone."""
    if not isinstance(error, NoNodeError):
        raise error


def unknown(what: str) -> MetadataStoreError:
    """The error for a change whose answer was lost, and which another may have followed."""
    return MetadataStoreError(
        f"{what}: the answer was lost, and the record was changed again since; whether this change was one of "
        "those before is unknown: read the record"
    )


def _damaged(what: str, path: str) -> MetadataStoreError:
    return MetadataStoreError(f"{what}: {path} is gone from ZooKeeper; restore its data, or begin another chroot")

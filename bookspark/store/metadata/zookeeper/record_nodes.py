"""The nodes of small records, whose versions never come again: also not when a record is deleted and made anew under its name.

Law: ZooKeeper counts the versions of a node from 0 again when it is made anew, so a compare-and-set of its version alone could
go over another record of that name. Each deletion of a record therefore changes a *guard* in the same transaction, and each
compare-and-set checks in its own that the guard is what it was before the record was read. The version that the store tells is
both: the guard's and the node's. A record that is refused may be refused because another one was deleted that has the same guard;
whoever is refused reads again, as after any other change.

A kind of records has GUARDS guards, ``/bookspark/deletions/<kind>-<hex digit>``, of which the name chooses one. A guard that is
not there is at version 0: it is made before it is first used, and never removed. It is asked for together with the record, so a
read and a change are a round trip each, as without it.

A deletion by an earlier version of Bookspark changes no guard.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from bookspark.store.metadata.records.refusals import sized, version_changed
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.zookeeper.connection import Connection
from bookspark.store.metadata.zookeeper.layout import Layout
from bookspark.store.metadata.zookeeper.nodes import Nodes, gone, unknown

GUARDS = 16
_RECORDS_AT_ONCE = 500
_VERSIONS = 1 << 31
"""So many versions a node can have."""


class RecordNodes:
    """The records of one cluster, as ``MetadataStore`` has them."""

    def __init__(self, connection: Connection, nodes: Nodes, layout: Layout) -> None:
        self._connection, self._client, self._nodes, self._layout = connection, connection.client, nodes, layout
        self._there: set[str] = set()
        """Guards that are known to be there."""

    def read(self, kind: str, name: str) -> Versioned[bytes] | None:
        """Value and version, as new as any write that was answered before; None if there is no such record."""
        return self._read(f"reading {kind} record {name!r}", kind, [name])[0]

    def read_each(self, kind: str, names: Iterable[str]) -> Iterator[Versioned[bytes] | None]:
        """The same for each of many names, many at a time."""
        rest = iter(names)
        while group := list(islice(rest, _RECORDS_AT_ONCE)):
            yield from self._read(f"reading {kind} records", kind, group)

    def write(self, kind: str, name: str, value: bytes, version: int | None) -> int:
        """Create (version None) or compare-and-set; returns the new version. Raises MetadataVersionError."""
        what = f"{kind} record {name!r}"
        sized(value, what)
        try:
            if version is None:
                return self._create(f"creating {what}", kind, name, value)
            self._change(f"changing {what}", kind, name, value, version)
        except (NodeExistsError, NoNodeError, BadVersionError):
            raise version_changed(what, version) from None
        return version + 1

    def delete(self, kind: str, name: str, version: int | None = None) -> None:
        """At any version if ``version`` is None. Raises MetadataVersionError. An absent record is no error."""
        what = f"{kind} record {name!r}"
        path, guard = self._layout.record(kind, name), self._made(what, self._guard(kind, name))
        guarded, own = (-1, -1) if version is None else divmod(version, _VERSIONS)

        def build(transaction: Any) -> None:
            transaction.delete(path, own)
            transaction.set_data(guard, b"", guarded)

        try:
            self._connection.commit(f"deleting {what}", build, gone)
        except NoNodeError:
            pass
        except BadVersionError:
            raise version_changed(what, version) from None

    # -- inside

    def _read(self, what: str, kind: str, names: Sequence[str]) -> list[Versioned[bytes] | None]:
        guard_of = {name: self._guard(kind, name) for name in names}
        guards, client = sorted(set(guard_of.values())), self._client
        paths = [self._layout.record(kind, name) for name in names]
        _, *outcomes = self._connection.gather(
            what,
            lambda: [
                client.sync_async(paths[0]),
                # Before the records: what is deleted after this is noticed.
                *(client.exists_async(guard) for guard in guards),
                *(client.get_async(path) for path in paths),
            ],
        )
        versions = {guard: self._version(guard, stat) for guard, stat in zip(guards, outcomes, strict=False)}
        return [
            None if isinstance(one, NoNodeError) else Versioned(one[0], versions[guard_of[name]] + one[1].version)
            for name, one in zip(names, outcomes[len(guards) :], strict=True)
        ]

    def _create(self, what: str, kind: str, name: str, value: bytes) -> int:
        path, guard, stats = self._layout.record(kind, name), self._guard(kind, name), list[Any]()
        # It is answered before the node is made, or known to be there.
        self._nodes.create(what, path, value, before=lambda: stats.append(self._client.exists_async(guard)))
        return self._version(guard, stats[-1].get(timeout=0))

    def _change(self, what: str, kind: str, name: str, value: bytes, version: int) -> None:
        path, guard = self._layout.record(kind, name), self._made(what, self._guard(kind, name))
        guarded, own = divmod(version, _VERSIONS)

        def build(transaction: Any) -> None:
            transaction.set_data(path, value, own)
            transaction.check(guard, guarded)

        def settle(error: Exception) -> None:
            found = self.read(kind, name)
            if found is not None and found.version % _VERSIONS > own + 1:
                raise unknown(what)
            if found is None or (found.value, found.version % _VERSIONS) != (value, own + 1):
                raise error

        self._connection.commit(what, build, settle)

    def _guard(self, kind: str, name: str) -> str:
        return f"{self._layout.deletions}/{kind}-{zlib.crc32(name.encode()) % GUARDS:x}"

    def _version(self, guard: str, stat: Any) -> int:
        """That of a node whose own is 0."""
        if stat is None:
            return 0
        self._there.add(guard)
        return int(stat.version) * _VERSIONS

    def _made(self, what: str, guard: str) -> str:
        if guard not in self._there:
            with suppress(NodeExistsError):
                self._nodes.create(what, guard, b"")
            self._there.add(guard)
        return guard

"""The twin in memory of ``ZooKeeperTree``: documents of the world that the memory stores of one cluster share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

from bookspark.store.metadata.memory.world import Session, World
from bookspark.store.metadata.notifier import Notifier, Once
from bookspark.store.metadata.records.refusals import sized
from bookspark.store.metadata.records.versioned import Versioned

_KIND = "tree"


class MemoryTree:
    """A ``Tree`` of the session ``owner``; ``opened`` gives its world, locked."""

    def __init__(self, opened: Callable[[], AbstractContextManager[World]], notifier: Notifier, owner: Session) -> None:
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
        """There are no nodes without a document here."""

    def children(self, path: str) -> list[str]:
        with self._opened() as world:
            below = [name.removeprefix(f"{path}/") for name in world.names(_KIND) if name.startswith(f"{path}/")]
        return sorted({name.partition("/")[0] for name in below})

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        return [self.children(path) for path in paths]

    def watch(self, path: str, changed: Callable[[], None]) -> None:
        with self._opened() as world:
            world.watches.setdefault((_KIND, path), []).append(Once(self._notifier, changed))

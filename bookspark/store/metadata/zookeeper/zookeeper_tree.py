"""The documents of ``documents.tree`` as nodes of ZooKeeper."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from bookspark.store.metadata.notifier import Notifier, Once
from bookspark.store.metadata.records.refusals import sized
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.zookeeper.nodes import Nodes


class ZooKeeperTree:
    """A ``Tree`` below ``root``, a path of ZooKeeper."""

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

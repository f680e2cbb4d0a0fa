"""Tree: small documents at paths of one session, the basis of tasks and auditors.

Law: a document is changed by compare-and-set only. An ephemeral document ends with its session. A watch is called once, from
the store's own thread: at the next change, or when the session is lost. A refusal is a return value; MetadataStoreError means
that the store could not be reached. ``zookeeper.zookeeper_store`` and ``memory.memory_store`` implement it, under one
behaviour suite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol

from bookspark.store.metadata.records.versioned import Versioned, compare_and_set


class Tree(Protocol):
    """Paths are relative: ``a/b/c``."""

    def read(self, path: str) -> Versioned[bytes] | None:
        """The document at ``path``; None if there is none."""

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]:
        """The value at each path; None where there is none."""

    def create(self, path: str, value: bytes, ephemeral: bool = False) -> bool:
        """Make a document. False if the path has one. The value of an ephemeral document must be unique to its maker."""

    def create_numbered(self, path: str, value: bytes) -> str:
        """Make an ephemeral document whose path is ``path`` and a number of ten digits, higher than any earlier one below the
        same parent; returns its path. A lost answer may leave a document."""

    def create_and_read(
        self, path: str, value: bytes, paths: Sequence[str]
    ) -> tuple[bool, list[Versioned[bytes] | None]]:
        """Make an ephemeral document as ``create`` does, then read the documents at ``paths``, in one round trip."""

    def create_each(self, documents: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Make many at once. False where a document may exist already: ``create`` gives a certain answer."""

    def write(self, path: str, value: bytes, version: int) -> bool:
        """Compare-and-set. False if the document is at another version or gone."""

    def touch(self, path: str) -> None:
        """Empty the document, or make it, so that its watchers are called."""

    def delete(self, path: str, version: int | None = None) -> bool:
        """Delete a document. False if it is at another version. An absent document counts as deleted."""

    def forget_empty(self, *paths: str) -> None:
        """Remove the empty nodes of ``paths``, each above the one before it, later and without a wait."""

    def children(self, path: str) -> list[str]:
        """All names below a path."""

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]:
        """All names below each of the paths."""

    def watch(self, path: str, changed: Callable[[], None]) -> None:
        """Call ``changed`` once, when the document is made, changed or deleted."""


def publish(tree: Tree, path: str, document: bytes) -> None:
    """Keep this document at ``path`` while the session lives. Only one session may write that path. Raises MetadataStoreError."""
    compare_and_set(path, partial(tree.read, path), lambda _: document, partial(put, tree, path, ephemeral=True))


def put(tree: Tree, path: str, document: bytes, version: int | None, ephemeral: bool = False) -> bool:
    """Create the document (version None), or write it by compare-and-set. False if it changed since."""
    if version is None:
        return tree.create(path, document, ephemeral=ephemeral)
    return tree.write(path, document, version)

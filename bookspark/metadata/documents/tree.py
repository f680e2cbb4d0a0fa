"""Small documents at paths of one session: what underreplication and the auditor need of a metadata store.

Law: a document is changed by compare-and-set only; an ephemeral one is gone when its session is; a watch is told once, of the
next change or of the loss of the session, from the store's own thread. Refusals are answers here, not errors; MetadataStoreError
is for a store that can't be reached. ``memory_tree.py`` is the twin in memory, and one behaviour suite runs over both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bookspark.errors import MetadataStoreError
from bookspark.metadata.records.versioned import Versioned

_ATTEMPTS = 20


class Tree(Protocol):
    """Paths are relative: ``a/b/c``."""

    def read(self, path: str) -> Versioned[bytes] | None: ...

    def read_each(self, paths: Sequence[str]) -> list[bytes | None]: ...

    def create(self, path: str, value: bytes, ephemeral: bool = False) -> bool:
        """False if it is there already. A value of an ephemeral document has to be nobody else's."""

    def create_each(self, documents: Sequence[tuple[str, bytes]]) -> list[bool]:
        """Many at once; False for each of which ``create`` has to tell."""

    def write(self, path: str, value: bytes, version: int) -> bool:
        """Compare-and-set; False if it is at another version, or gone."""

    def touch(self, path: str) -> None:
        """Change it, or make it, so that those who watch it are told."""

    def delete(self, path: str, version: int | None = None) -> bool:
        """False if it is at another version; what is not there is deleted."""

    def forget_empty(self, *paths: str) -> None:
        """Remove those of ``paths`` that have nothing below them, some time."""

    def children(self, path: str) -> list[str]:
        """The names below a path, whole."""

    def children_of_each(self, paths: Sequence[str]) -> list[list[str]]: ...

    def watch(self, path: str, changed: Callable[[], None]) -> None:
        """Call ``changed`` once, when the document is made, changed or deleted."""


def publish(tree: Tree, path: str, document: bytes) -> None:
    """Have this document at ``path`` for as long as the session lives. For one that nobody else writes."""
    for _ in range(_ATTEMPTS):
        found = tree.read(path)
        if tree.create(path, document, ephemeral=True) if found is None else tree.write(path, document, found.version):
            return
    raise contended(path)


def contended(path: str) -> MetadataStoreError:
    return MetadataStoreError(f"{path} is changed faster than it can be read; try again")

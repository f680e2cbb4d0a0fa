"""The lock of the process that applies a change of the cluster.

Law: as every lock (``documents.locks``), it only saves work. A change's record is written by compare-and-set, which stops a
holder that lost the lock unnoticed.
"""

from __future__ import annotations

from bookspark.store.metadata.documents.locks import Lock, give_back, holder_of, new_token, take_lock
from bookspark.store.metadata.documents.tree import Tree

_PATH = "changelock"


class ChangeLock:
    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._token = new_token()

    def take(self, name: str) -> Lock | None:
        """Hold the lock under this name until ``give_back`` or the end of the session; None if another process holds it."""
        return take_lock(self._tree, _PATH, name, self._token)

    def give_back(self, lock: Lock) -> None:
        give_back(self._tree, lock)

    def holder(self) -> str | None:
        """The name of the process that applies a change; None if there is none."""
        found = self._tree.read(_PATH)
        return holder_of(None if found is None else found.value)

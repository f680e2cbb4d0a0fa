"""Things distributed among members, each held by one member at a time.

Law: membership and held things last as long as the member's session. As with every lock (``documents.locks``), work with a
held thing must be right without the lock.

Documents, all of them ephemeral: ``<path>/members/<name>``, ``<path>/held/<thing>``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bookspark.store.metadata.documents.locks import give_back, holder_of, new_lock, new_token, take_lock
from bookspark.store.metadata.documents.tree import Tree, publish


class Sharing:
    """One member, from ``join`` to ``leave``. For one thread. Each method may raise MetadataStoreError."""

    def __init__(self, tree: Tree, path: str, name: str) -> None:
        self._tree, self._name = tree, name
        self._path, self._members, self._held = path, f"{path}/members", f"{path}/held"
        self._token = new_token()

    def join(self) -> list[str]:
        """Become a member, again if the session was lost. Returns the names of all members, ascending, this one's included: if
        its session ends during the call, the next call makes it a member again."""
        members = self._tree.children(self._members)
        if self._name not in members:
            publish(
                self._tree, f"{self._members}/{self._name}", new_lock(self._members, self._name, self._token).document
            )
            members = self._tree.children(self._members)
        return sorted({*members, self._name})

    def holders(self) -> dict[str, str]:
        things = self._tree.children(self._held)
        documents = self._tree.read_each([f"{self._held}/{thing}" for thing in things])
        found = zip(things, map(holder_of, documents), strict=True)
        return {thing: holder for thing, holder in found if holder is not None}

    def take(self, things: Iterable[str]) -> set[str]:
        """Take each free thing of ``things``; returns the things now held."""
        return {thing for thing in things if take_lock(self._tree, f"{self._held}/{thing}", self._name, self._token)}

    def give_back(self, things: Iterable[str]) -> None:
        for thing in things:
            give_back(self._tree, new_lock(f"{self._held}/{thing}", self._name, self._token))

    def leave(self, things: Collection[str]) -> None:
        self.give_back(things)
        self._tree.delete(f"{self._members}/{self._name}")
        self._tree.forget_empty(self._held)
        self._tree.forget_empty(self._members, self._path)

"""The auditor's election together with BookKeeper's auditors.

Law: each candidate has a vote, an ephemeral node numbered by ZooKeeper. The lowest number is the auditor, of whichever
program, so only one auditor works at a time. A vote whose answer was lost is recognized by its document. Below
``/ledgers/underreplication``::

    auditorelection/V_0000000042    ephemeral: a vote, in the format of a lock

Source: BookKeeper's ``ZkLedgerAuditorManager``.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from bookspark.store.metadata.documents.locks import Lock, holder_of, new_lock
from bookspark.store.metadata.documents.tree import Tree
from bookspark.store.metadata.records.bookkeeper_texts import is_foreign

ELECTION = "auditorelection"
_VOTE = re.compile(r"V_(\d+)")


class Votes:
    """The votes as one candidate sees them. ``token`` identifies its own."""

    def __init__(self, tree: Tree, token: str) -> None:
        self._tree = tree
        self._token = token
        self._watched = ""

    def elect(self, name: str, changed: Callable[[], None]) -> Lock | None:
        """Vote, unless this candidate has a vote; returns its lock if it has the lowest number. Otherwise ``changed`` is
        called when the preceding vote is gone."""
        document = self._document(name)
        votes = self._all()
        if document not in votes.values():
            self._tree.create_numbered(f"{ELECTION}/V_", document)
            votes = self._all()
        before = ""
        for path, found in votes.items():
            if found == document:
                break
            before = path
        else:
            return None
        if not before:
            return Lock(path, document)
        if before != self._watched:
            self._tree.watch(before, changed)
            self._watched = before
        return None

    def withdraw(self, lock: Lock) -> None:
        for path, found in self._all().items():
            if found == lock.document:
                self._tree.delete(path)

    def auditor(self) -> str | None:
        return holder_of(next(iter(self._all().values()), None))

    def foreign(self) -> list[str]:
        return [holder_of(document) or "" for document in self._all().values() if is_foreign(document)]

    def _all(self) -> dict[str, bytes]:
        """The votes by their paths, the lowest number first."""
        numbers = {name: int(found[1]) for name in self._tree.children(ELECTION) if (found := _VOTE.fullmatch(name))}
        paths = [f"{ELECTION}/{name}" for name in sorted(numbers, key=numbers.__getitem__)]
        documents = zip(paths, self._tree.read_each(paths), strict=True)
        return {path: document for path, document in documents if document is not None}

    def _document(self, name: str) -> bytes:
        return new_lock(ELECTION, name, self._token, bookkeepers=True).document

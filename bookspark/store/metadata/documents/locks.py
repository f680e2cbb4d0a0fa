"""Locks that end with their holder's session, and the wait for a change.

Law: a lock only saves work. A holder may lose its session, and another client may take the lock, before the first holder
notices. So work under a lock must be right without it; ``held`` says when to stop. A lock visible to BookKeeper's workers is
in their format (``records.bookkeeper_texts``).

Source: ``ZkLedgerUnderreplicationManager`` (urLock). The recipe has no queue, because few compete for one lock.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import msgspec

from bookspark.errors import UnreadableRecordError
from bookspark.store.metadata.documents.tree import Tree
from bookspark.store.metadata.records.bookkeeper_texts import is_text, lock_holder, lock_text
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct

_CHANGE = "changelock"


class Lock(NamedTuple):
    """A lock: its path, and a document unique to its holder."""

    path: str
    document: bytes


class _LockDocument(msgspec.Struct, frozen=True):
    holder: str
    token: str


def new_token() -> str:
    """A token for a holder and all of its locks."""
    return uuid.uuid4().hex


def new_lock(path: str, holder: str, token: str, bookkeepers: bool = False) -> Lock:
    """The lock with this holder's document, held or not. ``bookkeepers``: in BookKeeper's format."""
    own = proven_struct(_LockDocument(holder, token), f"lock {path}")
    return Lock(path, lock_text(holder, own) if bookkeepers else own)


def take_lock(tree: Tree, path: str, holder: str, token: str) -> Lock | None:
    """Take the lock for the life of the session. None if another client holds it.

    ``holder`` is the name visible to others. A lock already held by this ``token`` is taken again: its release failed, or the
    answer to an earlier call was lost.
    """
    lock = new_lock(path, holder, token)
    return lock if tree.create(path, lock.document, ephemeral=True) or held(tree, lock) else None


def held(tree: Tree, lock: Lock) -> bool:
    found = tree.read(lock.path)
    return found is not None and found.value == lock.document


def give_back(tree: Tree, lock: Lock) -> None:
    """Release the lock, unless another client holds it by now."""
    found = tree.read(lock.path)
    if found is not None and found.value == lock.document:
        tree.delete(lock.path, found.version)


def holder_of(document: bytes | None) -> str | None:
    """The holder's name in this document; None without a document. An undecodable lock counts as held."""
    if document is None:
        return None
    if is_text(document):
        try:
            return lock_holder(document)
        except ValueError as error:
            return f"somebody ({error})"
    try:
        return read_struct(document, _LockDocument, "lock").holder
    except UnreadableRecordError as error:
        return f"somebody ({error})"


class ChangeLock:
    """The lock of the process that applies a change of the cluster. A change's record is written by compare-and-set, which stops
    a holder that lost the lock unnoticed."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._token = new_token()

    def take(self, name: str) -> Lock | None:
        """Hold the lock under this name until ``give_back`` or the end of the session; None if another process holds it."""
        return take_lock(self._tree, _CHANGE, name, self._token)

    def give_back(self, lock: Lock) -> None:
        give_back(self._tree, lock)

    def holder(self) -> str | None:
        """The name of the process that applies a change; None if there is none."""
        found = self._tree.read(_CHANGE)
        return holder_of(None if found is None else found.value)


class Changes:
    """Waits for changes of the documents at ``paths``. A change between two waits ends the second wait at once. So does the
    very first wait: look first, then wait."""

    def __init__(self, tree: Tree, paths: Sequence[str]) -> None:
        self._tree = tree
        self._unwatched = set(paths)
        self._woken = False
        self._changed = threading.Condition()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait for a change, or for ``wake`` from another thread, and return True; False after ``timeout_seconds``."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._unwatched or self._woken, timeout_seconds):
                return False
            due, self._unwatched, self._woken = self._unwatched, set(), False
        try:
            while due:
                path = next(iter(due))
                self._tree.watch(path, partial(self._tell, path))
                due.discard(path)
        finally:
            if due:
                with self._changed:
                    self._unwatched |= due
        return True

    def wake(self) -> None:
        """End the wait of another thread, or its next wait."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _tell(self, path: str) -> None:
        with self._changed:
            self._unwatched.add(path)
            self._changed.notify_all()


learn(_LockDocument)

"""Locks that end with their holder's session, and the wait for a change.

Law: a lock saves work, and nothing relies on it. A holder may have lost its session, and another may hold the lock, before the
first one hears of it. So work under a lock must be right without it; ``held`` tells when it is time to stop. A lock that
BookKeeper's workers are to see is in their format (``records.bookkeeper_texts``).

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


class Lock(NamedTuple):
    """A lock that was taken: its path, and a document that no other holder writes."""

    path: str
    document: bytes


class _LockDocument(msgspec.Struct, frozen=True):
    holder: str
    token: str


def new_token() -> str:
    """A token for one holder and all of its locks."""
    return uuid.uuid4().hex


def new_lock(path: str, holder: str, token: str, bookkeepers: bool = False) -> Lock:
    """The lock as this holder has it, if it has it; ``bookkeepers``: in BookKeeper's format."""
    own = proven_struct(_LockDocument(holder, token), f"lock {path}")
    return Lock(path, lock_text(holder, own) if bookkeepers else own)


def take_lock(tree: Tree, path: str, holder: str, token: str) -> Lock | None:
    """Take the lock for as long as the session lives. None if another holds it.

    ``holder`` is the name that others see. A lock that this ``token`` holds already is taken again: its release failed, or the
    answer to an earlier call was lost."""
    lock = new_lock(path, holder, token)
    return lock if tree.create(path, lock.document, ephemeral=True) or held(tree, lock) else None


def held(tree: Tree, lock: Lock) -> bool:
    """Does this holder still have the lock?"""
    found = tree.read(lock.path)
    return found is not None and found.value == lock.document


def give_back(tree: Tree, lock: Lock) -> None:
    """Release the lock, unless another holds it by now."""
    found = tree.read(lock.path)
    if found is not None and found.value == lock.document:
        tree.delete(lock.path, found.version)


def holder_of(document: bytes | None) -> str | None:
    """The name of the holder that this document tells; None without a document. A lock that can't be decoded is held too."""
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


class Changes:
    """Waits for changes of the documents at ``paths``. A change between two waits ends the second wait at once. The very first
    wait ends at once too, so callers look first and then wait."""

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
        """End the wait of another thread, or its next one."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def _tell(self, path: str) -> None:
        with self._changed:
            self._unwatched.add(path)
            self._changed.notify_all()


learn(_LockDocument)

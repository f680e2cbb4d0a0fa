"""The world in memory: what the stores of one cluster share.

Law: a thread that reads or changes the world holds its ``lock``.
"""

from __future__ import annotations

import threading
import uuid
from collections import Counter
from typing import Protocol

from bookspark.store.metadata.notifier import Once
from bookspark.store.metadata.records.versioned import Versioned

Key = tuple[str, str]
"""The key of a document: its kind and its name."""
RECORD = "record:"
"""How the kinds begin of documents whose versions never come again when they are made anew."""


class Session(Protocol):
    """One store of the cluster, as the others know it."""

    def post_bookies_changed(self) -> None:
        """Have the session's watchers of bookies called."""


class World:
    """What the stores of one cluster share: versioned documents under (kind, name), and who watches them."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.instance_id = str(uuid.uuid4())
        self.ledger_ids = 0
        self.highest_given = -1
        self.numbers = 0
        """The number of the last document that was made with one."""
        self.documents: dict[Key, Versioned[bytes]] = {}
        self.deletions: Counter[Key] = Counter()
        """How many documents of a key were deleted, where versions never come again."""
        self.watches: dict[Key, list[Once]] = {}
        self.registrations: dict[str, tuple[Session, bytes]] = {}
        self.ephemerals: dict[Key, Session] = {}
        self.sessions: list[Session] = []

    def put(self, key: Key, document: bytes, version: int | None) -> int | None:
        """Create (version None) or compare-and-set; None if that fails."""
        found = self.documents.get(key)
        if (None if found is None else found.version) != version:
            return None
        new = self.deletions[key] << 31 if version is None else version + 1
        self.documents[key] = Versioned(document, new)
        self._tell(key)
        return new

    def remove(self, key: Key) -> None:
        del self.documents[key]
        if key[0].startswith(RECORD):
            self.deletions[key] += 1
        self.ephemerals.pop(key, None)
        self._tell(key)

    def names(self, kind: str) -> list[str]:
        return sorted(name for k, name in self.documents if k == kind)

    def bookies_changed(self) -> None:
        for session in self.sessions:
            session.post_bookies_changed()

    def _tell(self, key: Key) -> None:
        for once in self.watches.pop(key, []):
            once()

"""Ledger ids: the counter that gives them out, and the note of the highest one that a user gave.

Law: the counter never goes back. A ZooKeeper that had counted further has lost what came after, mostly because somebody put back
an older copy of its data. Whoever sees that takes no id from it and registers nothing there, until he starts again. (ZooKeeper
itself keeps a client away from a server whose data are older than what the client saw, but not from an ensemble that has elected
a new leader since.) A process that starts afterwards knows nothing of it; what bookies hold tells them
(``protocol.bookie.lost_records``).

How clients of BookKeeper count is in ``Nodes.count_below``.
"""

from __future__ import annotations

import contextlib

from kazoo.exceptions import BadVersionError, NodeExistsError

from bookspark.errors import MetadataStoreError
from bookspark.store.metadata.zookeeper.layout import Layout, LedgerManager
from bookspark.store.metadata.zookeeper.nodes import Nodes

_ATTEMPTS = 20
_AT_ONCE = 500


class LedgerIds:
    """The ids of one cluster's ledgers."""

    def __init__(self, nodes: Nodes, layout: Layout) -> None:
        self._nodes = nodes
        self._layout = layout
        self._bookkeepers = layout.manager is LedgerManager.BOOKKEEPER
        self._seen = -1
        """The highest id that was given out, as far as this process saw."""
        self._why = ""
        """That the counter was lower later, for people."""

    def new(self) -> int:
        """As ``MetadataStore.new_ledger_id``."""
        what, path = "getting a ledger id", self._layout.idgen
        before = self._seen
        count = self._nodes.count_below(what, path) + 1 if self._bookkeepers else self._nodes.count(what, path)
        if count < 1:
            raise MetadataStoreError(
                f"all 2^31 ledger ids of {self._layout.ledgers} are given out; begin another chroot"
            )
        self._went_back(count - 1, before + 1)
        self._seen = max(self._seen, count - 1)
        return count - 1

    def last(self) -> int:
        """As ``MetadataStore.last_ledger_id``."""
        last = self._last()
        self._seen = max(self._seen, last)
        return last

    def check(self) -> None:
        """Raises MetadataStoreError if the counter went back while it was looked at."""
        self._went_back(self._last(), self._seen)

    def _went_back(self, now: int, least: int) -> None:
        if now < least and not self._why:
            self._why = (
                f"{self._layout.idgen} is at ledger id {now} and was at {self._seen} before, so an older copy of ZooKeeper's "
                "data was put back; start this process again when that was meant (docs/guides/backup.md)"
            )
        if self._why:
            raise MetadataStoreError(self._why)

    def note_given(self, ledger_id: int) -> None:
        """As ``MetadataStore.note_given_id``."""
        what, path = f"noting the given id {ledger_id}", self._layout.idgiven
        value = b"%d" % self._layout.check_new(ledger_id)
        for _ in range(_ATTEMPTS):
            found = self._nodes.read(what, path)
            if found is not None and _noted_id(found.value, path) >= ledger_id:
                return
            with contextlib.suppress(NodeExistsError, BadVersionError):
                if found is None:
                    self._nodes.create(what, path, value)
                else:
                    self._nodes.write(what, path, value, found.version)
                return
        raise MetadataStoreError(f"{what}: others note theirs faster than it can be read; try again")

    def highest(self) -> int:
        """As ``MetadataStore.highest_ledger_id``."""
        path = self._layout.idgiven
        given = self._nodes.read("reading the highest given id", path)
        return max(self.last(), -1 if given is None else _noted_id(given.value, path))

    def skip_to(self, highest: int) -> None:
        """As ``MetadataStore.skip_ledger_ids``."""
        what, path = f"skipping the ledger ids up to {highest}", self._layout.idgen
        skip = self._nodes.skip_below if self._bookkeepers else self._nodes.skip
        while (missing := highest - self.last()) > 0:
            skip(what, path, min(missing, _AT_ONCE))

    def _last(self) -> int:
        counted = self._nodes.counted_below if self._bookkeepers else self._nodes.counted
        return counted("reading the last ledger id", self._layout.idgen) - 1


def _noted_id(value: bytes, path: str) -> int:
    if not value.isdigit():
        raise MetadataStoreError(
            f"{path} holds {value!r}, not a ledger id; write the highest id that a user gave into it"
        )
    return int(value)

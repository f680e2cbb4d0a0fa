"""Watches on ledgers' metadata, for the handles that read them: one for each ledger and process, however many handles there are.

Law: a listener is told every state of the record that lasts for a while. If the ledger is gone, or the metadata store does not
answer, the listener is told once that the record is not watched any more. It may then listen again. The watch is set before the
record is read, so that no change is missed in between. A listener that comes while the watch is being set is told the record as
it is then. A ledger that was found closed is not watched any more. Handles need not be closed, so listeners are held weakly.

A ledger whose handles are all gone is watched until its record changes, as in BookKeeper: kazoo can't take a watch back. So there
is one watch at most for each ledger that is not closed and was followed, whatever the number of its handles.

Source: BookKeeper's ``LedgerManager.registerLedgerMetadataListener``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from weakref import WeakMethod

from bookspark.errors import BookKeeperError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.metadata.store import MetadataStore

log = logging.getLogger(__name__)

Listener = Callable[[Versioned[LedgerMetadata] | None], None]


class LedgerWatches:
    """The watches of one process, in its session with ``store``."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._lock = threading.RLock()
        self._listeners: dict[int, list[WeakMethod[Listener]]] = {}

    def listen(self, ledger_id: int, listener: Listener) -> None:
        """Call ``listener``, a bound method, at each change from now on, from a thread of the store's.

        Raises MetadataStoreError, NoSuchLedgerError. Nobody listens to this ledger then; other listeners are told.
        """
        with self._lock:
            standing = self._listeners.get(ledger_id)
            alive = [other for other in standing or () if other() not in (None, listener)]
            self._listeners[ledger_id] = [*alive, WeakMethod(listener)]
        if standing is None:
            try:
                self._watch(ledger_id)
                with self._lock:
                    others = [other for other in self._listeners.get(ledger_id, ()) if other() != listener]
                if others:
                    self._tell(others, self._store.read_ledger(ledger_id))
            except BaseException:
                # An interrupt, too, leaves nobody behind who believes that he is told of changes.
                self._tell(self._take_all(ledger_id), None)
                raise

    def _watch(self, ledger_id: int) -> None:
        self._store.watch_ledger(ledger_id, partial(self._changed, ledger_id))

    def _changed(self, ledger_id: int) -> None:
        with self._lock:
            alive = [listener for listener in self._listeners.pop(ledger_id, ()) if listener() is not None]
            if not alive:
                return
            self._listeners[ledger_id] = alive
        try:
            found = self._store.read_ledger(ledger_id)
            # A closed ledger may never change again, and its watch would stay for good.
            if not found.value.closed:
                self._watch(ledger_id)
                found = self._store.read_ledger(ledger_id)
        except BookKeeperError:
            self._tell(self._take_all(ledger_id), None)
            return
        # A closed ledger may still get other bookies. Readers look that up when an entry is missing.
        if found.value.closed:
            self._tell(self._take_all(ledger_id), found)
        else:
            self._tell(alive, found)

    def _take_all(self, ledger_id: int) -> list[WeakMethod[Listener]]:
        with self._lock:
            return self._listeners.pop(ledger_id, [])

    @staticmethod
    def _tell(listeners: list[WeakMethod[Listener]], found: Versioned[LedgerMetadata] | None) -> None:
        for reference in listeners:
            listener = reference()
            if listener is not None:
                try:
                    listener(found)
                except BaseException:
                    log.exception("%r failed", listener)

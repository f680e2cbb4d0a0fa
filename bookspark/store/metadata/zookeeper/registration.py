"""A bookie's registration: an ephemeral node that follows its bookie over the loss of sessions.

Law: from ``register`` to ``unregister`` the node exists whenever a session does, with what was registered last. It is watched,
and made again if somebody deletes or changes it. A bookie that changes between writable and read-only moves in one transaction,
so it always stands in exactly one of the two places.

Decision: the node of another session is replaced when a bookie registers and when its session is new, because it is then its own
from before. In between it is left alone: two processes under one id would take it from each other for ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Any

from bookspark.errors import MetadataStoreError
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.codec import encode_registration
from bookspark.store.metadata.zookeeper.connection import Connection, DefiniteError
from bookspark.store.metadata.zookeeper.layout import Layout

_ATTEMPTS = 20

log = logging.getLogger(__name__)


class Registrar:
    """The registrations of one store."""

    def __init__(
        self, connection: Connection, layout: Layout, check: Callable[[], None], changed: Callable[[object], None]
    ) -> None:
        """``check`` is called before a node is made, and raises MetadataStoreError if none may be. ``changed`` is called, in
        kazoo's thread, when a node that was made here was changed or deleted. It must not block; it has ``restore`` called."""
        self._connection = connection
        self._check = check
        self._changed = changed
        self._layout = layout
        self._wanted: dict[str, BookieRegistration] = {}
        self._lock = threading.Lock()

    def register(self, registration: BookieRegistration) -> None:
        """Make or replace a bookie's node. Raises MetadataStoreError."""
        with self._lock:
            self._publish(registration)
            self._wanted[registration.bookie_id] = registration

    def unregister(self, bookie_id: str) -> None:
        """Remove a bookie's node if this session made it. Raises MetadataStoreError."""
        with self._lock:
            self._wanted.pop(bookie_id, None)
            self._replace(f"unregistering {bookie_id}", bookie_id, None)

    def renew(self) -> None:
        """Make again the nodes that a lost session took. May block. Raises MetadataStoreError."""
        with self._lock:
            for registration in list(self._wanted.values()):
                self._publish(registration)

    def restore(self) -> None:
        """Make again the nodes that somebody deleted or changed. May block. Raises MetadataStoreError."""
        with self._lock:
            for registration in list(self._wanted.values()):
                self._publish(registration, from_others=False)

    def _publish(self, registration: BookieRegistration, *, from_others: bool = True) -> None:
        what = f"registering {registration.bookie_id}"
        self._check()
        self._replace(what, registration.bookie_id, registration, from_others=from_others)

    def _replace(
        self, what: str, bookie_id: str, registration: BookieRegistration | None, *, from_others: bool = False
    ) -> None:
        """Bring the two possible nodes of a bookie to the wanted state: look, change both in one transaction, and look again.
        ``from_others``: another session's node is replaced; otherwise it is left alone, and nothing is made beside it."""
        client = self._connection.client
        paths = [self._layout.bookie(bookie_id, read_only) for read_only in (False, True)]
        wanted = None if registration is None else paths[registration.read_only]
        document = b"" if registration is None else encode_registration(registration)
        last: Exception | None = None
        for _ in range(_ATTEMPTS):
            # The last look, which finds the wanted node, leaves the watch.
            outcomes = self._connection.gather(
                what,
                lambda: [client.get_async(path, watch=self._changed if path == wanted else None) for path in paths],
            )
            session_id = self._connection.session_id
            stale: list[tuple[str, int]] = []
            standing = wanted is None
            for path, outcome in zip(paths, outcomes, strict=True):
                if isinstance(outcome, DefiniteError):
                    continue
                value, stat = outcome
                ours = stat.ephemeralOwner == session_id
                if ours and path == wanted and value == document:
                    standing = True
                elif ours or from_others:
                    stale.append((path, stat.version))
                elif registration is not None:
                    log.warning("%s: another process is registered as it; see that the bookie runs only once", what)
                    return
            if standing and not stale:
                return

            def build(transaction: Any, stale: list[tuple[str, int]] = stale, missing: bool = not standing) -> None:
                for path, version in stale:
                    transaction.delete(path, version)
                if missing:
                    transaction.create(wanted, document, ephemeral=True)

            try:
                self._connection.commit(what, build)
            except DefiniteError as error:
                last = error
        raise MetadataStoreError(
            f"{what}: something keeps changing it ({type(last).__name__}); see that the bookie runs only once, and that "
            f"{self._layout.available} is there"
        )

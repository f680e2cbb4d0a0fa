"""A bookie's registration: an ephemeral node that follows its bookie over the loss of sessions.

Law: from ``register`` to ``unregister`` the node exists whenever a session does, with what was registered last. A bookie that
changes between writable and read-only moves in one transaction, so it always stands in exactly one of the two places.
"""

from __future__ import annotations

import threading
from typing import Any

from bookspark.errors import MetadataStoreError
from bookspark.metadata.records.bookie_registration import BookieRegistration
from bookspark.metadata.records.codec import encode_registration
from bookspark.metadata.zookeeper.connection import Connection, DefiniteError
from bookspark.metadata.zookeeper.layout import Layout

_ATTEMPTS = 20


class Registrar:
    """The registrations of one store."""

    def __init__(self, connection: Connection, layout: Layout) -> None:
        self._connection = connection
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

    def _publish(self, registration: BookieRegistration) -> None:
        self._replace(f"registering {registration.bookie_id}", registration.bookie_id, registration)

    def _replace(self, what: str, bookie_id: str, registration: BookieRegistration | None) -> None:
        """Bring the two possible nodes of a bookie to the wanted state: look, change both in one transaction, and try again if
        somebody else changed them in between. Another session's node is replaced; unregistering leaves it alone."""
        client = self._connection.client
        paths = [self._layout.bookie(bookie_id, read_only) for read_only in (False, True)]
        wanted = None if registration is None else paths[registration.read_only]
        document = b"" if registration is None else encode_registration(registration)
        last: Exception | None = None
        for _ in range(_ATTEMPTS):
            outcomes = self._connection.gather(what, lambda: [client.get_async(path) for path in paths])
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
                elif ours or registration is not None:
                    stale.append((path, stat.version))
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

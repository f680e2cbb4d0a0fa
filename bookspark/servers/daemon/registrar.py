"""A bookie's registration: writable while its disks have room, read-only while they have none.

Law: the registration follows the storage's last word. A thread writes each change to the metadata store, one at a time, and tries
again until the change is written or a newer one has come.

Source: BookKeeper's ``BookieStateManager``.
"""

from __future__ import annotations

import logging
import threading

import msgspec

from bookspark.errors import MetadataStoreError
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.store import MetadataStore

_RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


class Registrar:
    """Keeps one bookie registered. Call ``register`` once, and ``unregister`` at the end."""

    def __init__(self, store: MetadataStore, registration: BookieRegistration, storage: Storage) -> None:
        self._store = store
        self._registration = registration
        self._disks = storage.disks
        self._changed = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="registration", daemon=True)

    def register(self) -> None:
        """Register the bookie, and follow its storage from then on. Raises MetadataStoreError."""
        self._disks.read_only_changed = lambda read_only: self._changed.set()
        registered = self._publish()
        if registered != self._disks.read_only:
            self._changed.set()
        self._thread.start()

    def why_not_registered(self) -> str:
        """Ask the metadata store: "" if the bookie is registered as this process. Raises MetadataStoreError."""
        bookie_id = self._registration.bookie_id
        found = self._store.bookies().get(bookie_id)
        if found is None:
            return f"{bookie_id} is not registered"
        if found.incarnation != self._registration.incarnation:
            return f"another process is registered as {bookie_id}: process {found.pid} on {found.host}"
        return ""

    def unregister(self) -> None:
        """Remove the registration. If the metadata store does not answer, the end of the session removes it."""
        self._ended.set()
        self._changed.set()
        self._thread.join()
        try:
            self._store.unregister_bookie(self._registration.bookie_id)
        except MetadataStoreError as error:
            log.warning("the registration could not be removed; it ends with the session: %s", error)

    def _publish(self) -> bool:
        read_only = self._disks.read_only
        self._store.register_bookie(msgspec.structs.replace(self._registration, read_only=read_only))
        return read_only

    def _follow(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._ended.is_set():
                return
            try:
                self._publish()
            except MetadataStoreError as error:
                log.warning("the registration could not be updated, which is tried again: %s", error)
                self._ended.wait(_RETRY_SECONDS)
                self._changed.set()

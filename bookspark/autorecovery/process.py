"""An autorecovery process: an auditor, which works while it is elected, and a replication worker.

Law: the cluster depends on no single process of these. Any number of them may run, on any host. Each may be killed at any moment.

Source: ``AutoRecoveryMain`` of BookKeeper.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from bookspark.autorecovery.auditor import Auditor
from bookspark.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.autorecovery.worker import ReplicationWorker
from bookspark.client import BookKeeper


class Autorecovery:
    """An auditor and a replication worker that share one client. ``stop`` closes the client."""

    def __init__(self, bookkeeper: BookKeeper, config: AutorecoveryConfig) -> None:
        """Raises MetadataStoreError if the metadata store can't be reached."""
        self._bookkeeper = bookkeeper
        try:
            self._worker = ReplicationWorker(bookkeeper, config)
            self._auditor = Auditor(bookkeeper, config, self._worker.name)
        except BaseException:
            bookkeeper.close()
            raise

    @property
    def name(self) -> str:
        """What ``bookspark autorecovery status`` calls it."""
        return self._worker.name

    def start(self) -> None:
        """Start both threads; returns at once."""
        self._worker.start()
        self._auditor.start()

    def stop(self) -> None:
        """Release the locks of unfinished repairs and resign as auditor. Locks that can't be released end with the session."""
        self._auditor.stop()
        self._worker.stop()
        self._bookkeeper.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

"""An autorecovery process: an auditor, which works if it is elected, and a replication worker.

Law: nothing of the cluster depends on any one of them; as many run as there is bandwidth for, beside the bookies or anywhere
else, and each may be killed at any moment. Source: ``AutoRecoveryMain`` of BookKeeper.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from bookspark.autorecovery.auditor import Auditor
from bookspark.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.autorecovery.worker import ReplicationWorker
from bookspark.client import BookKeeper


class Autorecovery:
    """Both, on one client, which is closed with them: ``with Autorecovery(…): wait()``."""

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
        self._worker.start()
        self._auditor.start()

    def stop(self) -> None:
        """Give back what was begun; what can't be, goes with the session."""
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

"""A bookie in this process that takes the inputs of ``fuzzing`` in turn."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path

from bookspark.store.bookie.serving.server import BookieServer
from bookspark.store.bookie.storage import Storage
from tests.servers.bookkeeper.fuzzing import DoorTarget
from tests.store.bookie.fuzzing import Target
from tests.store.bookie.kit import config


class FuzzedBookie:
    """``take`` the inputs, then ``close``. ``reached`` counts the outcomes, on top of the given counts."""

    def __init__(
        self, certificate: str, reached: dict[str, int] | None = None, target: type[Target] | type[DoorTarget] = Target
    ) -> None:
        self._directory = tempfile.mkdtemp(prefix="fuzzed-bookie-")
        self._loop = asyncio.new_event_loop()
        settings = config(Path(self._directory), journal_write_data=False, scrub_interval_hours=0)
        self._storage = Storage(settings).open()

        async def start() -> Target | DoorTarget:
            server = BookieServer(settings, self._storage, "bookie-test", 77)
            self._storage.start(self._loop.call_soon_threadsafe, self._loop.call_soon)
            return target(server, certificate)

        self._target = self._loop.run_until_complete(start())
        self._target.reached.update(reached or {})

    @property
    def reached(self) -> dict[str, int]:
        return self._target.reached

    def take(self, data: bytes) -> None:
        """Raises if the bookie broke a rule of ``fuzzing``."""
        self._loop.run_until_complete(self._target.take(data))

    def close(self) -> None:
        self._target.close()
        self._storage.close()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()
        shutil.rmtree(self._directory)

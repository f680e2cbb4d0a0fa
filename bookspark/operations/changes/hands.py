"""Interface for restarts of bookie processes and replacements of disks, for any way to run bookies (Spark, systemd, Kubernetes).

Law: the applying process makes a request once, and a successor makes it again. Each request ends: seen done, or taken back. A
request taken back must not be carried out any more, because the cluster has changed.

Hands that carry requests out themselves do so one at a time for each bookie, and ``note`` each first. So after the end of a
request, by any process, none is being carried out for that bookie, and an older process can't begin: its note fails. People who
are asked don't note: a request on the screen of a process that stood still is withdrawn when it wakes.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from bookspark.errors import BookieError
from bookspark.protocol.changes.steps import ReplaceDisk, Restart, Stop

Request = Restart | ReplaceDisk | Stop


class Hands(Protocol):
    """Carries out requests to bookies. Raises BookieError for an impossible request."""

    def do(self, request: Request, note: Callable[[], None]) -> None:
        """Carry the request out or pass it on; it may be done after the return. ``note`` notes it in the change's record
        immediately before; it raises MetadataVersionError if another process applies the change by now."""

    def seen(self, request: Request) -> None:
        """The request was carried out. Returns once no process carries it out any more."""

    def take_back(self, request: Request, why: str) -> None:
        """The request must not be carried out any more. Returns once no process does."""


class AskOperator:
    """Asks the operator to carry requests out. Works for every kind of cluster."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def do(self, request: Request, note: Callable[[], None]) -> None:
        note()
        self._tell(f"do this now: {_words(request)}")

    def seen(self, request: Request) -> None:
        self._tell(f"done: {request}")

    def take_back(self, request: Request, why: str) -> None:
        self._tell(f"don't do this any more: {_words(request)} ({why})")


class LocalBookieLike(Protocol):
    """The bookie's methods that ``LocalHands`` use; ``bookspark.local.LocalBookie`` has them."""

    @property
    def bookie_id(self) -> str: ...
    @property
    def directories(self) -> tuple[str, ...]: ...
    @property
    def in_hand(self) -> threading.Lock: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class LocalHands:
    """Restarts the processes of a ``LocalCluster``."""

    def __init__(self, bookies: Iterable[LocalBookieLike]) -> None:
        self._bookies = {one.bookie_id: one for one in bookies}

    def do(self, request: Request, note: Callable[[], None]) -> None:
        bookie = self._bookies.get(request.bookie_id)
        if bookie is None:
            raise BookieError(f"{request.bookie_id} is none of this host's bookies: {_words(request)} where it is")
        if not bookie.in_hand.acquire(blocking=False):
            raise BookieError(f"another process carries out a request for {request.bookie_id}")
        try:
            note()
            bookie.stop()
            match request:
                case ReplaceDisk():
                    _empty(Path(request.directory))
                    bookie.start()
                case Restart():
                    bookie.start()
        finally:
            bookie.in_hand.release()

    def seen(self, request: Request) -> None:
        """Wait for the end of another process's request."""
        if (bookie := self._bookies.get(request.bookie_id)) is not None:
            with bookie.in_hand:
                pass

    def take_back(self, request: Request, why: str) -> None:
        """Wait for the end of another process's request; ``do`` has carried out this process's own."""
        self.seen(request)


def _empty(directory: Path) -> None:
    for path in directory.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _words(request: Request) -> str:
    if isinstance(request, ReplaceDisk):
        return (
            f"stop {request.bookie_id}, mount an empty disk at {request.directory}, run `bookspark cookie fix` with its "
            "directories, and start it"
        )
    return str(request)

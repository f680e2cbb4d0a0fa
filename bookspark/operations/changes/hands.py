"""Who restarts a bookie's process, and puts a disk in. Bookspark runs in many ways (a Spark job, ``systemd``, Kubernetes); each
has means of its own, and none of them is known here.

Law: a request is made once by one who applies a change, and again by one who goes on with it. Its end is told: it was seen to be
done, or it is taken back. One that is taken back must not be done any more: the cluster has changed since it was made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from bookspark.errors import BookieError
from bookspark.protocol.changes.steps import ReplaceDisk, Restart, Stop

Request = Restart | ReplaceDisk | Stop


class Hands(Protocol):
    """Raises BookieError for what it can't do."""

    def do(self, request: Request) -> None:
        """Do it, or have it done: it need not be done at the return."""

    def seen(self, request: Request) -> None:
        """It was done."""

    def take_back(self, request: Request, why: str) -> None:
        """It is not to be done now, if it was not done yet."""


class AskOperator:
    """Tells a person what is to be done, and leaves it to him. It works for every kind of cluster."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell

    def do(self, request: Request) -> None:
        self._tell(f"do this now: {_words(request)}")

    def seen(self, request: Request) -> None:
        self._tell(f"done: {request}")

    def take_back(self, request: Request, why: str) -> None:
        self._tell(f"don't do this any more: {_words(request)} ({why})")


class LocalBookieLike(Protocol):
    """What ``LocalHands`` need of a bookie; ``bookspark.local.LocalBookie`` has it."""

    @property
    def bookie_id(self) -> str: ...
    @property
    def directories(self) -> tuple[str, ...]: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...


class LocalHands:
    """Restarts the processes of a ``LocalCluster``."""

    def __init__(self, bookies: Iterable[LocalBookieLike]) -> None:
        self._bookies = {one.bookie_id: one for one in bookies}

    def do(self, request: Request) -> None:
        bookie = self._bookies.get(request.bookie_id)
        if bookie is None:
            raise BookieError(f"{request.bookie_id} is none of this host's bookies: {_words(request)} where it is")
        bookie.stop()
        match request:
            case ReplaceDisk():
                _empty(Path(request.directory))
                bookie.start()
            case Restart():
                bookie.start()

    def seen(self, request: Request) -> None:
        """Nothing is told."""

    def take_back(self, request: Request, why: str) -> None:
        """Nothing: it was done when it was asked for."""


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

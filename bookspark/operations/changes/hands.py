"""Interface for restarts of bookie processes and replacements of disks, for any way to run bookies (Spark, systemd, Kubernetes).

Law: the applying process makes a request once, and a successor makes it again. Each request ends: seen done, or taken back. A
request taken back must not be carried out any more, because the cluster has changed.

Hands that carry requests out themselves do so one at a time for each bookie, and ``note`` each first. So after the end of a
request, by any process, none is being carried out for that bookie, and an older process can't begin: its note fails. People who
are asked don't note: a request on the screen of a process that stood still is withdrawn when it wakes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

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


def _words(request: Request) -> str:
    if isinstance(request, ReplaceDisk):
        return (
            f"stop {request.bookie_id}, mount an empty disk at {request.directory}, run `bookspark cookie fix` with its "
            "directories, and start it"
        )
    return str(request)

"""How the storage answers what was asked of it, and how several answers make one.

Law: a ``Done`` is called exactly once, on the bookie's loop, with the status that the request is answered with.
"""

from __future__ import annotations

from collections.abc import Callable

from bookspark.store.wire.header import Status

Done = Callable[[int], None]
"""Called with ``Status.OK`` when the request is done, or with the status that says why it is not."""


class AllOf:
    """One answer of several, when all have come: OK if all of them are."""

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done = done
        self._status = int(Status.OK)

    def __call__(self, status: int) -> None:
        self._left -= 1
        if status != Status.OK:
            self._status = status
        if self._left == 0:
            self._done(self._status)


class AnyOf:
    """One answer of several, when all have come: OK if one of them is. (A directory that failed is out of use, so a record that
    one directory took stands in every directory that counts.)"""

    def __init__(self, count: int, done: Done) -> None:
        self._left = count
        self._done = done
        self._status = int(Status.IO_ERROR)

    def __call__(self, status: int) -> None:
        self._left -= 1
        if status == Status.OK:
            self._status = status
        if self._left == 0:
            self._done(self._status)


def ignore(status: int) -> None:
    """The ``Done`` of a write that nobody waits for."""

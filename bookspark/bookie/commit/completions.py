"""How the storage tells that something asked for is through, and how several such answers make one.

Law: a ``Done`` is called exactly once, on the bookie's loop, with the status that the request is answered with.
"""

from __future__ import annotations

from collections.abc import Callable

from bookspark.wire.header import Status

Done = Callable[[int], None]
"""Called with ``Status.OK`` once it is durable, or with the status that says why it is not."""


class AllOf:
    """The ``Done`` of several: OK if all are."""

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
    """The ``Done`` of several: OK if one is, once all are through. (A directory that failed is out of use, so what one took
    stands in every directory that counts.)"""

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
    """For writes that nobody waits for."""

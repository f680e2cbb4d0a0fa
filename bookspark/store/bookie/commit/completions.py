"""Completions: the storage's answers to requests, and combinations of several answers.

Law: a ``Done`` is called exactly once, on the bookie's loop, with the status of the request's answer.
"""

from __future__ import annotations

from collections.abc import Callable

from bookspark.store.wire.header import Status

Done = Callable[[int], None]
"""Called with ``Status.OK`` when the request is done, else with the status of its failure."""


class AllOf:
    """Combine ``count`` answers once all are in: OK if all are OK."""

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
    """Combine ``count`` answers once all are in: OK if any is OK. (A failed directory is out of use, so a record that one
    directory took stands in every directory that counts.)"""

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
    """``Done`` of a write without a waiting caller."""

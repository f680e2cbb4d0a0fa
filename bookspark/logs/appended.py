"""The result of an append to a log: the row's position, or an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from bookspark.errors import BookKeeperError
from bookspark.store.client.writing.futures import AppendFuture, Watermark
from bookspark.support.arguments import WaitSeconds, checks_itself


class RowPosition(NamedTuple):
    """Permanent position of a row in its log."""

    lane: int
    position: int
    """Row number in the lane, from 0 and without gaps."""


class UnexpectedPositionError(BookKeeperError):
    """The position is not the lane's next one. The row was not appended."""


class RowFuture(AppendFuture):
    """Outcome of an append to a log: an ``AppendFuture`` with the append's return value as result."""

    __slots__ = ("_answer",)

    def __init__(self, watermark: Watermark, entry_id: int, answer: Callable[[int], Any]) -> None:
        # No ``super().__init__``: for speed, as in ``AppendFuture``.
        self._watermark, self.entry_id, self._answer = watermark, entry_id, answer

    @checks_itself
    def result(self, timeout: WaitSeconds | None = None) -> Any:
        """Return value of the append, once its rows are acknowledged. Raises the errors of ``Producer.append``, and TimeoutError
        after ``timeout`` seconds."""
        return self._answer(super().result(timeout))

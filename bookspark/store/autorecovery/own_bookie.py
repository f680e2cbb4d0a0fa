"""The healing thread's access to its bookie.

Law: the bookie's loop owns its state, so each call is posted to the loop, and its answer awaited. A call without an answer
within 60 s raises StorageError.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTimeError
from typing import TypeVar

from bookspark.errors import StorageError
from bookspark.store.bookie.commit.commit_thread import Post
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.header import Status

Value = TypeVar("Value")

_ANSWER_SECONDS_MAX = 60.0
_LEDGERS_A_CALL = 2048


class OwnBookie:
    """``post(function, *arguments)`` calls the function on the bookie's loop. Each method may raise StorageError."""

    def __init__(self, bookie_id: str, storage: Storage, post: Post) -> None:
        self.bookie_id = bookie_id
        self._storage = storage
        self._post = post

    @property
    def boot(self) -> int:
        """Number of the last lossy boot; 0: none."""
        return self._storage.lossy_boots.mark.boot

    def limbo(self) -> dict[int, int]:
        found: dict[int, int] = {}
        start, list_limbo = 0, self._storage.lossy_boots.limbo
        while True:
            answer: Future[list[tuple[int, int]]] = Future()
            self._post(lambda start, answer: answer.set_result(list_limbo(start, _LEDGERS_A_CALL)), start, answer)
            part = self._awaited(answer)
            if not part:
                return found
            found.update(part)
            start = part[-1][0] + 1

    def held(self, ledger_id: int) -> tuple[tuple[int, int], ...]:
        """The ranges ``(first, last)`` of held entry ids, all of them synced."""
        answer: Future[list[tuple[int, int]] | None] = Future()
        self._post(self._storage.held_ranges, ledger_id, answer.set_result)
        found = self._awaited(answer)
        if found is None:
            raise StorageError(f"ledger {ledger_id} can't be synced here; check the disks of {self.bookie_id}")
        return tuple(found)

    def clear_limbo(self, ledger_id: int, boot: int) -> None:
        """End the limbo of lossy boot ``boot`` for this ledger, durably."""
        self._noted(self._storage.lossy_boots.clear_limbo, ledger_id, boot)

    def note_lost(self, ledger_id: int, ranges: Sequence[tuple[int, int]]) -> None:
        """Note, durably, that no bookie can supply these entries (inclusive ranges), so that their absence here proves
        nothing."""
        self._noted(self._storage.lossy_boots.note_lost, ledger_id, ranges)

    def keep_unread(self) -> None:
        """Keep bytes that the disks could not read: entries may lie there that nobody restores."""
        self._post(self._storage.lossy_boots.keep_unread)

    def note_healed(self, boot: int) -> None:
        """Note, durably, that all losses of lossy boot ``boot`` are restored."""
        self._noted(self._storage.lossy_boots.note_healed, boot)

    def _noted(self, note: Callable[..., None], *arguments: object) -> None:
        answer: Future[int] = Future()
        self._post(note, *arguments, answer.set_result)
        if self._awaited(answer) != Status.OK:
            raise StorageError(f"the control log can't be written; check the disks of {self.bookie_id}")

    def _awaited(self, answer: Future[Value]) -> Value:
        try:
            return answer.result(_ANSWER_SECONDS_MAX)
        except NotInTimeError:
            raise StorageError(f"{self.bookie_id} did not answer its own healing in time") from None

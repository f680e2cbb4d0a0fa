"""Long polls: who waits for the LAC (last add confirmed) of a ledger to reach an entry.

Law: a poll is told at most once, when the LAC rises to its entry. ``add`` tells nothing of a LAC that is there already. Some
hundred polls are told in one turn of the loop, the others in later ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from bookspark.store.bookie.commit.commit_thread import Soon

_TOLD_A_TURN = 256


class LongPolls:
    """The long polls of one bookie, by ledger."""

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._last = 0
        self._soon: Soon | None = None

    def start(self, soon: Soon | None) -> None:
        """Spread what is told over several turns of the loop from now on. Without ``soon`` all are told at once."""
        self._soon = soon

    def add(self, ledger_id: int, target: int, told: Callable[[], None]) -> int:
        """Call ``told`` once the LAC of the ledger is at least ``target``, an entry id; returns a number for ``remove``."""
        self._last += 1
        self._ledgers.setdefault(ledger_id, {})[self._last] = (target, told)
        return self._last

    def remove(self, ledger_id: int, poll: int) -> None:
        """Forget a poll; no error if it is gone."""
        polls = self._ledgers.get(ledger_id)
        if polls is not None:
            polls.pop(poll, None)
            if not polls:
                del self._ledgers[ledger_id]

    def reached(self, ledger_id: int, last_add_confirmed: int) -> None:
        """The LAC of a ledger went up: tell those who wait for it."""
        polls = self._ledgers.get(ledger_id)
        if polls is not None:
            due = deque(poll for poll, (target, _) in polls.items() if target <= last_add_confirmed)
            if due:
                self._tell(ledger_id, due)

    def _tell(self, ledger_id: int, due: deque[int]) -> None:
        left = len(due) if self._soon is None else min(len(due), _TOLD_A_TURN)
        for _ in range(left):
            poll = due.popleft()
            # It may have been told by a later rise, or be gone.
            _, told = self._ledgers.get(ledger_id, {}).get(poll, (0, None))
            if told is not None:
                self.remove(ledger_id, poll)
                told()
        if due and self._soon is not None:
            self._soon(partial(self._tell, ledger_id, due))

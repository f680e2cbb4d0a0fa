"""Long polls: who waits for the LAC (last add confirmed) of a ledger to reach an entry.

Law: a poll is told at most once, when the LAC rises to its entry. ``add`` tells nothing of a LAC that is there already.
"""

from __future__ import annotations

from collections.abc import Callable


class LongPolls:
    """The long polls of one bookie, by ledger."""

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._last = 0

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
            due = [(poll, told) for poll, (target, told) in polls.items() if target <= last_add_confirmed]
            for poll, told in due:
                self.remove(ledger_id, poll)
                told()

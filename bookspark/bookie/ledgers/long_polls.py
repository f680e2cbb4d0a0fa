"""Who waits for a ledger's LAC to reach an entry (long polls).

Law: a watch is told once, when the LAC is there, or never; it is not told when it is made.
"""

from __future__ import annotations

from collections.abc import Callable


class ConfirmedWatches:
    """The watches of one bookie, by ledger."""

    def __init__(self) -> None:
        self._ledgers: dict[int, dict[int, tuple[int, Callable[[], None]]]] = {}
        self._last = 0

    def add(self, ledger_id: int, target: int, told: Callable[[], None]) -> int:
        """Call ``told`` once the LAC is at least ``target``; returns a number for ``remove``."""
        self._last += 1
        self._ledgers.setdefault(ledger_id, {})[self._last] = (target, told)
        return self._last

    def remove(self, ledger_id: int, watch: int) -> None:
        """Forget a watch; no error if it is gone."""
        watches = self._ledgers.get(ledger_id)
        if watches is not None:
            watches.pop(watch, None)
            if not watches:
                del self._ledgers[ledger_id]

    def reached(self, ledger_id: int, last_add_confirmed: int) -> None:
        """The LAC went up: tell those who wait for it."""
        watches = self._ledgers.get(ledger_id)
        if watches is not None:
            due = [(watch, told) for watch, (target, told) in watches.items() if target <= last_add_confirmed]
            for watch, told in due:
                self.remove(ledger_id, watch)
                told()

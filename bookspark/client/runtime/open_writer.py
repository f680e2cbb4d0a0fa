"""What a client's runtime asks of each ledger that is open for writing; ``LedgerDriver`` answers it.

Law: all calls come from the I/O thread. A writer whose call raises is ended with ``defect`` and asked no more.
"""

from __future__ import annotations

from typing import Protocol

from bookspark.errors import BookKeeperError


class OpenWriter(Protocol):
    """One ledger that is open for writing."""

    @property
    def ledger_id(self) -> int:
        """The ledger's id."""

    @property
    def at_rest(self) -> bool:
        """True if ``tick`` has nothing to do until the writer asks for it with ``Runtime.wake``."""

    def tick(self, now: float, *, may_tell: bool) -> bool | None:
        """Look at deadlines, syncs by time and, if ``may_tell``, at the explicit LAC (last add confirmed).

        ``now`` is ``time.monotonic()``, in seconds. Returns True if the writer told the bookies its LAC, and None if it is not to
        be asked whether it is at rest.
        """

    def bookies_changed(self) -> None:
        """The set of registered bookies has changed."""

    def abandon(self, error: BookKeeperError) -> None:
        """End the handle with ``error``; the ledger stays as it is."""


def defect(ledger_id: int, error: BaseException) -> BookKeeperError:
    """The error that a user gets when the client itself failed with an exception that nobody expected."""
    return BookKeeperError(
        f"ledger {ledger_id}: the client ran into a defect ({error!r}), and its log tells more; appends that were not "
        "acknowledged may be part of the ledger: open the ledger to recover it"
    )

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

    def tick(self, now: float) -> bool:
        """Look at deadlines and syncs by time. ``now`` is ``time.monotonic()``, in seconds, here and below. False if there is
        nothing more to look at until the writer asks for it with ``Runtime.wake``."""

    @property
    def owes_lac(self) -> bool:
        """May a bookie not know the LAC (last add confirmed)?"""

    def is_quiet(self, now: float) -> bool:
        """Has the writer made no progress for so long that it tells its LAC without an entry?"""

    def tell_idle_lac(self, now: float) -> bool:
        """Tell the bookies the LAC without an entry, if they are to be told now. True if something was sent."""

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

"""What an open ledger's handle, in any thread, and its driver, in the I/O thread, both look at and change.

Law: the handle adds to ``outgoing``, and sets ``next_entry_id``, ``closing`` and ``missing``, under its lock, or a sole appender
does under its caller's. The I/O thread takes from ``outgoing`` without it; all the rest is written by the I/O thread alone.
"""

from __future__ import annotations

from collections.abc import Callable

from bookspark.errors import BookKeeperError
from bookspark.store.client.writing.futures import Watermark
from bookspark.store.client.writing.outgoing import Outgoing
from bookspark.support.threads import Latch, check_may_wait


class SharedWithCallers:
    """The state of one ledger that its handle and its driver share. ``deliver`` has users' callbacks called. ``volatile``: it is
    a VD ledger (volatile durability), whose entries may be acknowledged before they are confirmed."""

    __slots__ = ("acknowledged", "closing", "confirmed", "ended", "missing", "next_entry_id", "outgoing")

    def __init__(self, outgoing: Outgoing, deliver: Callable[[Callable[[], object]], None], *, volatile: bool) -> None:
        self.outgoing = outgoing
        """The appends that wait for a frame."""
        self.next_entry_id = 0
        """The id that the next append gets."""
        self.acknowledged = Watermark(check_may_wait, deliver)
        """The last entry id that is acknowledged, or the error that ended the ledger."""
        self.confirmed = Watermark(check_may_wait, deliver) if volatile else self.acknowledged
        """The LAC (last add confirmed), or the error that ended the ledger."""
        self.ended = Latch()
        """Set once the ledger is closed, or never will be by this handle."""
        self.closing = False
        """The user closes the ledger: it is closed once nothing waits."""
        self.missing: int | None = None
        """The entry for which later ones wait, on a ledger whose ids are given; None if nothing waits for one."""

    def end(self) -> None:
        """The ledger is closed."""
        self.ended.set()
        # Wake those who wait for an entry behind the end, so that they look again.
        self.confirmed.advance(self.confirmed.value)

    def fail(self, error: BookKeeperError) -> None:
        """Nothing more is acknowledged. Whoever waits is told ``error``."""
        self.outgoing.clear()
        self.acknowledged.fail(error)
        self.confirmed.fail(error)
        self.ended.set()

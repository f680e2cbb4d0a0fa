"""A stand-in for a client of a cluster: the test sets the answers of its bookies, and its metadata is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow

from bookspark.errors import ReadError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.repair.underreplication_task import Reason
from bookspark.store.autorecovery.auditor import ExactCheck
from bookspark.store.metadata.autorecovery.auditors import CheckReport
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.wire.messages import BookieStatus, HealingStatus

BOOKIES = ("a", "b", "c")
NAMES = ("ledger_id", "first_entry_id", "last_entry_id")


class Cluster:
    """A stand-in for the client. Each bookie holds the rows ``held[bookie]``: (ledger, first, last)."""

    def __init__(self, of: Cluster | None = None) -> None:
        """``of``: another client of the same cluster."""
        self.metadata = MemoryStore() if of is None else of.metadata.another()
        self.held: dict[str, list[tuple[int, int, int]]] = {bookie: [] for bookie in BOOKIES}
        self.silent: set[str] = set()
        self.healing: set[str] = set()
        self.saw_all: set[str] = set()
        """Bookies that heal themselves and have checked all of their ledgers once."""
        self.unwanted: tuple[str, ...] = ()
        self.asked: list[tuple[str, int | None]] = []
        for bookie in BOOKIES if of is None else ():
            self.metadata.register_bookie(BookieRegistration(bookie, "h:1", 1))
            self.metadata.write_cookie(Cookie(bookie, ("/d",), "instance", "nonce"), None)

    def close_ledger(self, ledger_id: int, ensemble: tuple[str, ...] = BOOKIES, last: int = 9) -> None:
        """Make a closed ledger whose bookies all hold its entries, ten by default."""
        fragments = (Fragment(0, ensemble),)
        self.metadata.create_ledger(LedgerMetadata(ledger_id, 3, 3, 2, fragments, LedgerState.CLOSED, last))
        for bookie in ensemble:
            self.held.setdefault(bookie, []).append((ledger_id, 0, last))

    def bookie_status(self, bookie: str) -> BookieStatus:
        if bookie in self.silent:
            raise ReadError(f"bookie {bookie} did not answer")
        healing = HealingStatus(9, 1, 0, 0, 0.0, bookie in self.saw_all)
        return BookieStatus(bookie, 1, 1, [], 0, 0, 0, lossy_boot=int(bookie in self.healing), healing=healing)

    def list_ranges(self, bookie: str, ledger_id: int | None = None) -> Any:
        self.asked.append((bookie, ledger_id))
        rows = [row for row in self.held[bookie] if ledger_id in (None, row[0])]
        return pyarrow.table(
            dict(zip(NAMES, map(list, zip(*rows, strict=True)) if rows else ([], [], []), strict=True))
        )

    def get_ledger_metadata(self, ledger_id: int) -> LedgerMetadata:
        return self.metadata.read_ledger(ledger_id).value

    def misplaced(self, ledgers: list[LedgerMetadata]) -> list[tuple[int, tuple[str, ...]]]:
        return [(one.ledger_id, self.unwanted) for one in ledgers if self.unwanted]

    def check(self, lost: tuple[str, ...] = (), meanwhile: Callable[[], None] = lambda: None) -> CheckReport:
        """Run an exact check. ``meanwhile`` is called between its first and its second pass."""

        def pause(seconds: float) -> None:
            if seconds:
                meanwhile()

        return ExactCheck(self, lost, pause).run(7.0)  # type: ignore[arg-type]

    def found(self) -> dict[int, tuple[dict[str, Reason], str]]:
        tasks = self.metadata.underreplication
        return {i: (dict(t.bookies), t.detail) for i in tasks.list_tasks() if (t := tasks.task(i)) is not None}

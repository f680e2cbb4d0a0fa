"""The progress of a log's offload to a table, as part of the log's record.

Law: before a transaction puts rows into the table, the record has its end. So another process, after a crash or at the same time,
writes the same transaction again or finds it done, and no row is in the table twice::

    begun(end) ──► rows up to end written to the table, as transaction ``end`` ──► done(end, version)
      │ another end stands: that one first         │ done already: the table skips it
    deleting(end) ──► ledgers deleted

A process may end after any of these steps, and each can be repeated without harm. Until ``deleting``, every row is in a ledger,
and the offload can be taken back (``LogRecord.offload_taken_back``). Rows of a begun offload may be in the table, but readers go
by ``position``. The number of a transaction is its end row, which only grows (Delta: ``txnAppId``,
``txnVersion``).

Sources: docs/decisions/logs.md for the record; Pulsar's tiered storage for the idea, whose ledger metadata goes from "uuid
written" to "complete" in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bookspark.errors import BookKeeperError


class OffloadError(BookKeeperError):
    """An offload does not fit earlier ones in the log's record."""


@dataclass(frozen=True, slots=True)
class Offload:
    """The rows before ``position`` are in ``table``, but for those truncated before their offload."""

    table: str
    """A path or URI."""
    position: int = 0
    version: int = -1
    """A version of the table with the rows, as in all later ones. −1: they were truncated before there was one."""
    pending: int = 0
    """The end row of the pending transaction; 0: there is none."""
    deleted: int = 0
    """Ledgers of rows before it may be deleted: the table may have the only copy."""

    def begun(self, table: str, end: int) -> Offload:
        """Unchanged if another transaction is pending, or if ``end`` is no progress.

        Raises OffloadError for another table.
        """
        self._check(table)
        return self if self.pending or end <= self.position else replace(self, pending=end)

    def done(self, table: str, end: int, version: int) -> Offload:
        """Unchanged if repeated.

        Raises OffloadError for another table, and if no transaction up to row ``end`` was begun.
        """
        self._check(table)
        if end <= self.position:
            return self
        if end != self.pending:
            raise OffloadError(f"an offload up to row {end} was never begun; what is begun ends at row {self.pending}")
        return replace(self, position=end, version=version, pending=0)

    def deleting(self, table: str, end: int) -> Offload:
        """Before ledgers of rows before ``end`` are deleted. Raises OffloadError for another table, and if some of those rows are
        not offloaded."""
        self._check(table)
        if end > self.position:
            raise OffloadError(f"rows before {end} are not all in the table, which has those before {self.position}")
        return replace(self, deleted=max(end, self.deleted))

    def _check(self, table: str) -> None:
        """A run that goes on after its offload was taken back may meet another one, with equal transactions."""
        if table != self.table:
            raise OffloadError(
                f"the log is offloaded to {self.table}, not to {table}: a log has one table for all of its rows"
            )

"""The progress of a log's offload to a table, as part of the log's record.

Law: before a transaction puts rows into the table, the record has its end. So another process, after a crash or at the same time,
writes the same transaction again or finds it done, and no row is in the table twice::

    begun(end) ──► rows up to end written to the table, as transaction ``end`` ──► done(end, version) ──► ledgers deleted
      │ another end stands: that one first         │ done already: the table skips it

A process may end after any of these steps, and each can be repeated without harm. Rows of an offload that is only begun may be in
the table. No reader reads them from there, because readers go by ``position``.

The number of a transaction is its last row, which only grows (Delta: ``txnAppId``, ``txnVersion``). Sources:
docs/decisions/logs.md for the record; Pulsar's tiered storage for the idea, whose ledger metadata goes from "uuid written" to
"complete" in the same way.
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
    """A version of the table with the rows, as in all later versions. −1: they were truncated before there was one."""
    pending: int = 0
    """The end row of the pending transaction; 0: there is none."""

    def begun(self, table: str, end: int) -> Offload:
        """The offload with a transaction up to row ``end`` begun. Unchanged if another is pending, or if ``end`` is no progress.

        Raises OffloadError for another table.
        """
        if table != self.table:
            raise OffloadError(
                f"the log is offloaded to {self.table}, not to {table}: a log has one table for all of its rows"
            )
        return self if self.pending or end <= self.position else replace(self, pending=end)

    def done(self, end: int, version: int) -> Offload:
        """The offload with the transaction up to row ``end`` in the table since ``version``. Unchanged if repeated.

        Raises OffloadError if no transaction up to that row was begun.
        """
        if end <= self.position:
            return self
        if end != self.pending:
            raise OffloadError(f"an offload up to row {end} was never begun; what is begun ends at row {self.pending}")
        return replace(self, position=end, version=version, pending=0)

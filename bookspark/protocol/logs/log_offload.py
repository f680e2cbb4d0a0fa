"""How far the rows of a log were offloaded to a table, as part of the log's record.

Law: rows are put into the table by transactions that end where the record said, before they began, that they would.
So whoever comes after a crash, or at the same time, writes the same transaction again or finds it done, and no row is
in the table twice::

    begun(end) ──► rows up to end written to the table, as transaction ``end`` ──► done(end, version) ──► ledgers deleted
      │ another end stands: that one first         │ done already: the table skips it

Each arrow is a step that may be the last one of a process; each is done again without harm. Rows of an offload that is
only begun may be in the table, and nobody reads them from there: readers go by ``position``.

The transaction's number is the row it ends at, which only grows (Delta: ``txnAppId``, ``txnVersion``). Source:
docs/decisions/logs.md for the record, BookKeeper's users for the idea (Pulsar's tiered storage, whose ledger metadata
goes from "uuid written" to "complete" in the same way).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from bookspark.errors import BookKeeperError


class OffloadError(BookKeeperError):
    """An offload that does not fit what the log's record says of the ones before it."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Rows before ``position`` are in ``table``, as far as they were not truncated by then."""

    table: str
    """Where it lies: a path or URI."""
    position: int = 0
    version: int = -1
    """A version of the table that has them; so do all after it. −1: they were truncated before there was one."""
    pending: int = 0
    """Where the transaction ends that was begun and is not known to be done; 0: none was."""

    def begun(self, table: str, end: int) -> Offload:
        """With a transaction up to row ``end`` begun, or as it is if another one is pending or ``end`` is no progress. Raises
        OffloadError for another table."""
        if table != self.table:
            raise OffloadError(
                f"the log is offloaded to {self.table}, not to {table}: a log has one table for all of its rows"
            )
        return self if self.pending or end <= self.position else replace(self, pending=end)

    def done(self, end: int, version: int) -> Offload:
        """With the transaction up to row ``end`` in the table since ``version``. Done twice it changes nothing."""
        if end <= self.position:
            return self
        if end != self.pending:
            raise OffloadError(f"an offload up to row {end} was never begun; what is begun ends at row {self.pending}")
        return replace(self, position=end, version=version, pending=0)

"""Explicit LACs: a writer that adds nothing tells the bookies its LAC (last add confirmed) by itself.

Law: an explicit LAC is answered OK once it is durable in every directory that is in use, also when it is told again. The LAFR
(last add fully replicated) that comes with it is kept in memory only: a crash that forgets it costs a recovery some reads.

Source: BookKeeper's ``Bookie.setExplicitLac``.
"""

from __future__ import annotations

from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Positive
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.bookie.ledgers.statuses import status_of


class ExplicitLacs:
    """The explicit LACs of one bookie. Owned by the loop."""

    def __init__(self, holdings: Holdings, records: ControlRecords) -> None:
        self._holdings = holdings
        self._records = records

    def write(
        self,
        ledger_id: int,
        master_key: bytes,
        last_add_confirmed: int,
        done: Done,
        last_add_fully_replicated: int = NO_ENTRY,
    ) -> None:
        """Note the LAC and the LAFR of a ledger. ``done``: OK once the LAC is durable, FENCED, UNAUTHORIZED, or IO_ERROR."""
        holdings = self._holdings
        ledger = holdings.control.known(ledger_id)
        decision = ledger.write_last_add_confirmed(master_key, last_add_confirmed)
        if type(decision.response) is not Positive:
            done(status_of(decision.response))
            return
        holdings.control.suspects.discard(ledger_id)
        ledger.note(NO_ENTRY, last_add_fully_replicated)
        holdings.ledgers[ledger_id] = ledger
        holdings.long_polls.reached(ledger_id, ledger.last_add_confirmed)
        self._records.note(ledger, decision.records, done)

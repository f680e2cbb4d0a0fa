"""What was lost and is held again.

Law: an entry is back once a durable copy of it is held, in a directory that is in use. A lost copy is remembered as long as its
log is there. All ledgers that lost something are looked at, at the boot and with each checkpoint.
"""

from __future__ import annotations

from itertools import islice

from bookspark.protocol.ledger.entry_ranges import EntryRanges
from bookspark.store.bookie.disk.index import log_of
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.steps import Steps

_LEDGERS_A_STEP = 256
_ROWS_A_STEP = 1 << 10


def note_what_is_back(holdings: Holdings) -> Steps[None]:
    """Entries that were lost, and of which a durable copy is held again, are lost no more."""
    control = holdings.control
    for count, ledger_id in enumerate(list(control.lost_copies), 1):
        if count % _LEDGERS_A_STEP == 0:
            yield None
        copies = control.lost_copies.get(ledger_id)
        if copies is None:
            continue
        for where in [where for where in copies if log_of(where) not in holdings.logs]:
            del copies[where]
        lacking = holdings.lacking(ledger_id)
        if lacking and holdings.index.holds_any(ledger_id):
            yield from _note_back(holdings, ledger_id, lacking)
            lacking = holdings.lacking(ledger_id)
        if not lacking:
            control.all_back(ledger_id)


def _note_back(holdings: Holdings, ledger_id: int, lacking: EntryRanges) -> Steps[None]:
    """Of the ``lacking`` entries of a ledger, those of which a durable copy is held are back."""
    held: list[tuple[int, int]] = []
    for number, (first, last) in enumerate(lacking):
        following: int | None = first
        while following is not None and (rows := holdings.index.get(ledger_id)) is not None:
            part = list(islice(rows.covering(following, last), _ROWS_A_STEP))
            held += [
                (row.first, row.last)
                for row in part
                if holdings.is_synced(row.where) and not holdings.is_gone(row.where)
            ]
            following = part[-1].last + 1 if len(part) == _ROWS_A_STEP else None
            if len(held) >= _ROWS_A_STEP or following is not None:
                _are_back(holdings, ledger_id, held)
                held = []
                yield None
        if number % _ROWS_A_STEP == _ROWS_A_STEP - 1:
            _are_back(holdings, ledger_id, held)
            held = []
            yield None
    _are_back(holdings, ledger_id, held)


def _are_back(holdings: Holdings, ledger_id: int, held: list[tuple[int, int]]) -> None:
    if held and (ledger := holdings.ledgers.get(ledger_id)) is not None:
        ledger.entries_back(held)

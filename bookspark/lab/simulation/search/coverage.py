"""Coverage of schedules: the pairs of a machine's state and an event that came in it, among all possible pairs.

Law: the machines' own tables define the possible pairs (``protocol.ledger.transitions``), so a new pair counts as missing
at once. Left out are pairs that the simulator's clients never produce: they forget a finished machine, and their users do
nothing that is refused. A search without a violation says nothing about a pair that it never met.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from bookspark.lab.simulation.world import Met
from bookspark.protocol.ledger.transitions import REFUSED
from bookspark.protocol.reading import lac_read, lac_wait, range_read, recovery
from bookspark.protocol.repair import bookie_healing, ledger_replication
from bookspark.protocol.writing import writer

_TABLES = {
    writer.LedgerWriter: (writer.TRANSITIONS, writer.ANSWERS),
    recovery.LedgerRecovery: (recovery.TRANSITIONS,),
    lac_read.LacRead: (lac_read.TRANSITIONS,),
    lac_wait.LacWait: (lac_wait.TRANSITIONS,),
    range_read.RangeRead: (range_read.TRANSITIONS,),
    ledger_replication.LedgerReplication: (ledger_replication.TRANSITIONS,),
    bookie_healing.LedgerHealing: (bookie_healing.TRANSITIONS,),
}
_ENDED = ("DONE", "CLOSED", "FAILED")


class Pair(NamedTuple):
    """Names of a machine, of its state and of an event."""

    machine: str
    state: str
    event: str


def all_pairs() -> frozenset[Pair]:
    return frozenset(
        Pair(machine.__name__, state.name, event.__name__)
        for machine, tables in _TABLES.items()
        for table in tables
        for state, row in table.items()
        if state.name not in _ENDED
        for event, cell in row.items()
        if cell is not REFUSED
    )


def met_pairs(met: Iterable[Met]) -> frozenset[Pair]:
    """The possible pairs among the met ones."""
    return frozenset(_pairs(met)) & all_pairs()


def _pairs(met: Iterable[Met]) -> Iterator[Pair]:
    for machine, states, event in met:
        for state in states:
            yield Pair(machine.__name__, state.name, event.__name__)

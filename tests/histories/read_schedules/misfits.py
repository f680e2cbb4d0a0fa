"""Impossible events: a machine refuses them without any change.

Law: an unrequested event is a defect of the driver, reported by ``IllegalEventError``; the machine is unchanged.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

from bookspark.lab.simulation.values import freeze
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.transitions import IllegalEventError
from tests.histories.repair_schedules.truth import holds


def refuses(machine: Any, event: Any) -> None:
    before = freeze(machine)
    try:
        machine.step(event)
    except IllegalEventError:
        holds(freeze(machine) == before, "an event was refused and changed something")
        return
    holds(False, f"what can't be is taken; {event}")


def another_ledgers(random: Random, record: LedgerMetadata) -> LedgerMetadata:
    """The record of a ledger that differs in one immutable field."""
    volatile = record.ledger_type is LedgerType.VD_JOURNAL
    guaranteed = record.replication is Replication.GUARANTEED
    more = tuple(Fragment(one.first_entry_id, (*one.ensemble, "more")) for one in record.fragments)
    others: list[dict[str, Any]] = [
        {"ledger_id": record.ledger_id + 1},
        {"ensemble_size": record.ensemble_size + 1, "fragments": more},
        {"ledger_type": LedgerType.PD_JOURNAL if volatile else LedgerType.VD_JOURNAL},
        {"replication": Replication.BEST_EFFORT if guaranteed else Replication.GUARANTEED},
    ]
    if record.write_quorum > record.ack_quorum:
        others += [{"ack_quorum": record.ack_quorum + 1}, {"write_quorum": record.write_quorum - 1}]
    return replace(record, **random.choice(others))

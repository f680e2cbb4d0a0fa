"""A writer ends when its deadline has passed: random schedules find a writer that goes on."""

from __future__ import annotations

from typing import Any

import pytest

from bookspark.lab.simulation.search.random_schedules import RandomSchedules
from bookspark.protocol.ledger.actions import DeadlinePassed
from bookspark.protocol.ledger.ledger_metadata import LedgerType
from bookspark.protocol.writing.writer import LedgerWriter


def found():
    schedules = RandomSchedules({"abandons": True})
    broken = (schedules.schedule(seed)[2] for seed in range(200))
    return next((violation for violation in broken if violation is not None), None)


def test_writer_that_ignores_its_deadline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    step = LedgerWriter.step

    def deaf(self: LedgerWriter, event: Any) -> list[Any]:
        return [] if isinstance(event, DeadlinePassed) else step(self, event)

    assert found() is None
    monkeypatch.setattr(LedgerWriter, "step", deaf)
    violation = found()
    assert violation is not None
    assert violation.invariant == "no_machine_fails"
    assert "was told DeadlinePassed, and has not ended" in violation.what


def test_writer_may_give_up_over_bookies_it_wrote_to_that_repair_replaced() -> None:
    """By then repair had replaced them in the metadata. Once, this was reported as a violation."""
    assert RandomSchedules({"ledger_type": LedgerType.VD_JOURNAL}).schedule(500_040_035)[2] is None

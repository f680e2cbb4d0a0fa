"""Each law of BP-46, of BP-14 and of guaranteed write quorum has a planted bug that no other checker finds.

All orders within the bounds of the options are searched to the end. Every checker judges each state, whatever the others
said before, and everything begun must end as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from bookspark.lab.simulation.checkers import CHECKERS
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.view import WorldView
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.replication import BestEffort
from bookspark.protocol.writing.writer import Cursors, LedgerWriter, State, Volatile

Plant = Callable[[pytest.MonkeyPatch], object]


def lac_of_what_is_acknowledged(patch: pytest.MonkeyPatch) -> None:
    """BP-14: the LAC follows acks instead of syncs."""
    patch.setattr(Volatile, "holders", lambda self, add, leaving: add.acks - leaving)


def close_without_a_sync(patch: pytest.MonkeyPatch) -> None:
    """BP-14: a close does not wait until the acknowledged entries are synced."""

    def close(writer: LedgerWriter) -> list[object]:
        acknowledged = writer.cursors.last_add_acknowledged == writer.cursors.last_add_pushed
        return list(writer._write_end()) if writer.state is State.CLOSING and acknowledged else []

    patch.setattr(LedgerWriter, "_close_when_idle", close)


def fully_replicated_at_an_ack_quorum(patch: pytest.MonkeyPatch) -> None:
    """Guaranteed write quorum: LAFR advances at AQ copies."""
    right = Cursors.__init__

    def make(self: Cursors, metadata, replication) -> None:  # type: ignore[no-untyped-def]
        right(self, metadata, replication)
        self._copies = metadata.ack_quorum

    patch.setattr(Cursors, "__init__", make)


def recovery_to_an_ack_quorum(patch: pytest.MonkeyPatch) -> None:
    """Guaranteed write quorum, tweak 3: a recovery writes back to AQ and closes."""
    patch.setattr("bookspark.protocol.reading.recovery.replication_of", lambda metadata: BestEffort())


class Planted(NamedTuple):
    # a change of a machine, or a protection that the world around the machines leaves out
    plant: Plant | str
    options: SimulationOptions
    finder: str


DISKS_LOST = SimulationOptions(2, 2, 1, crashes=1, crash_loses=CrashLoses.EVERYTHING, journal_write_data=False)
WRITTEN_BACK = SimulationOptions(2, 2, 2, crashes=1, journal_write_data=False, closes=False)
VD_CRASH = SimulationOptions(2, 2, 2, crashes=1, closes=False, recoverers=0, ledger_type=LedgerType.VD_JOURNAL)
VD_CLOSE = SimulationOptions(2, 2, 2, recoverers=0, ledger_type=LedgerType.VD_JOURNAL)
GUARANTEED = SimulationOptions(2, 2, 1, closes=False, replication=Replication.GUARANTEED)
GUARANTEED_OPEN = SimulationOptions(2, 2, 1, closes=False, recoverers=0, replication=Replication.GUARANTEED)
PLANTED = [
    Planted("limbo", DISKS_LOST, "no_divergence_between_writer_and_metadata"),
    Planted("boot_fencing", DISKS_LOST, "no_divergence_between_writer_and_metadata"),
    Planted("lossy_boot_mark", DISKS_LOST, "no_divergence_between_writer_and_metadata"),
    Planted("sync_on_recovery_add", WRITTEN_BACK, "what_recovery_wrote_is_synced"),
    Planted(lac_of_what_is_acknowledged, VD_CRASH, "all_committed_entries_reach_ack_quorum"),
    Planted(close_without_a_sync, VD_CLOSE, "told_ends_stay"),
    Planted(fully_replicated_at_an_ack_quorum, GUARANTEED_OPEN, "tail_fragments_reach_write_quorum"),
    Planted(recovery_to_an_ack_quorum, GUARANTEED, "all_entries_of_closed_ledger_reached_write_quorum"),
]


def finders(options: SimulationOptions, patch: pytest.MonkeyPatch) -> set[str]:
    """The checkers that report a violation in any state within the bounds."""
    found: set[str] = set()
    checks = dict(CHECKERS)

    def look(view: WorldView) -> None:
        found.update(name for name, check in checks.items() if name not in found and check(view) is not None)

    for name in checks:
        patch.delitem(CHECKERS, name)
    patch.setitem(CHECKERS, "all of them", look)
    result = Exhaustive(options).run()
    assert result.finished
    return found | ({result.violation.invariant} if result.violation is not None else set())


@pytest.mark.parametrize(
    "planted", PLANTED, ids=[getattr(one.plant, "__name__", f"without {one.plant}") for one in PLANTED]
)
def test_planted_bug_is_found_by_its_checker_and_by_no_other(monkeypatch: pytest.MonkeyPatch, planted: Planted) -> None:
    with monkeypatch.context() as patch:
        assert finders(planted.options, patch) == set()
    options = planted.options
    if isinstance(planted.plant, str):
        options = options.without(planted.plant)
    else:
        planted.plant(monkeypatch)
    assert finders(options, monkeypatch) == {planted.finder}

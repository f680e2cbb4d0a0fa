"""The exhaustive search: BP-46's table on our code, #2614, and the completeness of its reductions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.lab.simulation.search.exhaustive import Exhaustive, Reductions
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.story import tell
from bookspark.lab.simulation.world import World
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.repair import ledger_replication
from bookspark.protocol.repair.replication_plan import Repair
from bookspark.protocol.writing.ensemble_change import ChangeMode

NO_DIVERGENCE = "no_divergence_between_writer_and_metadata"
BP46 = SimulationOptions(2, 2, 1, crashes=1, crash_loses=CrashLoses.EVERYTHING, journal_write_data=False)


class TestBP46Table:
    """Crashes that lose everything at E/WQ/AQ 2/2/1: one entry, one writer, one recoverer, one crash."""

    def test_no_order_violates_a_law_with_all_protections(self):
        result = Exhaustive(BP46).run()
        assert result.finished
        assert result.violation is None
        assert result.states > 7_000

    @pytest.mark.parametrize(
        ("protection", "said"),
        [
            ("limbo", "fenced, not in limbo"),  # scenario 2: a bookie that lost the entry denies it
            ("boot_fencing", "not fenced, in limbo"),  # scenario 1: a bookie that lost its fence accepts an add
            ("lossy_boot_mark", "not fenced, not in limbo"),  # the disk is lost after the close
        ],
    )
    def test_each_protection_is_needed(self, protection, said):
        search = Exhaustive(BP46.without(protection))
        result = search.run()
        assert result.violation.invariant == NO_DIVERGENCE
        story = tell(search.world, result.moves)
        assert len(result.moves) == 17
        assert any(said in line for line in story)


def test_truncation_of_2614_is_found_without_fencing_recovery_reads():
    search = Exhaustive(SimulationOptions(3, 3, 2).without("fence_on_recovery_read"))
    result = search.run()
    assert result.violation.invariant == NO_DIVERGENCE
    assert len(result.moves) == 17


def test_no_order_violates_a_law_with_fencing_recovery_reads_at_3_3_2():
    result = Exhaustive(SimulationOptions(3, 3, 2)).run()
    assert result.finished
    assert result.violation is None


def test_confirmed_entry_of_a_guaranteed_ledger_becomes_unreadable_without_pinning():
    """Figure 3 of "Guaranteeing write quorum"."""
    options = SimulationOptions(
        2, 2, 1, spares=1, entries=2, losses=1, recoverers=0, closes=False,
        replication=Replication.GUARANTEED, ensemble_changes=ChangeMode.AT_ONCE,
    )  # fmt: skip
    assert Exhaustive(options.without("pinning")).run().violation.invariant == "all_acked_entries_are_readable"
    result = Exhaustive(options).run()
    assert result.finished
    assert result.violation is None


def test_recovery_write_backs_must_be_synced_before_their_ack():
    options = SimulationOptions(2, 2, 2, crashes=1, journal_write_data=False, closes=False)
    result = Exhaustive(options.without("sync_on_recovery_add")).run()
    assert result.violation.invariant == "what_recovery_wrote_is_synced"
    result = Exhaustive(options).run()
    assert result.finished
    assert result.violation is None


SMALL = [
    SimulationOptions(2, 2, 1, closes=False),
    SimulationOptions(2, 2, 2),
    SimulationOptions(2, 2, 1, closes=False, crashes=1, crash_loses=CrashLoses.EVERYTHING).without("limbo"),
    SimulationOptions(2, 2, 2, crashes=1, recoverers=0, journal_write_data=False),
    SimulationOptions(2, 2, 1, recoverers=2, entries=0),
    SimulationOptions(2, 2, 1, replication=Replication.GUARANTEED, closes=False),
    SimulationOptions(2, 2, 1, deletes=True, entries=0, closes=False),
    SimulationOptions(2, 2, 1, entries=2, explicit_lacs=1, recoverers=0, closes=False),
    SimulationOptions(2, 2, 1, entries=2, explicit_lacs=1, recoverers=0, closes=False, holds_back=True),
]


@pytest.mark.parametrize("options", SMALL, ids=lambda options: options.arguments())
def test_reductions_leave_no_state_out(options):
    """Every state of a plain search is visited by the reduced search, or equivalent to a visited state."""
    world = World(options)
    visited = Reductions(world).visited
    plain = reachable(world, lambda state: state)
    reduced = reachable(world, visited)
    assert {visited(state) for state in plain} == reduced
    assert {world.violation(state) for state in plain} == {world.violation(state) for state in reduced}
    assert len(reduced) < len(plain)


TINY = SimulationOptions(2, 2, 1, closes=False, recoverers=0)


@pytest.mark.parametrize(
    "options",
    [
        *(BP46, *SMALL[3:6], SimulationOptions(3, 3, 2)),
        *(replace(TINY, losses=1), replace(TINY, duplicates=1), replace(TINY, departures=1)),
        replace(TINY, recoverers=1, accept_loss=True),
        replace(TINY, holds_back=True, entries=2),
        replace(TINY, holds_back=True, ledger_type=LedgerType.VD_JOURNAL),
        replace(TINY, crashes=1, ledger_type=LedgerType.VD_JOURNAL),
        replace(TINY, crashes=1, heals=True, journal_write_data=False),
        replace(TINY, deletes=True, explicit_lacs=1, abandons=True),
        replace(TINY, readers=1, reads=1, long_polls=True),
        replace(TINY, spares=1, replicators=1, ensemble_changes=ChangeMode.AT_ONCE),
    ],
    ids=lambda options: options.arguments(),
)
def test_search_makes_every_move(options):
    """Its successors equal those of ``moves`` and ``apply``, mapped by ``visited``."""
    search = Exhaustive(options)
    world, visited = search.world, Reductions(search.world).visited
    for state in sorted(reachable(world, visited, states_max=4_000))[::7]:
        assert set(search.successors(state)) == {visited(world.apply(state, move)) for move in world.moves(state)}


def test_divergence_is_found_if_a_bookie_forgets_its_collections():
    """BookKeeper #4462: a collected ledger takes its fence with it."""
    options = SimulationOptions(2, 2, 1, deletes=True, closes=False)
    assert Exhaustive(options.without("collection_mark")).run().violation.invariant == NO_DIVERGENCE
    result = Exhaustive(options).run()
    assert result.finished
    assert result.violation is None


class TestAutorecovery:
    OPTIONS = SimulationOptions(1, 1, 1, spares=1, entries=2, replicators=1, recoverers=0)

    def test_nothing_is_lost_whichever_bookie_autorecovery_considers_lost(self):
        result = Exhaustive(self.OPTIONS).run()
        assert result.finished
        assert result.violation is None

    def test_copy_must_be_made_before_metadata_names_it(self, monkeypatch):
        monkeypatch.setattr(ledger_replication, "copies", lambda *_: ())
        assert Exhaustive(self.OPTIONS).run().violation.invariant == "all_acked_entries_are_readable"

    def test_last_fragment_of_an_open_ledger_must_be_left_to_its_writer(self, monkeypatch):
        def all_of_it(metadata, lost):
            last = metadata.last_entry_id if metadata.closed else 0
            ensemble = metadata.last_fragment.ensemble
            if ensemble[0] in lost and last >= 0:
                yield Repair(0, last, ensemble, ensemble)

        monkeypatch.setattr(ledger_replication, "repairs", all_of_it)
        monkeypatch.setattr(ledger_replication, "repaired", lambda now, *_: swapped(now))
        assert Exhaustive(self.OPTIONS).run().violation is not None


class TestSmallLedgers:
    """A log's ledger was made over one bookie while a second one was missing, which is back."""

    OPTIONS = SimulationOptions(1, 1, 1, spares=1, entries=2, replicators=1, recoverers=0, copies_wanted=2)

    def test_closed_ledger_gets_its_other_copies(self):
        result = Exhaustive(self.OPTIONS).run()
        assert result.finished
        assert result.violation is None

    def test_copy_must_be_made_before_the_record_names_it(self, monkeypatch):
        copies = ledger_replication.copies
        monkeypatch.setattr(ledger_replication, "copies", lambda *given: list(copies(*given))[:-1])
        assert Exhaustive(self.OPTIONS).run().violation.invariant == "all_acked_entries_are_readable"

    def test_ledger_must_not_stay_small(self, monkeypatch):
        monkeypatch.setattr(LedgerMetadata, "lacks_copies", False)
        assert Exhaustive(self.OPTIONS).run().violation.invariant == "repairs_have_repaired"


def swapped(metadata):
    """The metadata with the spare in place of the bookie, even in a fragment still written to."""
    return replace(metadata, fragments=(Fragment(0, ("b2",)),))


def test_search_cut_short_reports_not_finished():
    result = Exhaustive(BP46).run(states_max=500)
    assert not result.finished
    assert result.violation is None


@pytest.mark.parametrize(
    "options",
    [
        SimulationOptions(2, 2, 1, spares=1, losses=1, ensemble_changes=ChangeMode.AT_ONCE, closes=False, recoverers=0),
        SimulationOptions(2, 2, 2, entries=1, readers=1, reads=1, closes=False),
        SimulationOptions(3, 2, 2, entries=1, closes=False),
        SimulationOptions(2, 2, 1, readers=1, reads=1, long_polls=True, explicit_lacs=1, closes=False, recoverers=0),
        SimulationOptions(1, 1, 1, crashes=1, ledger_type=LedgerType.VD_JOURNAL),
        SimulationOptions(1, 1, 1, entries=2, crashes=1, journal_write_data=False, heals=True, closes=False),
    ],
    ids=lambda options: options.arguments(),
)
def test_other_modes_violate_nothing_within_small_bounds(options):
    result = Exhaustive(options).run()
    assert result.finished
    assert result.violation is None


def reachable(world, visited, states_max=1_000_000):
    first = visited(world.initial)
    seen, left = {first}, [first]
    while left and len(seen) < states_max:
        state = left.pop()
        for move in world.moves(state):
            after = visited(world.apply(state, move))
            if after not in seen:
                seen.add(after)
                left.append(after)
    return seen


@pytest.mark.parametrize("away", [{"departures": 1}, {"losses": 1}])
def test_absent_bookie_is_never_accepted_as_lost(away):
    result = Exhaustive(SimulationOptions(2, 2, 1, accept_loss=True, closes=False, **away)).run()
    assert result.finished
    assert result.violation is None


def test_operator_cuts_off_a_bookies_entries_without_named_losses():
    """Once, every bookie that did not answer counted as lost."""
    options = SimulationOptions(2, 2, 1, losses=1, accept_loss=True, closes=False).without("named_losses")
    result = Exhaustive(options).run()
    assert result.violation is not None and result.violation.invariant == "accepted_losses_are_losses"


BEHIND_A_LOSS = SimulationOptions(
    2, 1, 1, entries=2, crashes=1, crash_loses=CrashLoses.EVERYTHING, accept_loss=True, closes=False
)


def test_entries_after_a_loss_are_not_cut_off():
    result = Exhaustive(BEHIND_A_LOSS).run()
    assert result.finished and result.violation is None


def test_operator_cuts_off_a_bookies_entries_without_looking_at_later_entries():
    """Once, the first unknown entry ended the ledger."""
    result = Exhaustive(BEHIND_A_LOSS.without("later_entries")).run()
    assert result.violation is not None and result.violation.invariant == "accepted_losses_are_losses"

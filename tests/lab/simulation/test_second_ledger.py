"""A second ledger on the same bookies: faults that need two ledgers are found, and the right protocol violates nothing."""

from __future__ import annotations

import pytest

from bookspark.errors import ConfigurationError
from bookspark.lab.simulation.bookie import SecondsBookie
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.search.random_schedules import RandomSchedules
from bookspark.lab.simulation.second_ledger import TwoLedgers
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.state import SECOND
from bookspark.lab.simulation.story import tell
from bookspark.protocol.bookie.bookie_boot import phase_one
from bookspark.protocol.bookie.garbage_collection import NOTHING_COLLECTED, CollectionNoted, note_collection
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode

TWO_OF_TWO = {"ensemble": 2, "write_quorum": 2, "ack_quorum": 1}
LOST = {**TWO_OF_TWO, "crash_loses": CrashLoses.EVERYTHING, "crashes": 1}
SCHEDULES, MANY, FEW = 600, 2000, 150


def found(given, second_ledger, schedules=SCHEDULES, first=0):
    search = RandomSchedules({**given, "second_ledger": second_ledger})
    broken = (search.schedule(seed)[2] for seed in range(first, first + schedules))
    return next((violation for violation in broken if violation is not None), None)


@pytest.mark.parametrize("kept", [slice(0, 1), slice(-1, None)], ids=["the first", "the last"])
def test_boot_that_fences_only_one_of_its_ledgers_is_found_with_two(monkeypatch, kept):
    monkeypatch.setattr(
        "bookspark.lab.simulation.bookie.phase_one",
        lambda name, ledgers, highest, before: phase_one(name, ledgers[kept], highest, before),
    )
    assert found(LOST, second_ledger=True).invariant == "no_divergence_between_writer_and_metadata"
    assert found(LOST, second_ledger=False, schedules=FEW) is None


def test_collection_of_existing_ledgers_is_found_with_two(monkeypatch):
    deleted = {**TWO_OF_TWO, "deletes": True}
    seconds = "bookspark.lab.simulation.second_ledger"
    monkeypatch.setattr(f"{seconds}.suspects", lambda held, listing: tuple(held))
    assert found(deleted, second_ledger=True, schedules=FEW) is None, "the second look keeps them"
    monkeypatch.setattr(f"{seconds}.collectable", lambda suspected, records: tuple(suspected))
    assert found(deleted, second_ledger=True) is not None
    assert found(deleted, second_ledger=False, schedules=FEW) is None


# Only what these faults need; they are rare: one schedule in a thousand shows them.
QUIET = {
    **TWO_OF_TWO,
    **dict.fromkeys(("spares", "readers", "replicators", "losses", "duplicates", "departures"), 0),
    **dict.fromkeys(("explicit_lacs", "hold_ups"), 0),
    **dict.fromkeys(("closes", "abandons", "holds_back", "accept_loss", "heals"), False),
    "entries": 1,
    "recoverers": 1,
    "ensemble_changes": ChangeMode.OFF,
    "ledger_type": LedgerType.PD_JOURNAL,
    "replication": Replication.BEST_EFFORT,
}


def mark_of_open_ledgers(name, ledgers, highest, before):
    """The mark is as high as the open ledgers, so a younger closed ledger is above it."""
    return phase_one(name, ledgers, max((one.ledger_id for one in ledgers if not one.closed), default=highest), before)


def mark_of_the_first(name, ledgers, highest, before):
    """The mark is as high as the first ledger of the listing."""
    return phase_one(name, ledgers, max((one.ledger_id for one in ledgers[:1]), default=highest), before)


def note_of_the_last_collection(before, collected):
    """Earlier collections are forgotten, so the note goes back."""
    return CollectionNoted(max(collected, default=before.highest_ledger_id))


def note_of_the_first_collection(before, collected):
    """A bookie with a note never updates it."""
    return note_collection(before, collected) if before == NOTHING_COLLECTED else before


@pytest.mark.parametrize(
    ("name", "wrong", "given", "first"),
    [
        ("phase_one", mark_of_open_ledgers, {**QUIET, **LOST, "deletes": False}, 1000),
        ("phase_one", mark_of_the_first, {**QUIET, **LOST, "deletes": False}, 1000),
        ("note_collection", note_of_the_last_collection, {**QUIET, "crashes": 0, "deletes": True}, 1800),
        ("note_collection", note_of_the_first_collection, {**QUIET, "crashes": 0, "deletes": True}, 700),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_mark_or_note_for_only_one_of_two_ledgers_is_found_with_two(monkeypatch, name, wrong, given, first):
    """``first``: a seed some schedules before the seed that finds the fault today."""
    monkeypatch.setattr(f"bookspark.lab.simulation.bookie.{name}", wrong)
    violation = found(given, second_ledger=True, schedules=MANY, first=first)
    assert violation is not None
    assert violation.invariant == "no_divergence_between_writer_and_metadata"
    assert violation.what.startswith("of ledger 8, ")
    assert found(given, second_ledger=False, schedules=FEW) is None


@pytest.mark.parametrize(
    "given", [{"crashes": 2}, {**LOST, "heals": True}, {"deletes": True, "crashes": 1}, {"journal_write_data": False}]
)
def test_bookie_state_shared_by_two_ledgers_stays_equal_and_nothing_is_violated(given):
    schedules, made = RandomSchedules({**given, "second_ledger": True}), 0
    for seed in range(40):
        world, moves, violation = schedules.schedule(seed)
        assert isinstance(world, TwoLedgers)
        assert violation is None, "\n".join((str(seed), *tell(world, moves)))
        state = world.initial
        ahead = world.ahead(state)
        for move in moves:
            state = world.apply(state, move)
            ahead.go_on(state)
            assert ahead.groups == world.groups(state)
        second = world.state_of_second(state)
        made += second != world.second.initial
        for slot, other in zip(state[world.slots_from :], second[world.second.slots_from :], strict=True):
            one, two = world.slots.bookie(slot), world.second.slots.bookie(other)
            assert isinstance(two, SecondsBookie)
            assert (one.mark, one.collected, one.gone) == (two.mark, two.collected, two.gone)
            assert (one.booting is None) == (two.booting is None)
    assert made > 20


def test_story_tells_the_moves_of_the_second_ledger():
    schedules, told = RandomSchedules({"second_ledger": True}), list[str]()
    for seed in range(20):
        world, moves, _ = schedules.schedule(seed)
        told += [line for move, line in zip(moves, tell(world, moves), strict=False) if move.place == SECOND]
    assert any("ledger 8: it is made" in line for line in told)
    assert any("ledger 8: the writer appends e0" in line for line in told)


def test_boot_that_lost_the_other_ledgers_data_may_fence_a_writer():
    """A bookie in limbo fences every ledger that it may have had. Once, this was reported as a violation, only for the
    second ledger."""
    assert RandomSchedules({}).schedule(500_005_010)[2] is None
    assert TwoLedgers(SimulationOptions(second_ledger=True)).second.options.second_ledger, "so its checkers know"


def test_exhaustive_search_refuses_a_second_ledger():
    with pytest.raises(ConfigurationError, match="--second-ledger"):
        Exhaustive(SimulationOptions(second_ledger=True))

"""The random driver repeats itself byte for byte, finds planted bugs, and shrinks their stories."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import pairwise

import pytest

from bookspark.lab.simulation.bookie import SimulatedBookie
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.search.random_schedules import RandomSchedules, shrink
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.story import tell
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.writer import Volatile

SCHEDULES = 400 * int(os.environ.get("SCHEDULES", "1"))
NO_LIMBO = {"limbo": False, "ensemble": 2, "crash_loses": CrashLoses.EVERYTHING}


def test_random_schedules_of_all_modes_violate_nothing():
    """``SCHEDULES=1000`` in the environment runs a thousand times as many."""
    result = RandomSchedules({}).run(SCHEDULES, seed=1)
    failure = result.failure
    assert failure is None, "\n".join((str(failure.seed), *tell(failure.world, failure.moves)))


@pytest.fixture(scope="module")
def failure():
    return RandomSchedules(NO_LIMBO).run(2000, seed=1).failure


def test_failing_schedule_is_replayed_from_its_seed_in_any_process(failure):
    command = [
        sys.executable,
        "-m",
        "bookspark.operations.cli.main",
        "simulate",
        "--random",
        "1",
        "--seed",
        str(failure.seed),
    ]
    command += ["--no-limbo", "--ensemble", "2", "--crash-loses", "everything"]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    again = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    assert again.returncode == 1
    assert "\n".join(tell(failure.world, failure.moves)) in again.stdout


def test_shrunk_story_can_not_be_shrunk_further(failure):
    assert len(failure.moves) < failure.moves_before
    assert len(tell(failure.world, failure.moves)) == len(failure.moves) + 1
    assert shrink(failure.world, failure.moves, failure.violation) == list(failure.moves)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"heals": True, "crashes": 2},
        {"deletes": True},
        {"holds_back": True, "entries": 3},
        {"accept_loss": True},
        NO_LIMBO,
    ],
    ids=["drawn", "heals", "deletes", "holds back", "accepts loss", "no limbo"],
)
def test_incremental_moves_and_verdicts_equal_those_of_the_whole_state(given):
    schedules = RandomSchedules(given)
    for seed in range(100):
        world, moves, violation = schedules.schedule(seed)
        state = world.initial
        ahead = world.ahead(state)
        for move in moves:
            assert ahead.groups == world.groups(state)
            assert world.violation(state) is None
            state = world.apply(state, move)
            ahead.go_on(state)
        assert ahead.groups == world.groups(state)
        assert world.violation(state) == violation


PLANTED = [
    SimulationOptions(3, 3, 2).without("fence_on_recovery_read"),
    SimulationOptions(2, 2, 2, crashes=1, journal_write_data=False, closes=False).without("sync_on_recovery_add"),
    SimulationOptions(2, 2, 1, crashes=1, crash_loses=CrashLoses.EVERYTHING, journal_write_data=False).without("limbo"),
]


def seen_at(search: Exhaustive) -> list[bool]:
    """For each move of the shortest story, whether the incremental verdict is a violation."""
    world, moves = search.world, search.run().moves
    states = [world.initial]
    for move in moves:
        states.append(world.apply(states[-1], move))
    return [world.verdicts.after(before, state) is not None for before, state in pairwise(states)]


@pytest.mark.parametrize("options", PLANTED, ids=SimulationOptions.arguments)
def test_violation_is_seen_at_the_move_that_causes_it(options):
    *before, last = seen_at(Exhaustive(options))
    assert last and not any(before)


def test_bookie_failure_is_seen_at_the_request_that_causes_it(monkeypatch):
    monkeypatch.setattr(SimulatedBookie, "deliver", lambda *_: 1 / 0)
    *before, last = seen_at(Exhaustive(SimulationOptions(1, 1, 1)))
    assert last and not any(before)


def test_given_options_are_kept():
    world, _, _ = RandomSchedules({"ensemble": 4, "crashes": 0, "entries": 3}).schedule(5)
    options: SimulationOptions = world.options
    assert (options.ensemble, options.crashes, options.entries) == (4, 0, 3)


@pytest.mark.parametrize(
    ("given", "seeds", "told"),
    [
        ({"holds_back": True}, range(80, 100), "waited for b1 and is forgotten, as the writer is done with it"),
        ({"abandons": True}, range(20), "the writer's client ends without a close"),
        ({"hold_ups": 2}, range(20), "the writer is held up by b"),
        ({"lost_bookies": 2}, range(20), "the writer hears that b"),
        ({"copies_wanted": 4, "replicators": 1}, range(20), "the replicator looks for lacking copies"),
    ],
)
def test_clients_drop_held_adds_abandon_writers_and_hold_up_bookies(given, seeds, told):
    stories: list[str] = []
    for seed in seeds:
        world, moves, violation = RandomSchedules(given).schedule(seed)
        stories += tell(world, moves)
        assert violation is None, "\n".join((str(seed), *tell(world, moves)))
    assert any(told in line for line in stories)


def test_cursor_that_skips_entries_still_needed_is_found(monkeypatch):
    """A bookie that missed entries continues after the last entry that the writer no longer needs, not after its own last
    acknowledgement."""
    right = Volatile.pass_over
    monkeypatch.setattr(Volatile, "pass_over", lambda self, bookie, done: right(self, bookie, done + 1))
    given = {"holds_back": True, "ledger_type": LedgerType.VD_JOURNAL, "replication": Replication.BEST_EFFORT}
    schedules = RandomSchedules(given)
    violation = next(broken for seed in range(2000) if (broken := schedules.schedule(seed)[2]) is not None)
    assert violation.invariant == "all_committed_entries_reach_ack_quorum"

"""The random driver: it repeats itself byte for byte, finds what it should, and shrinks what it finds."""

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
from bookspark.protocol.writing.durability import Volatile

SCHEDULES = 400 * int(os.environ.get("SCHEDULES", "1"))
NO_LIMBO = {"limbo": False, "ensemble": 2, "crash_loses": CrashLoses.EVERYTHING}


def test_random_schedules_of_all_modes_violate_nothing():
    """``SCHEDULES=1000`` in the environment makes it a thousand times as many."""
    result = RandomSchedules({}).run(SCHEDULES, seed=1)
    failure = result.failure
    assert failure is None, "\n".join((str(failure.seed), *tell(failure.world, failure.moves)))


@pytest.fixture(scope="module")
def failure():
    return RandomSchedules(NO_LIMBO).run(2000, seed=1).failure


def test_a_failing_schedule_is_replayed_by_its_seed_alone_in_any_process(failure):
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


def test_what_is_left_of_a_story_is_needed(failure):
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
def test_moves_and_verdicts_are_those_of_the_whole_state_though_only_what_changed_is_looked_at(given):
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
    """At which moves of the shortest story the verdict of what changed is a violation."""
    world, moves = search.world, search.run().moves
    states = [world.initial]
    for move in moves:
        states.append(world.apply(states[-1], move))
    return [world.verdicts.after(before, state) is not None for before, state in pairwise(states)]


@pytest.mark.parametrize("options", PLANTED, ids=SimulationOptions.arguments)
def test_a_violation_is_seen_at_the_move_that_makes_it_whatever_that_changed(options):
    *before, last = seen_at(Exhaustive(options))
    assert last and not any(before)


def test_a_bookie_that_fails_is_seen_at_the_request_that_it_fails_at(monkeypatch):
    monkeypatch.setattr(SimulatedBookie, "deliver", lambda *_: 1 / 0)
    *before, last = seen_at(Exhaustive(SimulationOptions(1, 1, 1)))
    assert last and not any(before)


def test_options_that_are_given_are_kept():
    world, _, _ = RandomSchedules({"ensemble": 4, "crashes": 0, "entries": 3}).schedule(5)
    options: SimulationOptions = world.options
    assert (options.ensemble, options.crashes, options.entries) == (4, 0, 3)


@pytest.mark.parametrize(
    ("given", "seeds", "told"),
    [
        ({"holds_back": True}, range(80, 100), "waited for b1 and is forgotten, as the writer is done with it"),
        ({"abandons": True}, range(20), "the writer's client ends without a close"),
        ({"hold_ups": 2}, range(20), "the writer is held up by b"),
    ],
)
def test_what_a_client_may_do_to_its_machine_is_done(given, seeds, told):
    stories: list[str] = []
    for seed in seeds:
        world, moves, violation = RandomSchedules(given).schedule(seed)
        stories += tell(world, moves)
        assert violation is None, "\n".join((str(seed), *tell(world, moves)))
    assert any(told in line for line in stories)


def test_a_cursor_that_passes_over_what_still_counts_is_found(monkeypatch):
    """A bookie that missed entries goes on behind those that the writer is done with, and not behind all that it acknowledged."""
    right = Volatile.pass_over
    monkeypatch.setattr(Volatile, "pass_over", lambda self, bookie, done: right(self, bookie, done + 1))
    given = {"holds_back": True, "ledger_type": LedgerType.VD_JOURNAL, "replication": Replication.BEST_EFFORT}
    schedules = RandomSchedules(given)
    violation = next(broken for seed in range(2000) if (broken := schedules.schedule(seed)[2]) is not None)
    assert violation.invariant == "all_committed_entries_reach_ack_quorum"

"""The random driver: it repeats itself byte for byte, finds what it should, and shrinks what it finds."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.durability import Volatile
from bookspark.simulation.search.random_schedules import RandomSchedules
from bookspark.simulation.search.shrinking import shrink
from bookspark.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.simulation.story import tell

SCHEDULES = 400 * int(os.environ.get("SCHEDULES", "1"))
NO_LIMBO = {"limbo": False, "ensemble": 2, "crash_loses": CrashLoses.EVERYTHING}


def test_random_schedules_of_all_modes_violate_nothing():
    """``SCHEDULES=1000`` in the environment makes it a thousand times as many."""
    result = RandomSchedules({}).run(SCHEDULES, seed=1)
    failure = result.failure
    assert failure is None, "\n".join((str(failure.seed), *tell(failure.world, failure.moves)))


def test_a_schedule_is_a_function_of_its_seed_in_any_process():
    command = [sys.executable, "-m", "bookspark.cli.main", "simulate", "--random", "400", "--seed", "1"]
    command += ["--no-limbo", "--ensemble", "2", "--crash-loses", "everything"]
    runs = [
        subprocess.run(command, capture_output=True, timeout=600, env={**os.environ, "PYTHONHASHSEED": hash_seed})
        for hash_seed in ("1", "2")
    ]
    assert [run.returncode for run in runs] == [1, 1]
    assert runs[0].stdout == runs[1].stdout


def test_a_failing_schedule_is_replayed_by_its_seed_alone():
    failure = RandomSchedules(NO_LIMBO).run(400, seed=1).failure
    again = RandomSchedules(NO_LIMBO).run(1, seed=failure.seed).failure
    assert tell(again.world, again.moves) == tell(failure.world, failure.moves)


def test_what_is_left_of_a_story_is_needed():
    failure = RandomSchedules(NO_LIMBO).run(400, seed=1).failure
    assert len(failure.moves) < failure.moves_before
    assert len(tell(failure.world, failure.moves)) == len(failure.moves) + 1
    assert shrink(failure.world, failure.moves, failure.violation) == list(failure.moves)


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
    failure = RandomSchedules(given).run(2000, seed=1).failure
    assert failure is not None
    assert failure.violation.invariant == "all_committed_entries_reach_ack_quorum"

"""What schedules have met, of what the machines' tables say may come."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from bookspark.cli.main import app
from bookspark.simulation.search.coverage import Pair, all_pairs, met_pairs
from bookspark.simulation.search.random_schedules import RandomSchedules
from bookspark.simulation.simulation_options import SimulationOptions
from bookspark.simulation.world import World

WRITTEN = Pair("LedgerWriter", "OPEN", "Append"), Pair("LedgerWriter", "CLOSE_WRITE", "MetadataWritten")


def test_all_machines_that_clients_step_are_in_it():
    assert {pair.machine for pair in all_pairs()} == {
        "LedgerWriter", "LedgerRecovery", "LacRead", "LacWait", "RangeRead", "LedgerReplication", "LedgerHealing",
    }  # fmt: skip
    assert set(WRITTEN) < all_pairs()


def test_a_pair_is_met_once_its_event_has_come():
    world = World(SimulationOptions(1, 1, 1))
    state = world.initial
    assert met_pairs(world.met) == frozenset()
    while moves := [move for move in world.moves(state) if move.place != 6]:
        state = world.apply(state, moves[0])
    assert set(WRITTEN) <= met_pairs(world.met)
    assert not any(pair.machine == "LedgerRecovery" for pair in met_pairs(world.met))


def test_what_other_schedules_met_is_kept():
    search = RandomSchedules({})
    search.run(1, 0)
    first = search.met
    search.run(1, 500)
    assert first < search.met < all_pairs()


def test_the_command_names_what_never_came():
    arguments = [
        "--exhaustive",
        "--ensemble",
        "1",
        "--write-quorum",
        "1",
        "--ack-quorum",
        "1",
        "--no-closes",
        "--coverage",
    ]
    lines = CliRunner().invoke(app, ["simulate", *arguments]).stdout.splitlines()
    document = json.loads(lines[-1])
    assert "never came: Close to a LedgerWriter that is OPEN" in lines
    assert document["pairs"] - document["pairs_met"] == len(lines) - 1

"""The pairs of state and event that schedules have met, out of those in the machines' tables."""

from __future__ import annotations

import json
from random import Random

from typer.testing import CliRunner

from bookspark.lab.simulation.search.coverage import Pair, all_pairs, met_pairs
from bookspark.lab.simulation.search.random_schedules import RandomSchedules, draw_options
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.state import CLIENTS
from bookspark.lab.simulation.world import World
from bookspark.operations.cli.main import command_line

WRITTEN = Pair("LedgerWriter", "OPEN", "Append"), Pair("LedgerWriter", "CLOSE_WRITE", "MetadataWritten")


def test_all_pairs_covers_every_machine_that_clients_step():
    assert {pair.machine for pair in all_pairs()} == {
        "LedgerWriter", "LedgerRecovery", "LacRead", "LacWait", "RangeRead", "LedgerReplication", "LedgerHealing",
    }  # fmt: skip
    assert set(WRITTEN) < all_pairs()


def test_pair_is_met_once_its_event_arrives():
    world = World(SimulationOptions(1, 1, 1))
    state = world.initial
    assert met_pairs(world.met) == frozenset()
    while moves := [move for move in world.moves(state) if move.place != CLIENTS + 1]:
        state = world.apply(state, moves[0])
    assert set(WRITTEN) <= met_pairs(world.met)
    assert not any(pair.machine == "LedgerRecovery" for pair in met_pairs(world.met))


def test_pairs_met_by_earlier_runs_are_kept():
    search = RandomSchedules({})
    search.run(1, 0)
    first = search.met
    search.run(1, 500)
    assert first < search.met < all_pairs()


def test_given_options_are_kept_and_the_others_follow_from_the_seed():
    given = {"accept_loss": False, "heals": False, "entries": 2}
    for number in range(200):
        drawn = draw_options(Random(number), given)
        assert (drawn.accept_loss, drawn.heals, drawn.entries) == (False, False, 2)
        assert drawn == draw_options(Random(number), given)


def test_coverage_option_lists_the_pairs_never_met():
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
    lines = CliRunner().invoke(command_line(["simulate"]), ["simulate", *arguments]).stdout.splitlines()
    document = json.loads(lines[-1])
    assert "never came: Close to a LedgerWriter that is OPEN" in lines
    assert document["pairs"] - document["pairs_met"] == len(lines) - 1

"""The pairs of state and event that schedules have met, out of those in the machines' tables."""

from __future__ import annotations

import json
from random import Random

from typer.testing import CliRunner

from bookspark.lab.simulation.search.coverage import Pair, all_pairs, met_pairs
from bookspark.lab.simulation.search.drawn_options import draw_options
from bookspark.lab.simulation.search.random_schedules import BLOCK, RandomSchedules
from bookspark.lab.simulation.search.rare_states import RARE
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


def test_half_of_the_schedules_aim_at_rare_states():
    """Rare states: recoveries that choose the losses, healing, and overtaken ensemble changes."""
    rare = {
        ("LedgerRecovery", "LOOKING"),
        ("LedgerRecovery", "CHOOSING"),
        ("LedgerHealing", "CLEARING"),
        ("LedgerWriter", "CHANGE_READ"),
    }

    def reached(aims: bool) -> int:
        found = 0
        for number in range(100_000, 100_100):
            world, _, violation = RandomSchedules({}, aims=aims).schedule(number * BLOCK)
            assert violation is None
            found += any(pair[:2] in rare for pair in met_pairs(world.met))
        return found

    assert reached(aims=True) > 1.5 * reached(aims=False) > 5


def test_rare_states_and_their_weights_name_existing_states_and_options():
    assert RARE.keys() <= {pair[:2] for pair in all_pairs()}
    for pairs, weights in RARE.values():
        assert pairs > 0 and weights.keys() <= SimulationOptions.__dataclass_fields__.keys()


def test_given_options_are_kept_whatever_the_schedule_aims_at():
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

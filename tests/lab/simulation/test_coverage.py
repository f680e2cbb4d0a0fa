"""What schedules have met, of what the machines' tables say may come."""

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


def test_all_machines_that_clients_step_are_in_it():
    assert {pair.machine for pair in all_pairs()} == {
        "LedgerWriter", "LedgerRecovery", "LacRead", "LacWait", "RangeRead", "LedgerReplication", "LedgerHealing",
    }  # fmt: skip
    assert set(WRITTEN) < all_pairs()


def test_a_pair_is_met_once_its_event_has_come():
    world = World(SimulationOptions(1, 1, 1))
    state = world.initial
    assert met_pairs(world.met) == frozenset()
    while moves := [move for move in world.moves(state) if move.place != CLIENTS + 1]:
        state = world.apply(state, moves[0])
    assert set(WRITTEN) <= met_pairs(world.met)
    assert not any(pair.machine == "LedgerRecovery" for pair in met_pairs(world.met))


def test_what_other_schedules_met_is_kept():
    search = RandomSchedules({})
    search.run(1, 0)
    first = search.met
    search.run(1, 500)
    assert first < search.met < all_pairs()


def test_half_of_the_schedules_aim_at_what_is_rarely_reached():
    """Recoveries that choose what is lost, healing, and ensemble changes that were overtaken."""
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


def test_what_is_rarely_reached_is_a_state_of_a_machine_and_its_options_are_options_of_the_simulator():
    assert RARE.keys() <= {pair[:2] for pair in all_pairs()}
    for pairs, weights in RARE.values():
        assert pairs > 0 and weights.keys() <= SimulationOptions.__dataclass_fields__.keys()


def test_given_options_are_kept_whatever_is_aimed_at():
    given = {"accept_loss": False, "heals": False, "entries": 2}
    for number in range(200):
        drawn = draw_options(Random(number), given)
        assert (drawn.accept_loss, drawn.heals, drawn.entries) == (False, False, 2)
        assert drawn == draw_options(Random(number), given)


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
    lines = CliRunner().invoke(command_line(["simulate"]), ["simulate", *arguments]).stdout.splitlines()
    document = json.loads(lines[-1])
    assert "never came: Close to a LedgerWriter that is OPEN" in lines
    assert document["pairs"] - document["pairs_met"] == len(lines) - 1

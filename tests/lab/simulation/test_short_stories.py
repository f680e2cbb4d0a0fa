"""A violation of a random schedule is reported with a shortest story, and a failing machine is a violation too."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from bookspark.errors import ConfigurationError
from bookspark.lab.simulation.search import random_schedules as searched
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.search.random_schedules import RandomSchedules, shortest, shrink, used_options
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.operations.cli.main import command_line
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import LedgerWriter

DISKS_LOST = SimulationOptions(2, 2, 1, crashes=1, crash_loses=CrashLoses.EVERYTHING, journal_write_data=False)
NO_LIMBO = {"limbo": False, "crash_loses": CrashLoses.EVERYTHING}
GIVEN = NO_LIMBO | {"ensemble": 2, "entries": 3, "recoverers": 2, "duplicates": 1, "lost_bookies": 0}


@pytest.fixture(scope="module")
def long_story():
    """A schedule with many moves unrelated to its violation."""
    world, moves, violation = RandomSchedules(GIVEN).schedule(1207)
    shrunk = shrink(world, moves, violation)
    assert (len(moves), len(shrunk)) > (40, 20)
    return world, shrunk, violation


def test_story_of_a_violation_is_no_longer_than_the_shortest_known(long_story):
    world, moves, violation = long_story
    known = Exhaustive(DISKS_LOST.without("limbo")).run()
    told_in, story = shortest(world, moves, violation.invariant, NO_LIMBO)
    state = told_in.initial
    for move in story:
        assert move in told_in.moves(state)
        state = told_in.apply(state, move)
    assert told_in.violation(state).invariant == violation.invariant == known.violation.invariant
    assert len(story) <= len(known.moves) < len(moves)


def test_options_given_by_the_user_are_kept(long_story, monkeypatch):
    monkeypatch.setattr(searched, "_STATES_MAX_IN_ALL", 3_000)
    world, moves, violation = long_story
    given = {"limbo", "ensemble", "write_quorum", "journal_write_data", "heals"}
    told_in, _ = shortest(world, moves, violation.invariant, given)
    for name in given:
        assert getattr(told_in.options, name) == getattr(world.options, name), name


def test_search_is_limited_to_the_options_that_the_story_used(long_story, monkeypatch):
    world, moves, _ = long_story
    used = used_options(world, moves)
    assert used.readers == used.replicators == 0 or world.options.readers or world.options.replicators
    for name in ("crashes", "losses", "duplicates", "entries", "recoverers", "spares", "hold_ups"):
        assert 0 <= getattr(used, name) <= getattr(world.options, name), name
    searched_options = []
    monkeypatch.setattr(searched, "_STATES_MAX_IN_ALL", 3_000)
    monkeypatch.setattr(
        searched, "Exhaustive", lambda options, **how: searched_options.append(options) or Exhaustive(options, **how)
    )
    shortest(world, moves, "none_of_this_name")
    assert len(searched_options) > 3
    for options in searched_options:
        assert (options.crashes, options.entries, options.duplicates) <= (used.crashes, used.entries, used.duplicates)
        assert options.ensemble_changes in (used.ensemble_changes, ChangeMode.OFF)


def test_search_for_one_invariant_ignores_others():
    found = Exhaustive(DISKS_LOST.without("limbo"), invariant="no_dirty_reads").run()
    assert found.finished and found.violation is None


def test_search_limited_to_short_stories_reports_not_finished():
    found = Exhaustive(DISKS_LOST.without("limbo"), moves_max=16).run()
    assert not found.finished and found.violation is None
    assert len(Exhaustive(DISKS_LOST.without("limbo"), moves_max=17).run().moves) == 17


@pytest.mark.parametrize("arguments", ["--random 50 --seed 1", "--exhaustive --ensemble 2 --write-quorum 2"])
def test_illegal_metadata_is_a_violation_with_a_story_and_not_a_bad_option(monkeypatch, arguments):
    right = LedgerMetadata.__post_init__

    def strict(metadata):
        right(metadata)
        if metadata.closed:
            raise ConfigurationError("a record that can't be")

    monkeypatch.setattr(LedgerMetadata, "__post_init__", strict)
    result = CliRunner().invoke(command_line(["simulate"]), ["simulate", *arguments.split()])
    assert result.exit_code == 1, result.output
    lines = result.stdout.splitlines()
    violation = json.loads(lines[-1])["violation"]
    assert violation["invariant"] == "no_machine_fails" and "a record that can't be" in violation["what"]
    assert any("its machine fails: ConfigurationError" in line for line in lines)


def test_failing_decision_of_a_bookie_is_a_violation(monkeypatch):
    monkeypatch.setattr("bookspark.lab.simulation.bookie.answer_last_add_confirmed", lambda *_: {}[0])
    found = Exhaustive(SimulationOptions(2, 2, 2)).run()
    assert found.violation.invariant == "no_machine_fails" and "KeyError" in found.violation.what


def test_event_unknown_to_a_machine_is_a_violation(monkeypatch):
    right = LedgerWriter.step

    def step(writer, event):
        return right(writer, event) if type(event).__name__ != "Close" else right(writer, object())

    monkeypatch.setattr(LedgerWriter, "step", step)
    found = Exhaustive(SimulationOptions(2, 2, 2)).run()
    assert found.violation.invariant == "no_machine_fails" and "IllegalEventError" in found.violation.what

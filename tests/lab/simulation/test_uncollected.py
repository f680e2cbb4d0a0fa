"""Searches without Python's cyclic garbage collector: it runs before and after them, and they leave little garbage."""

from __future__ import annotations

import gc

import pytest

from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.search.random_schedules import RandomSchedules
from bookspark.lab.simulation.search.uncollected import uncollected
from bookspark.lab.simulation.simulation_options import SimulationOptions


def test_garbage_collector_is_off_during_a_search_and_on_after_it():
    for search in (lambda: Exhaustive(SimulationOptions(2, 2, 2)).run(), lambda: RandomSchedules({}).run(20, seed=1)):
        collections = sum(generation["collections"] for generation in gc.get_stats())
        search()
        assert sum(generation["collections"] for generation in gc.get_stats()) - collections <= 2
        assert gc.isenabled()


def test_garbage_collector_that_was_off_stays_off():
    with uncollected():
        with uncollected():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_garbage_collector_is_on_again_after_an_error():
    with pytest.raises(ZeroDivisionError), uncollected():
        raise ZeroDivisionError
    assert gc.isenabled()


def test_random_schedules_leave_little_cyclic_garbage():
    schedules = RandomSchedules({})
    schedules.run(20, seed=1)
    gc.collect()
    with uncollected():
        steps = schedules.run(200, seed=20).steps
        unreachable = gc.collect()
    assert unreachable < steps / 10

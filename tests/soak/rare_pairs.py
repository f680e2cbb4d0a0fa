"""Finds the pairs of a machine's state and an event that random schedules rarely meet, and the options that reach them. It
runs as many schedules as there are rounds (8,000 by default), each with options and a world of its own. The first half
has no aims (``simulation.search.drawn_options``). Its result is written as the table ``rare_states`` to a file in the
current directory, to be copied into the tree. The second half runs without aims and with them: in how many schedules
did the ten rarest pairs of the first half occur? ``--first`` is the first block of seeds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from bookspark.lab.simulation.search.coverage import Pair, all_pairs, met_pairs
from bookspark.lab.simulation.search.drawn_options import option_word
from bookspark.lab.simulation.search.random_schedules import BLOCK, RandomSchedules
from bookspark.lab.simulation.simulation_options import SimulationOptions
from tests.soak._command import main

# A pair is rare if fewer than this part of the schedules meet it.
_RARE = 0.01
# A state that more than this part of the schedules reach needs no aim.
_OFTEN = 0.1
# This many schedules are added to those that reached a state with each value of an option, and to the expected ones.
_PRIOR = 2
# Weights are eighths of a power of two.
_WEIGHT_MIN, _WEIGHT_MAX = 6, 16

Schedule = tuple[SimulationOptions, frozenset[Pair]]


def measured(rounds: int, first: int, aims: bool) -> list[Schedule]:
    """The options of the schedules, and the pairs that each of them met."""
    found = []
    for number in range(first, first + rounds):
        world, _, violation = RandomSchedules({}, aims=aims).schedule(number * BLOCK)
        assert violation is None, f"seed {number * BLOCK}: {violation}"
        found.append((world.options, met_pairs(world.met)))
    return found


def counted(schedules: list[Schedule]) -> Counter[Pair]:
    return Counter(pair for _, met in schedules for pair in met)


def table(schedules: list[Schedule]) -> dict[tuple[str, str], tuple[int, dict[str, dict[str, int]]]]:
    """The number of rare pairs of each state, and how much more often it was reached with each value of an option."""
    counts, many = counted(schedules), len(schedules)
    rare = Counter((pair.machine, pair.state) for pair in all_pairs() if counts[pair] <= many * _RARE)
    given = Counter((one.name, option_word(getattr(o, one.name))) for o, _ in schedules for one in fields(o))
    found = {}
    for state in sorted(rare):
        reached = [options for options, met in schedules if any(pair[:2] == state for pair in met)]
        if not 0 < len(reached) <= many * _OFTEN:
            continue
        hits = Counter((one.name, option_word(getattr(o, one.name))) for o in reached for one in fields(o))
        weights: dict[str, dict[str, int]] = {}
        for (name, word), times in sorted(given.items()):
            expected = times * len(reached) / many
            weight = round(8 * math.log2((hits[name, word] + _PRIOR) / (expected + _PRIOR)))
            if times < many and abs(weight) >= _WEIGHT_MIN:
                weights.setdefault(name, {})[word] = max(-_WEIGHT_MAX, min(_WEIGHT_MAX, weight))
        found[state] = (rare[state], weights)
    return found


def rare_pairs(rounds: int, first: int = 0) -> Mapping[str, object]:
    half = rounds // 2
    learnt = measured(half, first, aims=False)
    lines = "".join(f"    {state!r}: {told!r},\n" for state, told in table(learnt).items())
    Path("rare_states.txt").write_text(f"RARE = {{\n{lines}}}\n")
    without, with_aims = (counted(measured(half, first + half, aims=aims)) for aims in (False, True))
    before = counted(learnt)
    # Chosen by schedules that are not among the compared ones.
    rarest = sorted(before, key=lambda pair: (before[pair], pair))
    for pair in rarest[:20]:
        print(f"{' '.join(pair)}: {before[pair]} before; {without[pair]} without aims, {with_aims[pair]} with them")
    ten = rarest[:10]
    return {
        "schedules": half,
        "pairs_met_without_aims": len(without),
        "pairs_met_with_aims": len(with_aims),
        "ten_rarest_without_aims": sum(without[pair] for pair in ten),
        "ten_rarest_with_aims": sum(with_aims[pair] for pair in ten),
    }


if __name__ == "__main__":
    main(__doc__ or "", rare_pairs, 8000)

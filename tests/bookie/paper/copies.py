"""Copies of a control log, each as the set of writes that it has, or may have had.

Law: "a whole copy takes the place of a damaged one only if it goes at least as far as that one went", and "a copy stands for none
that it was used without" (``control_copies``). Two directories that were used each without the other have lossy boots of the same
numbers.
"""

from __future__ import annotations

from random import Random

from bookspark.protocol.bookie.control_copies import (
    NUMBERS_LEFT_OUT,
    ControlCopy,
    CopiesTell,
    judge_copies,
    left_behind,
    used_apart,
)
from tests.autorecovery.schedules.truth import holds

_WRITES = 5
_LEFT_OUT = 4294967296


def judge(random: Random) -> None:
    copies = [_a_copy(random, number) for number in range(random.randrange(5))]
    random.shuffle(copies)
    told, expected = judge_copies(iter(copies)), _told(copies)
    holds(told is expected, f"{copies} tell {told}, and it is {expected}")
    apart = {
        one.directory
        for one in copies
        for other in copies
        if other.directory in one.without and one.directory in other.without
    }
    holds(used_apart(iter(copies)) == apart, f"directories were used apart, and others are told: {copies}")
    _leave_behind(random, copies)


def _a_copy(random: Random, number: int) -> ControlCopy:
    without = frozenset(one for one in range(4) if one != number and random.random() < 0.2)
    if random.random() < 0.5:
        return ControlCopy(True, at := random.randrange(_WRITES), at, without, number)
    reaches = None if random.random() < 0.2 else random.randrange(_WRITES)
    return ControlCopy(False, 0, reaches, frozenset(), number)


def _told(copies: list[ControlCopy]) -> CopiesTell:
    whole = [copy for copy in copies if copy.whole]
    if not copies:
        # A bookie that starts for the first time.
        return CopiesTell.ALL
    if not whole:
        return CopiesTell.NOTHING
    for damaged in copies:
        if damaged.whole:
            continue
        used_with_it = [copy for copy in whole if damaged.directory not in copy.without]
        may_have_had = None if damaged.reaches is None else set(range(1, damaged.reaches + 1))
        if may_have_had is None or not any(may_have_had <= set(range(1, one.complete_to + 1)) for one in used_with_it):
            return CopiesTell.TOO_LITTLE
    return CopiesTell.ALL


def _leave_behind(random: Random, copies: list[ControlCopy]) -> None:
    """A directory that is used alone goes on from a number that leaves as many out. Nobody may have used that one."""
    holds(NUMBERS_LEFT_OUT == _LEFT_OUT, "as many numbers are left out as ever were")
    written_to = random.choice((_LEFT_OUT, _LEFT_OUT + 2, _LEFT_OUT + _WRITES)) + random.randrange(-1, 2)
    behind = {copy.directory for copy in copies if copy.complete_to + _LEFT_OUT in range(written_to + 1)}
    holds(left_behind(iter(copies), written_to) == behind, "a directory counts as left behind, or does not")

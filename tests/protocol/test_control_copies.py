"""The state that several copies of a control log prove together."""

from __future__ import annotations

import pytest

from bookspark.protocol.bookie.control_copies import (
    NUMBERS_LEFT_OUT,
    ControlCopy,
    CopiesTell,
    judge_copies,
    left_behind,
    used_apart,
)

WHOLE_5, WHOLE_7 = ControlCopy(True, 5, 5), ControlCopy(True, 7, 7)


def damaged(reaches):
    return ControlCopy(False, 0, reaches)


@pytest.mark.parametrize(
    ("copies", "tell"),
    [
        ([], CopiesTell.ALL),
        ([WHOLE_5], CopiesTell.ALL),
        ([WHOLE_5, WHOLE_7], CopiesTell.ALL),
        ([damaged(7), WHOLE_7], CopiesTell.ALL),
        ([damaged(5), WHOLE_5, WHOLE_7], CopiesTell.ALL),
        ([damaged(6), WHOLE_5], CopiesTell.TOO_LITTLE),
        ([damaged(6), damaged(8), WHOLE_5, WHOLE_7], CopiesTell.TOO_LITTLE),
        ([damaged(None), WHOLE_7], CopiesTell.TOO_LITTLE),
        ([damaged(0)], CopiesTell.NOTHING),
        ([damaged(5), damaged(5)], CopiesTell.NOTHING),
        # A number is missing, so this copy is not complete up to its last number.
        ([damaged(7), ControlCopy(True, 5, 8)], CopiesTell.TOO_LITTLE),
        # This copy was used without the damaged one's directory, and perhaps the other way round: the numbers prove nothing.
        ([damaged(7), ControlCopy(True, 7, 7, frozenset({0}), 1)], CopiesTell.TOO_LITTLE),
        (
            [damaged(7), ControlCopy(True, 7, 7, frozenset({0}), 1), ControlCopy(True, 7, 7, directory=2)],
            CopiesTell.ALL,
        ),
        ([damaged(7), ControlCopy(True, 7, 7, frozenset({2}), 1)], CopiesTell.ALL),
    ],
)
def test_whole_copy_replaces_a_damaged_copy_only_with_enough_reach(copies, tell):
    assert judge_copies(copies) is tell
    assert judge_copies(reversed(copies)) is tell


@pytest.mark.parametrize(
    ("without", "apart"),
    [
        ([(), ()], []),
        ([(1,), ()], []),
        ([(1,), (0,)], [0, 1]),
        # Both were used together, without the third.
        ([(2,), (2,), ()], []),
        ([(2,), (2,), (0,)], [0, 2]),
        ([(1,), (2,), (0,)], []),
    ],
)
def test_directories_were_used_apart_if_each_was_used_without_the_other(without, apart):
    copies = [ControlCopy(True, 5, 5, frozenset(others), number) for number, others in enumerate(without)]
    assert used_apart(copies) == set(apart)


@pytest.mark.parametrize(("written_to", "behind"), [(9, ()), (NUMBERS_LEFT_OUT + 4, ()), (NUMBERS_LEFT_OUT + 5, (1,))])
def test_full_directory_is_left_behind_before_its_numbers_are_used_twice(written_to, behind):
    assert left_behind([ControlCopy(True, 5, 5, directory=1)], written_to) == frozenset(behind)

"""The sizes of a log's ledgers while bookies are missing."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from bookspark.protocol.logs.log_options import LogOptions


def striping_over(bookies: int, opportunistic: bool = False) -> Callable[[int, int], int]:
    """Ensemble sizes of a client with ``bookies`` that placement can use; ``opportunistic``: its opportunistic_striping."""

    def possible(ensemble_size: int, write_quorum: int) -> int:
        size_min = write_quorum if opportunistic else ensemble_size
        return min(ensemble_size, bookies) if bookies >= size_min else 0

    return possible


@pytest.mark.parametrize(
    ("size", "bookies", "next_size"),
    [(2, 2, None), (2, 3, (3, 3)), (2, 4, (3, 3)), (2, 5, (5, 3)), (3, 4, None), (3, 5, (5, 3)), (5, 9, None)],
    ids=str,
)
def test_writer_goes_on_in_the_largest_ledger_that_is_possible_and_larger_than_its_own(size, bookies, next_size):
    assert LogOptions(5, 3, 2).larger_than(size, striping_over(bookies)) == next_size


def test_opportunistic_striping_makes_no_ledger_of_the_same_size():
    options = LogOptions(5, 3, 2)
    assert options.larger_than(4, striping_over(4, True)) is None
    assert options.larger_than(3, striping_over(4, True)) == (5, 3)


def test_looks_for_a_larger_ledger_end():
    """Each next ledger has more bookies than the one before, whatever placement can give at each look."""
    for size, bookies, opportunistic in product(range(2, 6), range(8), (False, True)):
        possible = striping_over(bookies, opportunistic)
        if (wanted := LogOptions(5, 3, 2).larger_than(size, possible)) is not None:
            assert possible(*wanted) > size

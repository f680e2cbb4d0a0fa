"""Recent duration of an operation."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from bookspark.store.bookie.traffic import Lately


def took(*times: tuple[float, float]) -> Lately:
    lately = Lately()
    for begun, ended in times:
        lately.begins(begun)
        lately.ends(ended)
    return lately


def every_second(seconds: Iterable[float]) -> Lately:
    return took(*((at, at + one) for at, one in enumerate(seconds)))


def test_single_slow_operation_does_not_raise_the_median() -> None:
    assert Lately().seconds(0.0) is None
    assert took((0.0, 9.0)).seconds(9.0) is None and took((0.0, 9.0), (9.0, 18.0)).seconds(18.0) is None
    assert every_second([0.01] * 15 + [0.9]).seconds(16.0) == pytest.approx(0.01)


def test_recent_duration_is_the_median_of_the_last_minute() -> None:
    slow = every_second([0.01] * 100 + [0.9] * 9)
    assert slow.seconds(110.0) == pytest.approx(0.9)
    assert slow.seconds(169.5) is None, "two are of the last minute"
    assert slow.seconds(200.0) is None


def test_hanging_operation_counts_while_it_hangs() -> None:
    hangs = every_second([0.01] * 10)
    hangs.begins(10.0)
    assert hangs.seconds(14.0) == pytest.approx(0.01)
    assert hangs.seconds(40.0) == 30.0
    hangs.ends(41.0)
    assert hangs.seconds(42.0) == pytest.approx(0.01)


def test_end_without_a_beginning_is_ignored() -> None:
    lately = every_second([0.01] * 3)
    lately.ends(99.0)
    assert lately.seconds(5.0) == pytest.approx(0.01)

"""A cluster of a thousand bookies is upgraded, shrunk and grown by the planner that runs. ``python -m
tests.protocol.changes_at_scale 1000 1000000`` does all of it with a million ledgers."""

from __future__ import annotations

import pytest

from tests.protocol.changes_at_scale import grow, shrink, upgrade

COUNTS = 1000, 200_000


@pytest.mark.timeout(1800)
def test_an_upgrade_of_a_thousand_bookies() -> None:
    figures = upgrade(*COUNTS)
    assert figures.taken_down == 1000 and figures.moved_bytes == 0
    assert figures.least_copies_over_ack_quorum >= 0


@pytest.mark.timeout(1800)
def test_a_hundred_of_a_thousand_bookies_leave() -> None:
    figures, ratio = shrink(*COUNTS)
    assert ratio <= 1.1 and figures.most_bytes <= 1.2


@pytest.mark.timeout(1800)
def test_a_hundred_new_bookies_beside_a_thousand() -> None:
    figures, ratio = grow(*COUNTS)
    assert ratio <= 1.1 and figures.most_bytes / figures.fewest_bytes <= 1.2

"""One schedule of each thing on paper."""

from __future__ import annotations

from random import Random

from tests.logs.paper import counts, index, lane


def run(seed: int) -> None:
    """Raises AssertionError, or what the protocol's functions raise."""
    random = Random(seed)
    lane.live(random)
    index.live(random)
    counts.count(random)

"""One schedule of each thing on paper."""

from __future__ import annotations

from random import Random

from tests.bookie.paper import answers, copies, garbage, lossy_boots, one_ledger


def run(seed: int) -> None:
    """Raises AssertionError, or what the protocol's functions raise."""
    random = Random(seed)
    for _ in range(3):
        one_ledger.live(random)
    answers.check_acks()
    copies.judge(random)
    garbage.collect(random)
    garbage.lose_records(random)
    lossy_boots.boot(random)

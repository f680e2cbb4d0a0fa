"""Close racing an append; ``scripts/soak close-race`` does it 1,000 times."""

from __future__ import annotations

from tests.soak.close_race import races

ROUNDS = 50


def test_what_returned_is_in_the_ledger_and_what_raised_is_not(local_cluster):
    with local_cluster.bookkeeper() as writer, local_cluster.bookkeeper() as recoverer:
        counts = races(writer, recoverer, ROUNDS)
    assert counts["rounds"] == ROUNDS
    assert counts["closed by its writer"] > 0 and counts["raised"] > 0 and counts["returned"] > 0

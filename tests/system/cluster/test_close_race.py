"""Close racing an append; ``scripts/soak close-race`` does it 1,000 times."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.awaiting import SECONDS_MAX
from tests.soak.close_race import races

ROUNDS = 50


def test_what_returned_is_in_the_ledger_and_what_raised_is_not(local_cluster):
    with local_cluster.bookkeeper() as writer, local_cluster.bookkeeper() as recoverer:
        counts = races(writer, recoverer, ROUNDS)
    assert counts["rounds"] == ROUNDS
    assert counts["closed by its writer"] > 0 and counts["raised"] > 0 and counts["returned"] > 0


def test_an_append_that_is_just_being_taken_in_is_part_of_the_ledger_that_is_closed(local_cluster, monkeypatch):
    """Between the look whether the handle is closed and the queue: a close that went past would leave it without an end."""
    with local_cluster.bookkeeper() as client, ThreadPoolExecutor(1) as pool:
        ledger = client.create_ledger()
        ledger.append(b"0")
        outgoing, closing = ledger._driver.outgoing, []
        put = outgoing.put

        def slow_put(items):
            closing.append(pool.submit(ledger.close))
            with pytest.raises(TimeoutError):
                closing[0].result(1.0)
            put(items)

        monkeypatch.setattr(outgoing, "put", slow_put)
        future = ledger.append_async(b"1")
        assert future.result(SECONDS_MAX) == 1
        closing[0].result(SECONDS_MAX)
        assert ledger.metadata.last_entry_id == 1

"""Close racing an append; ``scripts/soak close-race`` does it 1,000 times."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.awaiting import SECONDS_MAX
from tests.soak.close_race import races

ROUNDS = 50


def test_ledger_closed_during_appends_holds_exactly_the_successful_ones(local_cluster):
    with local_cluster.bookkeeper() as writer, local_cluster.bookkeeper() as recoverer:
        counts = races(writer, recoverer, ROUNDS)
    assert counts["rounds"] == ROUNDS
    assert counts["closed by its writer"] > 0 and counts["raised"] > 0 and counts["returned"] > 0


def test_close_waits_for_an_append_that_is_being_queued(local_cluster, monkeypatch):
    """The append has checked that the handle is open and is not in the queue yet: a close at that moment would never end it."""
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

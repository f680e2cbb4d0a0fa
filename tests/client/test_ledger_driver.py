"""A ledger's driver over connections to stub bookies: what is sent again, and what becomes of a ledger that failed."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from bookspark.client.config import client_config
from bookspark.client.ledger_driver import LedgerDriver
from bookspark.client.runtime import Runtime
from bookspark.protocol.actions import NoBookies
from bookspark.protocol.errors import NotEnoughBookiesError
from bookspark.protocol.ledger_metadata import Fragment, LedgerMetadata, Replication
from tests.client.test_connections import MIB, SECONDS, Bench

BOOKIES = ("b1", "b2", "b3")


def no_bookies(metadata, action):
    return NoBookies(NotEnoughBookiesError("there are no others"))


class DriverBench(Bench):
    """With the drivers of a real client, of ledgers on b1, b2 and b3; there are no other bookies."""

    def open(self, **options):
        self.io.stop()
        self.config = client_config(connect_timeout_seconds=2.0, **options)
        self.runtime = Runtime(lambda: self.store, self.config)
        self.io, self.connections = self.runtime.io, self.runtime.connections

    def driver(self, ledger_id=1, replication=Replication.BEST_EFFORT):
        client = SimpleNamespace(config=self.config, runtime=self.runtime, answer_from_store=no_bookies)
        metadata = LedgerMetadata(ledger_id, 3, 3, 2, (Fragment(0, BOOKIES),), replication=replication)
        made = LedgerDriver(client, metadata, 0, b"")
        self.runtime.add_writer(made)
        self.in_loop(made.want_bookies)
        return made

    def append(self, driver, *payloads):
        for payload in payloads:
            driver.outgoing.put([payload])
        self.io.submit(driver.pump)

    def close(self):
        self.runtime.close()
        self.connections = None
        super().close()


@pytest.fixture
def bench():
    made = DriverBench()
    yield made
    made.close()


def test_a_bookie_that_is_back_gets_what_it_missed_as_fast_as_it_takes_it_in(bench):
    """More was pending than may wait for a bookie: sent at once, it cut the bookie off, again and again."""
    for bookie_id in BOOKIES[1:]:
        bench.bookie(bookie_id)
    bench.open(bookie_bytes_queued_max=16 * MIB)
    driver = bench.driver(replication=Replication.GUARANTEED)
    bench.append(driver, *[bytes(MIB)] * 60)
    assert driver.acknowledged.wait(lambda: driver.acknowledged.value == 59, SECONDS)
    assert driver.writer.last_add_fully_replicated == -1
    back = bench.bookie("b1", greets_only=True)
    greeted = bench.connection("b1")
    assert bench.queued_bytes("b1") <= 16 * MIB
    back.taking.set()
    assert driver.acknowledged.wait(lambda: driver.writer.last_add_fully_replicated == 59, SECONDS)
    assert greeted.lost is None

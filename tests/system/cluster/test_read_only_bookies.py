"""A bookie that turns read-only while ledgers are written to it, because its disk is full."""

from __future__ import annotations

import os

import pytest

pytestmark = pytest.mark.cluster(
    bookies=4, entry_log_bytes_max=256 << 10, directory_bytes_max=4 << 20, disk_check_interval_seconds=0.2
)


def test_bookie_that_turns_read_only_is_replaced(local_cluster):
    client = local_cluster.bookkeeper()
    ledger = client.create_ledger(ack_quorum=3)
    ledger.append(b"before")
    while True:  # until the filler's bookie is in the ensemble of the ledger
        filler = client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        (full,) = filler.metadata.last_fragment.ensemble
        if full in ledger.metadata.last_fragment.ensemble:
            break
        filler.close()
    written = []
    while filler.metadata.last_fragment.ensemble == (full,):
        written += (batch := [os.urandom(16_000) for _ in range(10)])  # incompressible
        filler.append_batch(batch)
    assert ledger.append(b"after") == 1
    assert full not in ledger.metadata.last_fragment.ensemble
    assert [fragment.first_entry_id for fragment in ledger.metadata.fragments] == [0, 1]
    ledger.close()
    filler.close()
    assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read()] == [b"before", b"after"]
    entries = [entry.payload for entry in client.open_ledger(filler.ledger_id).read()]
    assert entries == written, "the filler went on at another bookie"
    client.close()

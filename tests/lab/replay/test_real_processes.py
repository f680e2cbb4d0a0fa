"""The recorded decisions of real bookies, a client and autorecovery equal those of the pure code."""

from __future__ import annotations

from collections import Counter

import pytest

from bookspark.lab.replay.run import Replay
from bookspark.local import LocalCluster
from bookspark.store.decisions.recorder import end_recording
from tests.awaiting import SECONDS_MAX, await_that


@pytest.mark.acceptance
def test_decisions_of_real_processes_are_replayed_without_a_difference(record, new_chroot):
    folder = str(record)
    autorecovery = {"client": {"record_decisions": folder}, "lost_bookie_delay_seconds": 0.0, "poll_seconds": 0.2}
    with (
        LocalCluster(4, zookeeper=new_chroot(), autorecovery=autorecovery, record_decisions=folder) as cluster,
        cluster.bookkeeper(record_decisions=folder) as client,
    ):
        ledger = client.create_ledger(3, 3, 2)
        for k in range(20):
            ledger.append(b"entry %d" % k)
        ledger.close()
        striped = client.create_ledger(3, 2, 2)
        striped.append_batch([b"a"])
        follower = client.open_ledger_no_recovery(striped.ledger_id)
        # The poll starts before the append, or it would not have to wait.
        polled = follower.read_last_add_confirmed_and_entry_async(1, SECONDS_MAX)
        striped.append(b"b")
        assert polled.result(SECONDS_MAX)[0] == 1
        follower.read_last_add_confirmed()
        given = client.create_ledger_adv()
        given.append_at_async(1, b"one")
        given.append_at_async(0, b"zero").result(SECONDS_MAX)
        # This ledger is not closed by its writer, so it is recovered.
        assert [entry.payload for entry in client.open_ledger(striped.ledger_id).read(0, 1)] == [b"a", b"b"]
        lost = ledger.metadata.last_fragment.ensemble[0]
        next(one for one in cluster.bookies if one.bookie_id == lost).kill()
        await_that(lambda: lost not in client.metadata.read_ledger(ledger.ledger_id).value.bookies())
    end_recording()
    result = Replay(record).run()
    assert (result.differences, result.broken, result.lost) == ([], [], 0)
    kinds: Counter[str] = Counter()
    for counts in result.counts:
        kinds.update(counts.by_kind)
    assert kinds.keys() >= {
        "BookieLedger",
        "GivenIds",
        "LacRead",
        "LacWait",
        "Lease",
        "LedgerRecovery",
        "LedgerReplication",
        "LedgerWriter",
        "LostBookies",
        "RangeRead",
    }
    processes = Counter(one.process.partition("-")[0] for one in result.counts)
    assert processes == {"bookie": 4, "test": 1, "autorecovery": 1}
    # Only the killed bookie's record is unclean.
    assert sum(not one.clean for one in result.counts) == 1

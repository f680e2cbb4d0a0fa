"""An exception in a commit thread ends its bookie: the reason is the last line of the log, below the stack trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.errors import BookKeeperError
from bookspark.local import LocalCluster
from bookspark.servers.daemon import launch
from tests.awaiting import await_that
from tests.system.cluster.broken_daemon import BREAK, PLACE


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("group", "can't be written to any more: RuntimeError: on purpose"),
        ("thread", "ended with MemoryError: on purpose"),
    ],
)
def test_exception_in_the_commit_thread_ends_the_bookie_with_the_reason(new_chroot, monkeypatch, place, why):
    with LocalCluster(bookies=1, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as client:
        (bookie,) = cluster.bookies
        bookie.stop()
        with monkeypatch.context() as patch:
            patch.setattr(launch, "DAEMON", "tests.system.cluster.broken_daemon")
            patch.setenv(PLACE, place)
            bookie.start()
        ledger = client.create_ledger(ensemble_size=1, write_quorum=1, ack_quorum=1)
        ledger.append(b"well")
        with pytest.raises(BookKeeperError):
            ledger.append(BREAK)
        await_that(lambda: bookie.pid is None)
        text = Path(bookie.directories[0], "bookie.log").read_text()
        last = text.splitlines()[-1]
        assert last.startswith("bookspark bookie: ") and why in last and "start the bookie again" in last
        assert "Traceback" in text
        # Its process is gone; kill() closes the connection to its lease.
        bookie.kill()
        bookie.start()
        assert [entry.payload for entry in client.open_ledger(ledger.ledger_id).read(0, 0)] == [b"well"]

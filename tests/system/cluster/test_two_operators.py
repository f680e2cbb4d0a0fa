"""An operator's process that stands still before a step of a change, and a second operator who follows meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark.local import LocalBookie, LocalCluster
from bookspark.operations.changes.applying import Applying, Moving
from bookspark.operations.changes.change_record import ChangeState, Kept, new_record
from bookspark.protocol.changes.steps import Move
from bookspark.protocol.changes.wanted import Progress, Wanted
from bookspark.store.client import BookKeeper
from tests.awaiting import SECONDS_MAX
from tests.local_hands import LocalHands
from tests.system.cluster.test_changes import QUICK, filled, five, read_only
from tests.system.cluster.test_changes import client as client

pytestmark = pytest.mark.acceptance

__all__ = ["client", "five"]


class Sleeper:
    """``bookspark cluster apply`` for one bookie. It stands still once this is made."""

    def __init__(self, where: str, cluster: LocalCluster, bookie: LocalBookie, folder: Path) -> None:
        settings = folder / "settings.toml"
        settings.write_text(
            "[client]\nmetadata_session_timeout_seconds = 4.0\n[changes]\npoll_seconds = 0.2\nconfirm_seconds = 0.2\n"
        )
        self.environment = {**os.environ, "BOOKSPARK_ZOOKEEPER": cluster.zookeeper, "BOOKSPARK_CONFIG": str(settings)}
        module = [sys.executable, "-m", "tests.system.cluster.sleeping_operator", where]
        command = [*module, "cluster", "apply", "--restart", bookie.bookie_id, "--yes"]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, env=self.environment, text=True)
        stopped = os.waitid(os.P_PID, self._process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        assert stopped is not None and stopped.si_code == os.CLD_STOPPED

    def wake(self) -> tuple[int, str]:
        """Let it go on. Returns its exit status and its messages since the beginning."""
        self._process.send_signal(signal.SIGCONT)
        _, told = self._process.communicate(timeout=SECONDS_MAX)
        return self._process.returncode, told


def test_operator_whose_change_was_given_up_meanwhile_leaves_no_bookie_read_only(
    five: LocalCluster, client: BookKeeper, tmp_path: Path
) -> None:
    """The bookie was made read-only after the give-up, and stayed so."""
    filled(client, 2)
    sleeper = Sleeper("switch", five, five.bookies[0], tmp_path)
    command = [sys.executable, "-m", "bookspark", "cluster", "give-up"]
    subprocess.run(command, env=sleeper.environment, check=True, timeout=SECONDS_MAX)
    status, told = sleeper.wake()
    assert status == 2 and "another process applies changes of this cluster by now" in told
    assert read_only(client, five) == []


def test_operator_asks_for_no_restart_after_another_operator_went_on(
    five: LocalCluster, client: BookKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second bookie was down when the first operator's process restarted its own."""
    filled(client, 2)
    sleeper = Sleeper("request", five, five.bookies[0], tmp_path)
    other, woken = five.bookies[1], []
    start = other.start

    def woken_while_down() -> None:
        woken.append(sleeper.wake())
        start()

    with Applying(client, LocalHands(five.bookies), QUICK) as second:
        assert second.run().state is ChangeState.COMPLETE
        monkeypatch.setattr(other, "start", woken_while_down)
        second.begin(Wanted(restart=frozenset([other.bookie_id])))
        assert second.run().state is ChangeState.COMPLETE
    [(status, told)] = woken
    assert status == 2 and "another process applies changes of this cluster by now" in told
    assert "do this now" not in told


def test_copies_move_only_while_the_record_of_their_change_stands(five: LocalCluster, client: BookKeeper) -> None:
    """A move that began before a give-up could name a bookie that the next change had just stopped."""
    [ledger_id] = filled(client, 1)
    before = client.get_ledger_metadata(ledger_id)
    ensemble = before.last_fragment.ensemble
    target = next(one.bookie_id for one in five.bookies if one.bookie_id not in ensemble)
    move = Move(ledger_id, 0, ensemble[0], target, 0)
    first, second = Kept(client.metadata), Kept(client.metadata)
    first.write(new_record(Wanted(balance=True), Progress({}), 0))
    stale = first.under
    second.own()
    with Applying(client, LocalHands(five.bookies), QUICK) as applying:
        moving: Moving = applying._moving
        assert "another process applies" in moving.move([move], (), stale)[ledger_id]
        assert client.get_ledger_metadata(ledger_id) == before
        assert moving.move([move], (), second.under) == {}
    assert client.get_ledger_metadata(ledger_id).last_fragment.ensemble == (target, *ensemble[1:])

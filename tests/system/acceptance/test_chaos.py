"""Chaos, recorded and judged in three ways. ``tests/system/cluster`` has some seconds of it, and ``scripts/soak chaos`` an
hour."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookspark.lab.replay.run import Replay
from tests.histories.porcupine.judge import built
from tests.soak import linearizability
from tests.system.cluster.chaos_run import SECONDS_MAX, chaos_for

SECONDS = 10


@pytest.mark.timeout(SECONDS_MAX + 120)
def test_chaos_violates_nothing_and_pure_code_replays_its_decisions(tmp_path: Path) -> None:
    record = tmp_path / "decisions"
    told = chaos_for(SECONDS, tmp_path, "--record", str(record))
    assert sum(told["injected"].values()) > 0
    # A busy machine performs few operations in this time, but some of each kind.
    assert min(told["checked"][kind] for kind in ("acked", "read", "lac", "closed")) > 0
    result = Replay(record).run()
    assert (result.differences, result.broken, result.lost) == ([], [], 0)
    assert result.decisions > 0
    assert {one.process.partition("-")[0] for one in result.counts} == {"bookie", "client"}


@pytest.mark.skipif(built() is None, reason="needs Go, and the module github.com/anishathalye/porcupine")
@pytest.mark.timeout(SECONDS_MAX + 20)
def test_porcupine_accepts_the_histories_of_clients_under_chaos() -> None:
    result = linearizability.run(1, 0, 4)
    assert result["violations"] == 0
    operations = result["operations"]
    assert isinstance(operations, int) and operations > 0

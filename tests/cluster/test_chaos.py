"""A minute of chaos, and that chaos finds what is wrong. ``scripts/soak chaos`` goes on for an hour."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bookspark.client.network.ledger_requests import LedgerRequests
from bookspark.testing.chaos import Chaos
from tests.processes import await_no_process

_MINUTE = 60
_SECONDS_MAX = 280


@pytest.mark.timeout(_SECONDS_MAX + 20)
def test_a_minute_of_chaos_violates_nothing(tmp_path):
    command = [sys.executable, "-m", "bookspark.cli.main", "chaos", "--seconds", str(_MINUTE)]
    run = subprocess.run(
        command, capture_output=True, text=True, timeout=_SECONDS_MAX, cwd=Path.cwd(), env={"TMPDIR": str(tmp_path)}
    )
    print(run.stdout)
    assert run.returncode == 0, run.stdout + run.stderr
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["violations"] == 0
    assert sum(result["injected"].values()) >= 10
    checked = result["checked"]
    assert min(checked["acked"], checked["read"]) > 1000 and min(checked["lac"], checked["closed"]) > 100
    assert checked["appended"] == checked["acked"] + checked["failed"], "every append ends one way or the other"
    await_no_process(tmp_path)


def test_chaos_finds_out_that_recovery_does_not_fence(monkeypatch):
    """A check that can't fail checks nothing: without fences a writer goes on behind the end of its ledger."""
    read, read_lac = LedgerRequests.read, LedgerRequests.read_lac

    def unfenced_read(self, action, *more, **named):
        read(self, replace(action, fence=False), *more, **named)

    def unfenced_read_lac(self, action, *more, **named):
        read_lac(self, replace(action, fence=False), *more, **named)

    monkeypatch.setattr(LedgerRequests, "read", unfenced_read)
    monkeypatch.setattr(LedgerRequests, "read_lac", unfenced_read_lac)
    result = Chaos(seconds=_SECONDS_MAX, seed=1, faults_at_once=0).run()
    # Whichever is seen first: what was acknowledged is not in the closed ledger, or what was confirmed or read is beyond its end.
    seen_first = "in the closed ledger|closed at or above what was confirmed|end of (the|a) closed ledger"
    assert re.search(seen_first, result.violations[0]), result.violations[0]
    assert result.seconds < _SECONDS_MAX, "it stops at the first one"
    assert any("closed ledger" in line for line in result.excerpt)

"""The chaos test detects a planted defect; ``tests/system/acceptance`` runs a minute of it."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from bookspark.store.client.network.ledger_requests import LedgerRequests
from bookspark.testing.chaos import Chaos
from tests.system.cluster.chaos_run import SECONDS_MAX


@pytest.mark.acceptance
def test_chaos_detects_recovery_without_fencing(monkeypatch):
    """A check that can't fail checks nothing: without fences a writer appends beyond the end of its closed ledger."""
    read, read_lac = LedgerRequests.read, LedgerRequests.read_lac

    def unfenced_read(self, action, *more, **named):
        read(self, replace(action, fence=False), *more, **named)

    def unfenced_read_lac(self, action, *more, **named):
        read_lac(self, replace(action, fence=False), *more, **named)

    monkeypatch.setattr(LedgerRequests, "read", unfenced_read)
    monkeypatch.setattr(LedgerRequests, "read_lac", unfenced_read_lac)
    result = Chaos(seconds=SECONDS_MAX, seed=1, faults_at_once=0).run()
    # Either violation may come first: an acknowledged entry is missing in the closed ledger, or a confirmed or read entry is
    # beyond its end.
    seen_first = "in the closed ledger|closed at or above what was confirmed|end of (the|a) closed ledger"
    assert re.search(seen_first, result.violations[0]), result.violations[0]
    assert result.seconds < SECONDS_MAX, "it stops at the first one"
    assert any("closed ledger" in line for line in result.excerpt)

"""Output and exit status of ``bookspark chaos``; the runs themselves are tested in ``tests/system/cluster``."""

from __future__ import annotations

import json

import pytest

from bookspark.testing.chaos import Chaos, ChaosResult

RESULT = ChaosResult(7, 1.5, 3, {"kill": 2}, {"LedgerFencedError": 1}, {"acked": 5, "read": 9}, [], [])


@pytest.fixture
def result(monkeypatch):
    """The faked results of the run; a test may replace the first."""
    results = [RESULT]

    def run(self, progress):
        progress(20.0, results[0])
        return results[0]

    monkeypatch.setattr(Chaos, "run", run)
    return results


def test_clean_run_reports_its_faults_and_checked_events(bookspark, result):
    outcome = bookspark("chaos", "--seed", "7")
    assert outcome.status == 0
    assert "injected: kill 2\n" in outcome.text
    assert "events checked: acked 5, read 9\n" in outcome.text
    assert "20 s: 2 faults, 3 ledgers, 5 entries acknowledged" in outcome.text
    document = json.loads(outcome.text.splitlines()[-1])
    assert (document["violations"], document["seed"], document["bookies"]) == (0, 7, 5)


def test_violation_exits_with_status_1_and_prints_the_history(bookspark, result):
    result[0] = RESULT._replace(violations=["the LAC never goes back: …"], excerpt=["first line", "second line"])
    outcome = bookspark("chaos")
    assert outcome.status == 1
    assert "VIOLATION: the LAC never goes back" in outcome.text
    assert "first line\nsecond line\n" in outcome.text
    assert json.loads(outcome.text.splitlines()[-1])["violations"] == 1


def test_too_few_bookies_for_an_ensemble_are_refused(bookspark):
    assert bookspark("chaos", "--bookies", "4").status == 2

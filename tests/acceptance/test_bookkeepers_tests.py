"""Some of BookKeeper's own tests pass on our bookies; ``scripts/peers bookkeeper-tests`` runs all (docs/compatibility.md)."""

from __future__ import annotations

import pytest

from tests.peers.bookkeeper_tests.running import Judge

pytestmark = pytest.mark.timeout(1200)
CLASSES = ("client.TestReadEntryListener", "client.TestBatchedRead")


def test_bookkeepers_tests_of_reading_pass() -> None:
    judge = Judge()
    for name in CLASSES:
        run = judge.run(name, 500)
        assert run.tests
        assert [test for test in run.tests if test.outcome != "passed"] == [], f"see {judge.logs}"

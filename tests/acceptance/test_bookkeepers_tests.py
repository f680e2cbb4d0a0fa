"""One class each of BookKeeper's and DistributedLog's own tests passes on our bookies. ``scripts/peers bookkeeper-tests`` and
``scripts/peers distributedlog-tests`` run all (docs/compatibility.md)."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from tests.awaiting import await_that
from tests.peers.bookkeeper_tests.__main__ import TESTS as BOOKKEEPERS
from tests.peers.distributedlog_tests.__main__ import TESTS as DISTRIBUTEDLOGS
from tests.peers.java_tests.running import Judge, PeerTests

pytestmark = pytest.mark.timeout(1200)


@pytest.mark.parametrize(
    ("tests", "classes"),
    [
        (BOOKKEEPERS, ("client.TestBatchedRead",)),
        (DISTRIBUTEDLOGS, ("bk.TestLedgerAllocator",)),
    ],
    ids=[BOOKKEEPERS.name, DISTRIBUTEDLOGS.name],
)
def test_these_classes_of_tests_pass_and_leave_no_files(
    tests: PeerTests, classes: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("JAVA_TOOL_OPTIONS", f"-Djava.io.tmpdir={tmp_path} -XX:TieredStopAtLevel=1")
    judge = Judge(tests)
    for name in classes:
        run = judge.run(name, 500)
        assert run.tests
        assert [test for test in run.tests if test.outcome != "passed"] == [], f"see {judge.logs}"
    await_that(lambda: not list(tmp_path.iterdir()), what=lambda: f"{list(tmp_path.iterdir())} are removed")

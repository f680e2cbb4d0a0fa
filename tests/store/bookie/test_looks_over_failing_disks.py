"""Checks of a bookie's own files on a failing disk: the other files are still checked."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from bookspark.store.bookie.disk.control_log import ControlLog
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.offline.scrub import scrub
from bookspark.store.bookie.steps import run_steps
from bookspark.store.bookie.storage import Storage
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.bookie.test_scrub import a_second_later

A, B = 4, 5
"""Ledgers of the first and of the second directory."""


@pytest.fixture(autouse=True)
def stepped() -> Iterator[None]:
    with without_threads():
        yield


@pytest.fixture
def disk() -> MemoryFileSystem:
    return MemoryFileSystem("/a", "/b")


@pytest.fixture
def run(disk: MemoryFileSystem) -> Stepped:
    """Two directories without a journal, each with a log, a control log, a checkpoint and a marker."""
    settings = config(
        Path("/a"), Path("/b"), journal_write_data=False, background_sync_bytes=1, background_sync_interval_ms=3_600_000
    )
    made = Stepped(settings, FaultyFileSystem(disk))
    for ledger_id in (A, B):
        made.add(ledger_id, 0, 2)
    made.commit()
    made.fence(8)
    made.checkpoint()
    a_second_later(made)
    assert all(disk.exists(f"{path}/{name}") for path in ("/a", "/b") for name in ("unclean", "checkpoint"))
    return made


def look(run: Stepped) -> int:
    """Check the kept files; returns the number of files written again."""
    before = run.storage.kept_files.renewed
    run_steps(run.storage.kept_files.look(), run.commit)
    run.commit()
    return run.storage.kept_files.renewed - before


@pytest.mark.parametrize(
    "rules",
    [
        ["exists /a/logs 1.. io-error"],
        ["open /a/control.log 1.. too-many-files"],
        ["open /a/checkpoint* 1.. too-many-files"],
        ["open /a/logs/*.synced 1.. io-error"],
        ["open /a/unclean 1.. io-error"],
    ],
    ids=["directory", "control log", "checkpoint", "note", "marker"],
)
def test_unreadable_files_of_a_directory_are_skipped_and_the_other_is_checked(disk, run, rules):
    disk.lose("/b/unclean")
    for rule in rules:
        run.files.add(rule)
    assert look(run) == 1, "the marker of the second directory, and nothing else"
    assert disk.exists("/b/unclean") and len(run.storage.live) == 2
    run.files.clear()
    assert look(run) == 0


def test_control_log_that_can_t_be_read_now_is_left_alone(disk, run):
    before = disk.files()
    run.files.add("read /a/control.log 1 io-error")
    assert look(run) == 0 and len(run.storage.live) == 2
    assert disk.files() == before and not ControlLog(disk, "/a").scan().damaged
    assert look(run) == 0


@pytest.mark.parametrize(
    "path",
    ["/a/control.log", "/a/control.synced", "/a/checkpoint", "/a/logs/*.synced", "/a/unclean"],
    ids=["control log", "its note", "checkpoint", "note", "marker"],
)
def test_file_in_a_bad_sector_is_written_anew_from_what_the_bookie_knows(run, path):
    """It was left there, and the next start did without its directory, or stayed down."""
    run.seal()
    run.files.add(f"read {path} 1.. io-error")
    begun = len(run.files.calls)
    assert look(run) == 1 and len(run.storage.live) == 2
    made = {call.path for call in run.files.calls[begun:] if call.kind in ("create", "rename")}
    assert any(fnmatchcase(name, path + "*") for name in made), "a write into its old block fails as well"
    run.files.clear()
    assert look(run) == 0
    run.restart()
    assert [len(run.read(ledger_id, 0, 2)[0]) for ledger_id in (A, B)] == [3, 3]


def test_note_in_a_bad_sector_keeps_its_name_while_no_other_file_can_be_made(run):
    """It was unlinked first. The next write then found no file, and a healthy directory was retired."""
    run.files.add("read /a/control.synced 1.. io-error")
    run.files.add("create /a/control.synced* 1 too-many-files")
    assert look(run) == 0
    run.files.clear()
    run.fence(9)
    run.commit()
    assert 9 in run.promises.fenced and len(run.storage.live) == 2
    run.restart()
    assert run.storage.lossy_boots.losses == []


def test_failed_schema_repair_of_a_log_is_retried_at_the_next_scrub(disk, run):
    run.seal()
    (path,) = [path for path in disk.files() if path.startswith("/a/logs") and path.endswith(".arrows")]
    disk.flip(path, 5, 2, cached=True)
    run.files.add(f"write {path} 1 io-error")
    run.scrub()
    assert scrub(disk, "/a").damages and len(run.storage.live) == 2
    run.scrub()
    assert not scrub(disk, "/a").damages
    assert disk.crashed(nothing_kept).files()[path][: len(SCHEMA)] == SCHEMA, "it is synced"
    assert [len(run.read(ledger_id, 0, 2)[0]) for ledger_id in (A, B)] == [3, 3]


def test_scrub_progress_survives_a_failing_directory(run):
    run.files.add("* /a/scrub* 1.. io-error")
    scrubbing = run.storage.scrubbing
    scrubbing.begin(1000)
    scrubbing.save()
    run.restart()
    run.storage.scrubbing.load()
    assert run.storage.scrubbing.progress == scrubbing.progress


def test_damaged_scrub_progress_is_discarded(disk, run):
    run.storage.scrubbing.begin(1000)
    run.storage.scrubbing.save()
    for path in ("/a/scrub", "/b/scrub"):
        disk.flip(path, 0, 2)
    run.storage.scrubbing.load()
    assert not run.storage.scrubbing.under_way


def test_directory_failing_a_control_write_at_boot_takes_no_adds(disk, run):
    """Its control log must be rewritten before it counts as a copy again."""
    run.storage.close()
    files = FaultyFileSystem(disk, "write /a/control.log 1.. io-error")
    storage = Storage(run._settings, files, without=["/b"]).open()
    (directory,) = storage.live
    assert directory.control_behind and storage.disks.writable == []
    storage.close()

"""Rot: an unreadable copy is no longer held, and the next add of its entries replaces it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_AWAY, ENTRY_LOST, NO_SUCH_ENTRY
from bookspark.store.bookie.disk.index import Row
from bookspark.store.bookie.holdings.reads import Stop
from bookspark.store.bookie.offline.inspection import rebuild_index, take_back_good
from bookspark.store.bookie.steps import run_steps
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.store.bookie.flips import flip
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Stepped, without_threads

RECOVERY = int(Flag.RECOVERY)
PAYLOAD = b"x" * 300


class Rotting:
    """A bookie on two disks, with entries 0 to 9 of ledger 4 on disk 0 and of ledger 5 on disk 1, one entry a batch."""

    def __init__(self, *, rewritten: bool = False) -> None:
        self.disk = MemoryFileSystem("/disk0", "/disk1")
        self.files = FaultyFileSystem(self.disk)
        self.run = Stepped(config(Path("/disk0"), Path("/disk1"), entry_log_bytes_max=4000), self.files)
        for entry_id in range(10):
            for ledger_id in (4, 5):
                self.run.add(ledger_id, entry_id, payload=PAYLOAD)
        self.run.commit()
        if rewritten:
            self.run.seal()
            self.run.reclaim()

    def row(self, ledger_id: int, entry_id: int) -> Row:
        rows = self.run.storage.holdings.index.get(ledger_id)
        assert rows is not None
        (row,) = rows.covering(entry_id, entry_id)
        return row

    def rot(self, ledger_id: int, entry_id: int, bit: int = 3) -> Row:
        row = self.row(ledger_id, entry_id)
        path = self.run.storage.holdings.logs[row.where >> 32][1].path
        flip(self.disk, path, (row.where & 0xFFFFFFFF) + row.size - 40, bit)
        self.run.storage.files.clear()
        return row

    def rot_back(self, row: Row, bit: int = 3) -> None:
        """Take back ``rot``."""
        path = self.run.storage.holdings.logs[row.where >> 32][1].path
        flip(self.disk, path, (row.where & 0xFFFFFFFF) + row.size - 40, bit)
        self.run.storage.files.clear()

    def held(self, ledger_id: int) -> list[int]:
        ranges, _, _ = self.run.storage.holdings.ranges(ledger_id, 0, 0, only=True)
        pairs = zip(ranges.first_entry_ids, ranges.last_entry_ids, strict=True)
        return [entry_id for first, last in pairs for entry_id in range(first, last + 1)]

    def added(self, ledger_id: int, entry_id: int, flags: int = RECOVERY, payload: bytes = PAYLOAD) -> Status:
        status = self.run.add(ledger_id, entry_id, flags=flags, payload=payload)
        self.run.commit()
        return Status(status[0])


@pytest.fixture
def stepped() -> Iterator[None]:
    with without_threads():
        yield


@pytest.mark.parametrize("rewritten", [False, True])
@pytest.mark.parametrize("flags", [0, RECOVERY])
def test_add_replaces_an_unreadable_copy(stepped: None, rewritten: bool, flags: int) -> None:
    one = Rotting(rewritten=rewritten)
    old = one.rot(5, 6)
    assert one.added(5, 6, flags) == Status.OK
    for _ in range(2):
        assert one.row(5, 6).where != old.where
        assert [entry.payload[9:] for entry in one.run.read(5, 6, 6)[0]] == [PAYLOAD]
        assert one.added(5, 6, flags) == Status.OK, "a duplicate"
        assert one.added(5, 6, flags, b"other") == Status.CONFLICT
        assert one.run.read(5, 10, 10)[1] == NO_SUCH_ENTRY
        one.run.checkpoint()
        one.run.restart()


@pytest.mark.parametrize("rewritten", [False, True])
def test_scrub_finds_rot_without_a_read_and_adds_bring_the_copies_back(stepped: None, rewritten: bool) -> None:
    one = Rotting(rewritten=rewritten)
    assert one.held(4) == one.held(5) == list(range(10))
    lost = {4: one.rot(4, 2).where, 5: one.rot(5, 9).where}
    # A block of a rewritten log has several entries.
    gone = {one_id: {i for i in range(10) if one.row(one_id, i).where == where} for one_id, where in lost.items()}
    one.run.scrub()
    assert one.run.storage.status().lacking_ledgers == 2
    lacking = dict(one.run.storage.lacking(10))
    for ledger_id in (4, 5):
        assert one.held(ledger_id) == [i for i in range(10) if i not in gone[ledger_id]]
        assert {i for i in range(10) if one.run.read(ledger_id, i, i)[1] == ENTRY_LOST} == gone[ledger_id]
        assert {i for first, last in lacking[ledger_id] for i in range(first, last + 1)} == gone[ledger_id]
    for ledger_id in (4, 5):
        for entry_id in range(10):
            assert one.added(ledger_id, entry_id) == Status.OK
    one.run.checkpoint()
    one.run.scrub()
    assert one.held(4) == one.held(5) == list(range(10)) and not one.run.storage.lacking(10)
    assert one.run.storage.holdings.ledger(4).lost == one.run.storage.holdings.ledger(5).lost == ()
    assert one.run.storage.status().lacking_ledgers == 0, (
        "all are back, although the bytes of lost copies still lie in a log"
    )
    one.run.restart()
    assert one.run.storage.status().lacking_ledgers == 0, "also after a start, which meets them again"
    one.run.delete(4, 5)
    one.run.seal()
    one.run.reclaim(0.99)
    one.run.checkpoint()
    assert one.run.storage.status().lacking_ledgers == 0
    assert not [path for path in one.disk.files() if path.endswith(".arrow")], "the bytes of lost copies come back"


def test_scrub_continues_after_a_restart(stepped: None) -> None:
    one = Rotting()
    scrubbing = one.run.storage.scrubbing
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bookspark.store.bookie.holdings.scrubbing._GROUP_BYTES", 1)
        scrubbing.begin(1000)
        one.run.scrub_group()
        scrubbing.save()
        before = scrubbing.progress
        assert 0 < scrubbing.part < 1 and scrubbing.under_way
        assert scrubbing.ahead_seconds(1000, 100) == pytest.approx(45 * scrubbing.part)
        one.run.restart()
        again = one.run.storage.scrubbing
        again.load()
        assert again.progress == before and again.part == scrubbing.part
        one.rot(4, 9)
        while again.under_way:
            one.run.scrub_group()
        assert again.part == 1 and again.progress.finished_ms == 2000 and one.held(4) == list(range(9))


def test_lack_of_open_files_or_one_failed_read_is_no_damage(stepped: None) -> None:
    one = Rotting()
    for rule, stop in (
        ("open /disk1/logs/*.arrows 1.. too-many-files", Stop.FAILED),
        ("read /disk1/logs/*.arrows 1 io-error", None),
        ("open /disk1/logs/*.arrows 1 io-error", None),
        ("read /disk1/logs/*.arrows 1.. io-error", Stop.UNREADABLE),
    ):
        files = FaultyFileSystem(one.disk)
        files.add(rule)
        one.run.storage.holdings._file_system = files
        one.run.storage.files.clear()
        plan = one.run.storage.holdings.plan_read(5, 6, 6, 0, sparse=False)
        fetched = one.run.storage.files.fetch(plan.pieces, cached_only=False)
        assert fetched is not None and fetched.stop is stop, rule
        one.run.storage.holdings.read_ended(plan.pieces[len(fetched.frames) :], fetched.stop)
        assert (6 in one.held(5)) == (stop is not Stop.UNREADABLE)
    assert one.run.storage.status().read_errors == {"/disk1": 1} and one.run.storage.status().lost_copies == 0


@pytest.mark.parametrize("found_by", ["scrub", "scrub after a start", "rebuild", "verify"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_note_of_a_loss_over_good_bytes_is_taken_back(stepped: None, rewritten: bool, found_by: str) -> None:
    """A cable flipped bits for a moment: the copies stayed lost for ever, although each look found their bytes good."""
    one = Rotting(rewritten=rewritten)
    row = one.rot(5, 6)
    one.run.scrub()
    one.run.checkpoint()
    assert one.run.read(5, 6, 6)[1] == ENTRY_LOST and one.run.storage.status().lacking_ledgers == 1
    one.run.seal()
    one.run.reclaim(0.99)
    assert row.where >> 32 in one.run.storage.logs, "a log that may have the last copy stays"
    one.rot_back(row)
    if found_by in ("rebuild", "verify"):
        one.run.storage.close()
        if found_by == "rebuild":
            rebuild_index(one.disk, one.run._settings.directories)
        else:
            assert take_back_good(one.disk, one.run._settings.directories) == 1
            assert take_back_good(one.disk, one.run._settings.directories) == 0
        one.run = Stepped(one.run._settings, one.disk)
    elif found_by == "scrub after a start":
        one.run.restart()
        assert one.run.storage.scrubbing.suspected, "the scrub looks there first"
    if found_by.startswith("scrub"):
        assert one.run.read(5, 6, 6)[1] == ENTRY_LOST
        one.run.scrub()
    for _ in range(3):
        assert [entry.entry_id for entry in one.run.read(5, 6, 6)[0]] == [6] and one.held(5) == list(range(10))
        one.run.checkpoint()
    assert one.run.storage.status().lacking_ledgers == 0 and not dict(one.run.storage.lacking(10)).get(5)
    again = Stepped(one.run._settings, one.disk.crashed(nothing_kept))
    ranges = again.storage.holdings.ranges(5, 0, 0, only=True)[0]
    assert sum(ranges.last_entry_ids) - sum(ranges.first_entry_ids) + len(ranges.logs) == 10, "that is durable"
    assert not any(again.storage.holdings.control.lost_copies.values()), "and the note is gone"


def test_verify_changes_nothing_after_an_unclean_stop(stepped: None) -> None:
    """It settled the logs as a boot does, without the boot id that the next start trusts."""
    one = Rotting()
    row = one.rot(5, 6)
    one.run.scrub()
    one.rot_back(row)
    one.run.storage.close()
    marker = one.disk.open("/disk0/unclean", create=True)
    marker.write([b"kernel"], 0)
    before = one.disk.files()
    assert take_back_good(one.disk, one.run._settings.directories) == 0 and one.disk.files() == before


def test_entries_of_a_dead_disk_are_not_held_and_go_to_another_disk(stepped: None) -> None:
    one = Rotting()
    one.files.add("* /disk1/* 1.. io-error")
    one.run.storage.files.clear()
    one.run.add(5, 10)
    one.run.commit()
    storage = one.run.storage
    assert [directory.path for directory in storage.live] == ["/disk0"] and not storage.disks.read_only
    assert "Input/output error" in storage.status().failed_directories["/disk1"]
    assert one.held(5) == [] and one.held(4) == list(range(10))
    assert one.run.read(5, 0, 0)[1] == one.run.read(5, 10, 10)[1] == ENTRY_AWAY
    assert one.run.read(5, 11, 11)[1] == NO_SUCH_ENTRY
    assert dict(storage.lacking(10)) == {5: ((0, 10),)}
    for entry_id in range(10):
        assert one.added(5, entry_id) == Status.OK
    assert one.held(5) == list(range(10))
    one.run.checkpoint()
    assert storage.holdings.ledger(5).lacking == ((10, 10),)


def test_disk_that_fails_to_read_is_no_damage_and_is_read_again(stepped: None) -> None:
    """Each failed read was noted as a loss for ever, and 64 of them ended the bookie."""
    one = Rotting()
    for number, fault in ((0, "io-error"), (1, "stale")):
        one.files.add(f"read /disk{number}/logs/*.arrows 1.. {fault}")
    one.run.scrub()
    storage = one.run.storage
    assert one.held(4) == one.held(5) == [], "nothing is held that can't be read"
    assert dict(storage.lacking(10)) == {4: ((0, 9),), 5: ((0, 9),)}, "others may repair it"
    assert storage.status().lost_copies == 0 and len(storage.live) == 2
    one.run.checkpoint()
    run_steps(storage.scrubbing.read_again(), one.run.commit)
    assert one.held(4) == one.held(5) == []
    one.files.clear()
    run_steps(storage.scrubbing.read_again(), one.run.commit)
    assert one.held(4) == one.held(5) == list(range(10)) and not storage.holdings.unread
    one.run.restart()
    assert one.held(4) == one.held(5) == list(range(10)) and one.run.storage.status().lacking_ledgers == 0


def test_copy_that_a_failed_read_set_aside_is_held_again_once_an_add_found_it_equal(stepped: None) -> None:
    one = Rotting()
    one.files.add("read /disk1/logs/*.arrows 1.. io-error")
    one.run.scrub()
    one.files.clear()
    row = one.row(5, 6)
    assert one.held(5) == []
    assert one.added(5, 6) == Status.OK
    assert one.row(5, 6) == row and one.held(5) == [6]

"""The scrub of a serving bookie detects rot of every kept byte on the disk, below the page cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from bookspark.protocol.bookie.bookie_ledger import ENTRY_LOST, NO_SUCH_ENTRY
from bookspark.protocol.ledger.responses import Negative
from bookspark.store.bookie.checks import check_control_log
from bookspark.store.bookie.commit.commit_thread import NoteSync
from bookspark.store.bookie.commit.completions import ignore
from bookspark.store.bookie.disk.control_log import ControlLog
from bookspark.store.bookie.disk.entry_log import EntryLog
from bookspark.store.bookie.disk.file_system import RealFileSystem, uncached
from bookspark.store.bookie.disk.index import log_of, position_of
from bookspark.store.bookie.disk.log_scan import SCHEMA
from bookspark.store.bookie.disk.unclean_marker import UncleanMarker
from bookspark.store.bookie.holdings.kept_files import KeptFile
from bookspark.store.bookie.holdings.reads import LogFiles
from bookspark.store.bookie.offline.scrub import scrub
from bookspark.store.bookie.steps import run_steps
from bookspark.store.wire.header import Flag, Status
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import everything_kept, nothing_kept
from tests.store.bookie.flips import SETTINGS, Flips
from tests.store.bookie.kit import config
from tests.store.bookie.stepped import Stepped, without_threads
from tests.store.bookie.test_rot import Rotting

CONTROL, NOTE = "/disk/control.log", "/disk/control.synced"


@pytest.fixture(autouse=True)
def stepped() -> Iterator[None]:
    with without_threads():
        yield


def started(**options: object) -> tuple[MemoryFileSystem, Stepped]:
    """A bookie with one directory, entries of ledgers 5 and 8, and a fence of ledger 8."""
    disk = MemoryFileSystem("/disk")
    run = Stepped(config(Path("/disk"), entry_log_bytes_max=1500, **options), FaultyFileSystem(disk))
    run.add(5, 0, 2)
    run.add(8, 0)
    run.commit()
    run.fence(8)
    a_second_later(run)
    return disk, run


def a_second_later(run: Stepped) -> None:
    """Make the notes durable: an unwritten page of the cache would hide the rot below it."""
    run.commit()
    for directory in run.storage.live:
        directory.commit.submit(NoteSync(ignore))
    run.commit()


def after_power_cut(disk: MemoryFileSystem, run: Stepped) -> Stepped:
    return Stepped(run._settings, disk.crashed(nothing_kept), run.promises)


# -- every byte


@pytest.mark.parametrize("rewritten", [False, True])
def test_scrub_detects_rot_in_every_file_so_that_no_later_boot_is_lossy(rewritten: bool) -> None:
    """A damaged control log once kept a bookie with one directory down, and damage in the tail of a log made its boot lossy,
    although the running process had held the right content for days."""
    flips = Flips(clean=False, rewritten=rewritten)
    outcomes: Counter[str] = Counter()
    for path, offset in flips.places():
        if offset % (23 if "/logs/" in path and ".arrow" in path else 3):
            continue
        disk = flips.disk.crashed(everything_kept)
        run = Stepped(SETTINGS, disk, flips._promises)
        if path not in disk.files() or offset >= len(disk.files()[path]):
            continue  # The boot rewrote the file.
        disk.flip(path, offset, offset * 5 % 8, cached=True)
        run.scrub()
        run.checkpoint()
        found = run.storage.scrubbing.dead_bytes + run.storage.kept_files.renewed + run.storage.holdings.lost_copies
        mended = offset < len(SCHEMA) + 8 or path.endswith(".arrow")
        assert found or mended or path.endswith("/scrub"), f"byte {offset} of {path} was not found"
        again = Stepped(SETTINGS, disk.crashed(nothing_kept), flips._promises)
        assert not again.storage.holdings.damaged, f"lossy after byte {offset} of {path}"
        outcomes[flips.check_answers(again)] += 1
    assert set(outcomes) == {"unknown", "right"} and min(outcomes.values()) > 20, outcomes


@pytest.mark.parametrize("cached", [False, True])
def test_scrub_detects_rot_of_a_held_entry_despite_the_page_cache(cached: bool) -> None:
    one = Rotting()
    row = one.row(5, 6)
    one.disk.flip(
        "/disk1/logs/%08x.arrows" % (row.where >> 32), (row.where & 0xFFFFFFFF) + row.size - 40, 3, cached=cached
    )
    if cached:
        assert one.run.read(5, 6, 6)[1] is None, "a reader has it from the page cache"
    one.run.scrub()
    assert 6 not in one.held(5) and one.run.read(5, 6, 6)[1] == ENTRY_LOST
    one.run.checkpoint()
    again = Stepped(one.run._settings, one.disk.crashed(nothing_kept))
    assert again.read(5, 6, 6)[1] == ENTRY_LOST, "that is durable"


def test_scrub_detects_a_missing_log_and_keeps_its_disk() -> None:
    """The open log was readable until the next start."""
    one = Rotting()
    path = "/disk1/logs/%08x.arrows" % (one.row(5, 0).where >> 32)
    gone = [i for i in range(10) if one.row(5, i).where >> 32 == one.row(5, 0).where >> 32]
    one.disk.lose(path)
    one.run.scrub()
    assert one.held(5) == [i for i in range(10) if i not in gone] and len(gone) > 3
    assert len(one.run.storage.live) == 2


@pytest.mark.parametrize("place", ["schema", "head", "footer"])
def test_scrub_rewrites_a_damaged_schema_head_or_footer_of_a_log(place: str) -> None:
    """The next start gave up a rewritten log with a bad end, although each of its blocks was sound."""
    disk, run = started()
    run.seal()
    if place != "schema":
        run.reclaim()
    run.checkpoint()
    (path,) = [path for path in disk.files() if path.endswith(".arrows" if place == "schema" else ".arrow")]
    disk.flip(path, len(disk.files()[path]) - 3 if place == "footer" else 5, 2, cached=True)
    assert scrub(disk, "/disk").damages
    run.scrub()
    assert not scrub(disk, "/disk").damages and run.storage.scrubbing.dead_bytes == 0
    again = after_power_cut(disk, run)
    assert not again.storage.holdings.damaged and len(again.read(5, 0, 2)[0]) == 3


def test_damage_in_dead_bytes_is_counted_and_is_no_loss() -> None:
    disk, run = started()
    (dead,) = run.storage.holdings.index.get(5).covering(0, 0)
    run.delete(5)
    disk.flip("/disk/logs/%08x.arrows" % (dead.where >> 32), (dead.where & 0xFFFFFFFF) + dead.size - 40, 3, cached=True)
    run.scrub()
    assert run.storage.scrubbing.dead_bytes == dead.size
    status = run.storage.status()
    assert (status.lost_copies, status.lacking_ledgers) == (0, 0) and not run.storage.holdings.ledgers_lacking
    run.checkpoint()
    again = after_power_cut(disk, run)
    assert (
        not again.storage.holdings.damaged
        and again.read(8, 0, 0)[1] is None
        and again.read(8, 1, 1)[1] == NO_SUCH_ENTRY
    )


def test_log_with_a_bad_read_is_scrubbed_next() -> None:
    """No log was ever suspected, so bad batches beside the first waited for the scrub's round."""
    one = Rotting()
    first, second = one.rot(5, 0), one.rot(5, 1)
    plan = one.run.storage.holdings.plan_read(5, 0, 0, 0, sparse=False)
    fetched = one.run.storage.files.fetch(plan.pieces, cached_only=False)
    assert fetched is not None
    one.run.storage.holdings.read_ended(plan.pieces, fetched.stop)
    scrubbing = one.run.storage.scrubbing
    assert scrubbing.suspected
    logs = run_steps(scrubbing.take_suspected(), one.run.commit)
    assert list(logs) == [first.where >> 32] == [second.where >> 32] and not scrubbing.suspected
    for number, pieces in logs.items():
        for looked in scrubbing.look(number, pieces):
            run_steps(scrubbing.looked(number, looked), one.run.commit)
    assert one.held(5) == list(range(2, 10)) and not scrubbing.suspected


# -- control logs


@pytest.mark.parametrize("place", range(0, 240, 7))
@pytest.mark.parametrize("path", [CONTROL, NOTE])
def test_scrub_rewrites_a_rotten_control_log_of_a_bookie_with_one_directory(path: str, place: int) -> None:
    disk, run = started()
    size = len(disk.files()[path])
    disk.flip(path, place % size, place % 8, cached=True)
    assert check_control_log(disk, "/disk", expected=True, synced=run.storage.live[0].control.synced)[1]
    run.scrub()
    assert run.storage.kept_files.renewed == 1
    again = after_power_cut(disk, run)
    assert not again.storage.holdings.damaged and again.add(8, 1) == [Status.FENCED]
    run.scrub()
    assert run.storage.kept_files.renewed == 1, "it is good now"


@pytest.mark.parametrize("name", ["control.log", "control.synced"])
def test_scrub_rewrites_a_damaged_control_log_copy_beside_a_whole_copy(name: str) -> None:
    disk = MemoryFileSystem("/disk0", "/disk1")
    run = Stepped(config(Path("/disk0"), Path("/disk1")), disk)
    run.fence(8)
    a_second_later(run)
    disk.flip(f"/disk1/{name}", 9, 2, cached=True)
    run.scrub()
    assert run.storage.kept_files.renewed == 1
    assert [ControlLog(disk, f"/disk{number}").scan().damaged for number in (0, 1)] == [False, False]
    disk.lose("/disk1/control.log")
    run.scrub()
    assert disk.exists("/disk1/control.log")
    disk.lose("/disk0/control.log")
    again = Stepped(run._settings, disk.crashed(nothing_kept))
    assert again.storage.holdings.control.known(8).fenced, "either copy is enough"


def test_control_log_rewritten_during_a_scrub_is_no_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    _, run = started()
    scan = ControlLog.scan
    passes = iter(range(1, 9))

    def meanwhile(control: ControlLog) -> object:
        """The commit thread replaces the log by a shorter log between two reads of the scrub."""
        found = scan(control)
        if next(passes) == 1:
            for _ in range(2):
                run.storage.live[0].control.rewrite([], 5)
            return found._replace(end=0)
        return found

    monkeypatch.setattr(ControlLog, "scan", meanwhile)
    run.scrub()
    assert next(passes) == 3 and run.storage.kept_files.renewed == 0


def test_damaged_control_log_on_a_full_disk_is_rewritten_once_there_is_room() -> None:
    disk, run = started()
    disk.flip(CONTROL, 9, 2, cached=True)
    disk.capacity_bytes = disk.used_bytes()
    run.scrub()
    assert run.storage.kept_files.renewed == 0 and run.storage.live[0].control_behind
    disk.capacity_bytes = 1 << 50
    run.scrub()
    assert run.storage.kept_files.renewed == 1
    assert after_power_cut(disk, run).add(8, 1) == [Status.FENCED]


# -- checkpoints, notes, markers, cookies


@pytest.mark.parametrize("which", ["checkpoint", "checkpoint.00000001"])
@pytest.mark.parametrize("gone", [False, True])
def test_scrub_rewrites_a_damaged_or_missing_checkpoint_from_the_index(which: str, gone: bool) -> None:
    disk, run = started()
    run.checkpoint()
    if gone:
        disk.lose(f"/disk/{which}")
    else:
        disk.flip(f"/disk/{which}", 30, 2, cached=True)
    run.scrub()
    assert run.storage.kept_files.renewed == 1 and not scrub(disk, "/disk").damages
    again = after_power_cut(disk, run)
    assert again.storage.live[0].parts is not None, "the boot needs no full scan"
    assert len(again.read(5, 0, 2)[0]) == 3


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("gone", [False, True])
def test_scrub_rewrites_a_damaged_note_but_no_note_of_a_removed_log(sealed: bool, gone: bool) -> None:
    disk, run = started()
    if sealed:
        run.seal()
    log = run.storage.live[0].logs[0]
    if gone:
        disk.lose(log.note_path)
    else:
        disk.flip(log.note_path, 3, 2, cached=True)
    run.scrub()
    assert run.storage.kept_files.renewed == 1 and not scrub(disk, "/disk").damages
    assert not after_power_cut(disk, run).storage.holdings.damaged
    run.seal()
    log.remove()
    log.renew_note()
    assert not disk.exists(log.note_path), "a note without its log would be a lost log"


def test_scrub_restores_a_missing_or_changed_unclean_marker() -> None:
    """Only the marker shows that entries were acknowledged before their sync."""
    disk, run = started(journal_write_data=False, background_sync_bytes=1 << 20, background_sync_interval_ms=3_600_000)
    run.add(6, 0)
    run.commit()
    disk.lose("/disk/unclean")
    run.scrub()
    assert run.storage.kept_files.renewed == 1 and disk.crashed(nothing_kept).exists("/disk/unclean")
    marker = UncleanMarker(disk, "/disk", "boot 1")
    assert not marker.renew(), "where none stands none is made"
    marker.make()
    disk.flip("/disk/unclean", 2, 1, cached=True)
    assert marker.renew() and not marker.renew()


def test_scrub_writes_nothing_into_the_mount_point_of_an_unmounted_disk() -> None:
    disk, run = started()
    for path in list(disk.files()):
        disk.lose(path)
    disk._directory("/disk").names.clear()
    run.storage.kept_files.others.append(KeptFile("/disk/COOKIE", lambda: True, lambda: None))
    run.scrub()
    assert disk.files() == {} and run.storage.kept_files.renewed == 0


def test_scrub_checks_files_of_other_owners_and_continues_after_a_failure() -> None:
    _, run = started()
    written: list[str] = []

    def fail() -> bool:
        raise OSError(5, "on purpose")

    run.storage.kept_files.others += [
        KeptFile("a", fail, lambda: written.append("a")),
        KeptFile("b", lambda: False, lambda: written.append("b")),
        KeptFile("c", lambda: True, lambda: written.append("c")),
    ]
    run.scrub()
    assert written == ["b"] and run.storage.kept_files.renewed == 1


# -- the same answer as other reads


def test_offline_and_online_scrubs_find_the_same_damage_in_a_log() -> None:
    one = Rotting()
    for entry_id in (2, 7):
        one.rot(5, entry_id)
    one.disk.sync_all()
    told = {entry.first for damage in scrub(one.disk, "/disk1").damages for entry in damage.entries}
    one.run.checkpoint()
    told = {entry.first for damage in scrub(one.disk, "/disk1").damages for entry in damage.entries}
    one.run.scrub()
    assert told == {2, 7} == set(range(10)) - set(one.held(5))


@pytest.mark.parametrize("rotten", [False, True])
@pytest.mark.parametrize("rewritten", [False, True])
def test_scrub_reads_only_rotten_entries_a_second_time(
    rewritten: bool, rotten: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, run = started()
    run.seal()
    if rewritten:
        run.reclaim()
    row = run.storage.holdings.index.get(5).row(0)
    if rotten:
        path = run.storage.holdings.logs[log_of(row.where)][1].path
        disk.flip(path, position_of(row.where) + row.size - 40, 3)
    again: list[int] = []
    fetch = LogFiles.fetch
    monkeypatch.setattr(
        LogFiles,
        "fetch",
        lambda self, pieces, **how: (again.extend(piece.where for piece in pieces), fetch(self, pieces, **how))[1],
    )
    run.scrub()
    assert again == [row.where] * rotten


def test_uncached_drops_the_page_cache_of_a_real_file(tmp_path: Path) -> None:
    files = RealFileSystem()
    file = files.open(str(tmp_path / "a"), create=True)
    file.write([b"x" * 8192], 0)
    file.sync()
    into = memoryview(bytearray(8192))
    if not file.read_cached(into, 0):
        pytest.skip("this file system does not tell what is cached")
    uncached(files, str(tmp_path / "a"))
    if file.read_cached(into, 0):
        pytest.skip("this file system keeps its pages")
    assert file.read(8192, 0) == b"x" * 8192 and file.read_cached(into, 0)
    uncached(files, str(tmp_path / "missing"))


def test_log_removed_during_its_scrub_is_no_damage_and_its_entries_are_never_denied() -> None:
    """Reads of a log fail while rewriting removes it, which is no damage."""
    _, run = started()
    run.seal()
    number = run.storage.live[0].logs[0].number
    logs, _ = next(iter([({number: []}, 0)]))
    looks = run.storage.scrubbing.look(number, logs[number])
    run.reclaim()
    assert [looked.bad for looked in looks] in ([], [[]])
    run.scrub()
    assert not isinstance(run.read(5, 0, 0)[1], Negative) and run.add(5, 0, 2, flags=int(Flag.RECOVERY)) is not None
    assert not any(isinstance(log, EntryLog) and log.number == number for log in run.storage.live[0].logs)

"""The faulty file system: rules as text, and the effect of each fault."""

from __future__ import annotations

import errno
import threading

import pytest

from bookspark.store.bookie.disk.file_system import RealFileSystem, read_all, write_all
from bookspark.testing.faulty_files import FaultyFileSystem, Rule
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import nothing_kept
from tests.awaiting import SECONDS_MAX

A, B = "/disk/a", "/disk/logs/b"


def faulty(*rules, **options):
    memory = MemoryFileSystem("/disk/logs")
    memory.open(A, create=True)
    memory.open(B, create=True)
    return FaultyFileSystem(memory, *rules, **options)


def outcome(call, *arguments):
    try:
        return call(*arguments)
    except OSError as error:
        return error.errno


@pytest.mark.parametrize(
    ("which", "failed"),
    [("2", [2]), ("2..", [2, 3, 4, 5]), ("2..3", [2, 3]), ("9", [])],
)
def test_rule_fails_the_operations_it_counts(which, failed):
    files = faulty(f"sync */logs/* {which} io-error")
    one, other = files.open(A, write=True), files.open(B, write=True)
    outcomes = {number: outcome(other.sync) for number in range(1, 6) if outcome(one.sync) is None}
    assert [number for number, found in outcomes.items() if found == errno.EIO] == failed
    assert len(outcomes) == 5, "the pattern spares the other file"


def test_operations_on_names_fail_by_rules_too():
    files = faulty(
        "rename */a 1 io-error",
        "unlink * 1 no-space",
        "create * 1 no-space",
        "sync_directory * 1 io-error",
        "list * 1 io-error",
        "free_bytes * 1 io-error",
        "make_directory * 1 no-space",
        "exists */z 1 io-error",
    )
    assert outcome(files.rename, A, A + "2") == errno.EIO and files.exists(A)
    assert outcome(files.unlink, A) == errno.ENOSPC and files.exists(A)
    with pytest.raises(OSError, match="on purpose"):
        files.open("/disk/z", create=True)
    assert outcome(files.sync_directory, "/disk") == errno.EIO
    assert outcome(files.list, "/disk") == errno.EIO
    assert outcome(files.free_bytes, "/disk") == errno.EIO
    assert outcome(files.make_directory, "/disk/d") == errno.ENOSPC
    assert outcome(files.exists, "/disk/z") == errno.EIO
    assert files.list("/disk") == ["a", "logs"], "each was struck once"


def test_write_all_completes_short_writes():
    files = faulty("write * 1 short:3", "write * 2 short:1")
    file = files.open(A, write=True)
    assert file.write([b"ab", b"cdef"], 0) == 3
    write_all(file, [b"123", b"456"], 0)
    assert read_all(file) == b"123456"
    assert [call.kind for call in files.calls].count("write") == 3


def test_bad_sector_fails_reads_that_touch_its_block_only():
    files = faulty("read */a 1.. bad-sector:5000", "read_cached */a 1.. bad-sector:5000")
    file = files.open(A, write=True)
    write_all(file, [bytes(12_288)], 0)
    assert outcome(file.read, 4096, 0) == bytes(4096) and outcome(file.read, 4096, 8192) == bytes(4096)
    assert outcome(file.read, 1, 4096) == outcome(file.read, 9000, 0) == outcome(file.read, 2, 8191) == errno.EIO
    assert not file.read_cached(memoryview(bytearray(1)), 4096) and file.read_cached(memoryview(bytearray(1)), 0)


def test_flip_rule_flips_a_bit_of_a_read_or_write():
    files = faulty("read * 2.. flip:4.0", "read_cached * 1.. flip:4.1", "write */b 1 flip:101.7")
    file = files.open(A, write=True)
    write_all(file, [b"00000000"], 0)
    assert file.read(8, 0) == b"00000000"
    assert file.read(8, 0) == b"00001000"
    assert file.read(3, 4) == b"100" and file.read(4, 0) == b"0000"
    into = bytearray(8)
    assert file.read_cached(memoryview(into), 0) and into == b"00002000"
    other = files.open(B, write=True)
    write_all(other, [b"\1\1", b"\1"], 100)
    assert other.read(3, 100) == b"\1\x81\1"


def test_slow_operation_sleeps_and_succeeds():
    slept = []
    files = faulty("sync * 2 slow:2.5", sleep=slept.append)
    file = files.open(A, write=True)
    file.sync()
    assert slept == []
    file.sync()
    assert slept == [2.5]


def test_held_operation_waits_for_its_release():
    files = faulty("sync * 1.. hold")
    through = threading.Event()
    for _ in range(2):
        through.clear()
        thread = threading.Thread(target=lambda: (files.open(A, write=True).sync(), through.set()))
        thread.start()
        files.wait_held()
        assert not through.is_set()
        files.release()
        thread.join(SECONDS_MAX)
        assert through.is_set()


def test_rules_can_be_added_and_cleared():
    files = faulty()
    file = files.open(A, write=True)
    files.add("sync * 1.. io-error")
    assert outcome(file.sync) == errno.EIO
    files.clear()
    assert outcome(file.sync) is None


def test_hook_sees_each_operation_before_it_happens():
    seen = []
    files = faulty(before=lambda operation: seen.append(operation))
    files.open(A, write=True).sync()
    assert seen[-1] == ("sync", A) and files.calls == seen


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("sync * 1", "is no rule"),
        ("fsync * 1 io-error", "fsync is no operation"),
        ("sync * x io-error", "x is not 3"),
        ("sync * 1..x io-error", "1..x is not 3"),
        ("sync * 1 explode", "explode is no fault"),
        ("write * 1 short", "short is no fault"),
        ("sync * 1 io-error:3", "io-error:3 is no fault"),
    ],
)
def test_invalid_rule_is_refused_with_the_reason(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Rule.parse(text)


def test_pattern_with_spaces_can_be_quoted():
    assert Rule.parse("write '*/without a/*' 3..5 short:7") == Rule("write", "*/without a/*", 3, 5, "short", "7")


def test_lost_misdirected_and_unwritten_data_shows_only_after_eviction():
    files = faulty(
        "write */a 2 lost", "write */a 3 misdirected:-2", "sync */a 2 write-back:1", "write */b 1 write-back:1"
    )
    file = files.open(A, write=True)
    for position in (0, 4, 8):
        assert file.write([b"data"], position) == 4
    file.sync()
    assert read_all(file) == b"datadatadata"
    files._inner.evict()
    assert read_all(file) == b"data\0\0data\0\0"
    file.write([b"more"], 0)
    assert [outcome(file.sync), outcome(file.sync)] == [errno.EIO, None]
    other = files.open(B, write=True)
    other.write([b"data"], 0)
    assert [outcome(other.sync), outcome(other.sync)] == [errno.EIO, None]


def test_failed_directory_sync_loses_names_forever():
    files = faulty("sync_directory * 1.. write-back:3")
    for number in range(20):
        files.open(f"/disk/{number}", create=True)
    assert outcome(files.sync_directory, "/disk") == errno.EIO
    files.clear()
    files.sync_directory("/disk")
    lost = 22 - len(files._inner.crashed(nothing_kept).list("/disk"))
    assert 0 < lost < 20


def test_disk_faults_need_a_memory_file_system(tmp_path):
    (tmp_path / "a").touch()
    files = FaultyFileSystem(RealFileSystem(), "* * 1.. write-back:1")
    with pytest.raises(TypeError, match="needs a MemoryFileSystem"):
        files.sync_directory(str(tmp_path))
    with pytest.raises(TypeError, match="needs a MemoryFileSystem"):
        files.open(str(tmp_path / "a"), write=True).sync()

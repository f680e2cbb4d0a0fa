"""The file system in memory: like the real one while it runs, and its contents after a power cut."""

from __future__ import annotations

import errno
import os
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookspark.store.bookie.disk.file_system import RealFileSystem, read_all, replace_file, write_all
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.testing.power_cuts import (
    LOSSES,
    Fate,
    contents_kept,
    drawn,
    every_other_kept,
    everything_kept,
    last_kept,
    lengths_kept,
    names_kept,
    nothing_kept,
)

A = "/disk/a"


@pytest.fixture
def files():
    return MemoryFileSystem("/disk", sector_bytes=4)


def put(files, path, content, *, sync=False):
    file = files.open(path, create=True)
    write_all(file, [content], 0)
    if sync:
        file.sync()
    return file


def test_synced_file_with_a_synced_name_survives_every_power_cut(files):
    put(files, A, b"synced", sync=True)
    files.sync_directory("/disk")
    for loss in (*LOSSES, *map(drawn, range(50))):
        assert files.crashed(loss).files() == {A: b"synced"}


def test_synced_file_with_an_unsynced_name_can_be_lost(files):
    put(files, A, b"synced", sync=True)
    assert files.crashed(nothing_kept).files() == files.crashed(contents_kept).files() == {}
    assert files.crashed(names_kept).files() == {A: b"synced"}


def test_name_can_be_kept_without_its_content(files):
    put(files, A, b"content")
    assert files.crashed(names_kept).files() == {A: b""}
    assert files.crashed(lengths_kept).files() == {A: bytes(7)}
    assert files.crashed(everything_kept).files() == {A: b"content"}


def test_writes_are_torn_into_sectors_in_any_order(files):
    file = put(files, A, b"", sync=True)
    files.sync_directory("/disk")
    write_all(file, [b"ab", b"cdefghij"], 1)
    assert files.crashed(everything_kept).files() == {A: b"\0abcdefghij"}
    assert files.crashed(last_kept).files() == {A: bytes(8) + b"hij"}
    assert files.crashed(every_other_kept).files() == {A: b"\0abc" + bytes(4) + b"hij"}
    seen = {files.crashed(drawn(seed)).files()[A] for seed in range(200)}
    assert {b"", b"\0abc", bytes(4) + b"defg", b"\0abcdefghij"} <= seen


def test_rename_replaces_a_file_atomically(files):
    replace_file(files, A, [b"old"])
    put(files, A + ".new", b"new", sync=True)
    files.rename(A + ".new", A)
    seen = {tuple(files.crashed(drawn(seed)).files().items()) for seed in range(200)}
    assert seen == {((A, b"old"),), ((A, b"new"),), ((A, b"old"), (A + ".new", b"new"))}


def test_unsynced_unlink_can_be_undone_by_a_power_cut(files):
    put(files, A, b"content", sync=True)
    files.sync_directory("/disk")
    files.unlink(A)
    assert files.files() == {}
    assert files.crashed(nothing_kept).files() == {A: b"content"}
    files.sync_directory("/disk")
    assert files.crashed(nothing_kept).files() == {}


def test_simulated_crash_does_not_change_the_running_file_system(files):
    file = put(files, A, b"content")
    files.crashed(nothing_kept)
    assert read_all(file) == b"content"
    after = files.crashed(everything_kept)
    write_all(after.open(A, write=True), [b"other"], 0)
    assert read_all(file) == b"content"


def test_unsynced_directory_is_lost_with_its_contents(files):
    files.make_directory("/disk/b/c")
    put(files, "/disk/b/c/d", b"deep", sync=True)
    files.sync_directory("/disk/b/c")
    assert not files.crashed(nothing_kept).exists("/disk/b")
    assert files.crashed(names_kept).files() == {"/disk/b/c/d": b"deep"}


def test_full_disk_writes_as_much_as_fits_then_raises(files):
    files.capacity_bytes = 10
    file = put(files, A, b"12345678")
    assert files.free_bytes("/disk") == 2
    assert file.write([b"abcd"], 8) == 2
    with pytest.raises(OSError) as full:
        file.write([b"c"], 10)
    assert full.value.errno == errno.ENOSPC
    assert file.write([b"over"], 0) == 4, "what is there already takes no room"
    with pytest.raises(OSError):
        file.preallocate(11)
    file.truncate(3)
    assert files.free_bytes("/disk") == 7


def test_preallocated_space_counts_until_truncated(files):
    files.capacity_bytes = 100
    file = put(files, A, b"12345")
    file.preallocate(80)
    assert file.size() == 5 and files.free_bytes("/disk") == 20
    file.truncate(5)
    assert files.free_bytes("/disk") == 95


OPERATIONS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from("abc"), st.binary(max_size=12), st.integers(0, 12)),
    st.tuples(st.just("truncate"), st.sampled_from("abc"), st.integers(0, 16)),
    st.tuples(st.just("rename"), st.sampled_from("abc"), st.sampled_from("abc")),
    st.tuples(st.just("unlink"), st.sampled_from("abc")),
    st.tuples(st.just("open"), st.sampled_from(["a", "b", "c", "no/c"])),
)


def run(files, root, operation):
    """Result of an operation, as far as both file systems must agree."""
    kind, name, *rest = operation
    path = f"{root}/{name}"
    try:
        if kind == "write":
            return files.open(path, create=True).write([rest[0], b"+"], rest[1])
        if kind == "truncate":
            file = files.open(path, write=True)
            file.truncate(rest[0])
            return file.size()
        if kind == "rename":
            return files.rename(path, f"{root}/{rest[0]}")
        if kind == "unlink":
            return files.unlink(path)
        return files.open(path).read(100, 1)
    except OSError as error:
        return error.errno


@settings(max_examples=60, deadline=None)
@given(st.lists(OPERATIONS, max_size=12))
def test_memory_file_system_behaves_like_the_real_one(tmp_path_factory, operations):
    root = str(tmp_path_factory.mktemp("real"))
    real, memory = RealFileSystem(), MemoryFileSystem(root)
    for operation in operations:
        assert run(memory, root, operation) == run(real, root, operation)
        assert memory.list(root) == real.list(root)
    for name in real.list(root):
        path = os.path.join(root, name)
        assert read_all(memory.open(path)) == read_all(real.open(path))
        assert memory.exists(path)


def test_power_cut_with_the_same_seed_has_the_same_result(files):
    file = put(files, A, b"", sync=True)
    files.sync_directory("/disk")
    write_all(file, [os.urandom(64)], 0)
    for seed in range(5):
        first, second = (files.crashed(drawn(seed)).files() for _ in range(2))
        assert first == second
    assert any(a != b for a, b in pairwise(files.crashed(drawn(seed)).files()[A] for seed in range(5)))
    assert set(Fate) == {Fate.KEPT, Fate.LOST, Fate.ZEROED}


# -- failing and lying disks


def synced(files, path, content):
    file = put(files, path, content, sync=True)
    files.sync_directory("/disk")
    return file


def on_the_disk(files):
    return files.crashed(nothing_kept).files()


def test_sync_after_a_failed_write_back_succeeds_without_the_data(files):
    file = synced(files, A, b"old-old-")
    file.write([b"new-new-"], 0)
    file.fail_write_back(last_kept)
    with pytest.raises(OSError, match="Input/output error"):
        file.sync()
    file.sync()
    assert files.files() == {A: b"new-new-"}, "the page cache has it"
    assert files.crashed(everything_kept).files() == on_the_disk(files) == {A: b"old-new-"}
    file.write([b"new-"], 0)
    file.sync()
    assert on_the_disk(files) == {A: b"new-new-"}, "what is written again is on its way again"


def test_failed_write_back_is_reported_once_to_each_file_open_then(files):
    one, other = synced(files, A, b""), files.open(A, write=True)
    one.write([b"data"], 0)
    one.fail_write_back(nothing_kept)
    for file in (one, other):
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()
    files.open(A, write=True).sync()
    one.fail_write_back(nothing_kept)
    with pytest.raises(OSError, match="Input/output error"):
        files.open(A, write=True).sync()


def test_evicted_page_cache_shows_the_disk_and_unsynced_writes(files):
    file = synced(files, A, b"old-")
    file.write([b"new-"], 0)
    file.fail_write_back(nothing_kept)
    file.write([b"more"], 4)
    files.evict()
    assert files.files() == {A: b"old-more"}


def test_lost_or_misdirected_write_shows_after_a_crash(files):
    file = synced(files, A, b"0123456789")
    assert file.write_elsewhere([b"ab"], 2, None) == file.write_elsewhere([b"cd"], 10, None) == 2
    assert file.write_elsewhere([b"ef"], 4, 7) == file.write_elsewhere([b"gh"], 0, -1) == 2
    file.sync()
    assert files.files() == {A: b"ghabef6789cd"}
    assert on_the_disk(files) == {A: b"h123456ef9\0\0"}


def test_names_lost_by_a_failed_directory_sync_stay_lost(files):
    put(files, A, b"content", sync=True)
    files.fail_directory_write_back("/disk", nothing_kept)
    files.sync_directory("/disk")
    assert files.exists(A) and on_the_disk(files) == {}
    files.rename(A, A + "2")
    files.fail_directory_write_back("/disk", everything_kept)
    assert on_the_disk(files) == {A + "2": b"content"}


def test_lost_file_and_flipped_bit_show_with_and_without_a_crash(files):
    synced(files, A, b"\0\0")
    files.flip(A, 1, 7)
    assert files.files() == on_the_disk(files) == {A: b"\0\x80"}
    synced(files, "/disk/b", b"other")
    files.unlink("/disk/b")
    synced(files, "/disk/c", b"stays")
    files.lose(A)
    assert files.files() == files.crashed(everything_kept).files() == on_the_disk(files) == {"/disk/c": b"stays"}
    for call in (files.lose, lambda path: files.flip(path, 0, 0)):
        with pytest.raises(FileNotFoundError):
            call(A)

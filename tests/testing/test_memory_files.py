"""The file system in memory: the same as the real one while it runs, and what a power cut leaves of it."""

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


def test_what_was_synced_with_its_name_stays_whatever_the_loss(files):
    put(files, A, b"synced", sync=True)
    files.sync_directory("/disk")
    for loss in (*LOSSES, *map(drawn, range(50))):
        assert files.crashed(loss).files() == {A: b"synced"}


def test_a_synced_file_whose_name_is_not_durable_may_be_lost(files):
    put(files, A, b"synced", sync=True)
    assert files.crashed(nothing_kept).files() == files.crashed(contents_kept).files() == {}
    assert files.crashed(names_kept).files() == {A: b"synced"}


def test_a_name_may_be_kept_without_its_content(files):
    put(files, A, b"content")
    assert files.crashed(names_kept).files() == {A: b""}
    assert files.crashed(lengths_kept).files() == {A: bytes(7)}
    assert files.crashed(everything_kept).files() == {A: b"content"}


def test_writes_are_torn_by_sectors_in_any_order(files):
    file = put(files, A, b"", sync=True)
    files.sync_directory("/disk")
    write_all(file, [b"ab", b"cdefghij"], 1)
    assert files.crashed(everything_kept).files() == {A: b"\0abcdefghij"}
    assert files.crashed(last_kept).files() == {A: bytes(8) + b"hij"}
    assert files.crashed(every_other_kept).files() == {A: b"\0abc" + bytes(4) + b"hij"}
    seen = {files.crashed(drawn(seed)).files()[A] for seed in range(200)}
    assert {b"", b"\0abc", bytes(4) + b"defg", b"\0abcdefghij"} <= seen


def test_a_rename_replaces_at_once_or_not_at_all(files):
    replace_file(files, A, [b"old"])
    put(files, A + ".new", b"new", sync=True)
    files.rename(A + ".new", A)
    seen = {tuple(files.crashed(drawn(seed)).files().items()) for seed in range(200)}
    assert seen == {((A, b"old"),), ((A, b"new"),), ((A, b"old"), (A + ".new", b"new"))}


def test_an_unlink_may_be_undone(files):
    put(files, A, b"content", sync=True)
    files.sync_directory("/disk")
    files.unlink(A)
    assert files.files() == {}
    assert files.crashed(nothing_kept).files() == {A: b"content"}
    files.sync_directory("/disk")
    assert files.crashed(nothing_kept).files() == {}


def test_asking_for_a_crash_changes_nothing(files):
    file = put(files, A, b"content")
    files.crashed(nothing_kept)
    assert read_all(file) == b"content"
    after = files.crashed(everything_kept)
    write_all(after.open(A), [b"other"], 0)
    assert read_all(file) == b"content"


def test_a_directory_that_is_not_durable_is_lost_with_all_that_is_in_it(files):
    files.make_directory("/disk/b/c")
    put(files, "/disk/b/c/d", b"deep", sync=True)
    files.sync_directory("/disk/b/c")
    assert not files.crashed(nothing_kept).exists("/disk/b")
    assert files.crashed(names_kept).files() == {"/disk/b/c/d": b"deep"}


def test_a_full_disk_takes_what_there_is_room_for_then_nothing(files):
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


def test_reserved_space_counts_until_it_is_given_back(files):
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
    """What an operation answers, as far as both file systems have to agree on it."""
    kind, name, *rest = operation
    path = f"{root}/{name}"
    try:
        if kind == "write":
            return files.open(path, create=True).write([rest[0], b"+"], rest[1])
        if kind == "truncate":
            file = files.open(path)
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
def test_it_does_what_the_real_one_does(tmp_path_factory, operations):
    root = str(tmp_path_factory.mktemp("real"))
    real, memory = RealFileSystem(), MemoryFileSystem(root)
    for operation in operations:
        assert run(memory, root, operation) == run(real, root, operation)
        assert memory.list(root) == real.list(root)
    for name in real.list(root):
        path = os.path.join(root, name)
        assert read_all(memory.open(path)) == read_all(real.open(path))
        assert memory.exists(path)


def test_the_fates_of_a_seed_are_always_the_same(files):
    file = put(files, A, b"", sync=True)
    files.sync_directory("/disk")
    write_all(file, [os.urandom(64)], 0)
    for seed in range(5):
        first, second = (files.crashed(drawn(seed)).files() for _ in range(2))
        assert first == second
    assert any(a != b for a, b in pairwise(files.crashed(drawn(seed)).files()[A] for seed in range(5)))
    assert set(Fate) == {Fate.KEPT, Fate.LOST, Fate.ZEROED}


# -- disks that fail and lie


def synced(files, path, content):
    file = put(files, path, content, sync=True)
    files.sync_directory("/disk")
    return file


def on_the_disk(files):
    return files.crashed(nothing_kept).files()


def test_after_a_write_back_that_failed_a_later_sync_succeeds_without_the_data(files):
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


def test_of_two_files_that_were_open_each_is_told_of_a_failed_write_back_and_a_later_one_is_not(files):
    one, other = synced(files, A, b""), files.open(A)
    one.write([b"data"], 0)
    one.fail_write_back(nothing_kept)
    for file in (one, other):
        with pytest.raises(OSError, match="Input/output error"):
            file.sync()
        file.sync()
    files.open(A).sync()
    one.fail_write_back(nothing_kept)
    with pytest.raises(OSError, match="Input/output error"):
        files.open(A).sync()


def test_a_page_cache_that_is_emptied_shows_the_disk_and_what_is_not_synced(files):
    file = synced(files, A, b"old-")
    file.write([b"new-"], 0)
    file.fail_write_back(nothing_kept)
    file.write([b"more"], 4)
    files.evict()
    assert files.files() == {A: b"old-more"}


def test_a_write_that_the_disk_loses_or_puts_elsewhere_shows_after_a_crash(files):
    file = synced(files, A, b"0123456789")
    assert file.write_elsewhere([b"ab"], 2, None) == file.write_elsewhere([b"cd"], 10, None) == 2
    assert file.write_elsewhere([b"ef"], 4, 7) == file.write_elsewhere([b"gh"], 0, -1) == 2
    file.sync()
    assert files.files() == {A: b"ghabef6789cd"}
    assert on_the_disk(files) == {A: b"h123456ef9\0\0"}


def test_names_that_a_failed_sync_of_the_directory_loses_are_not_brought_by_a_later_one(files):
    put(files, A, b"content", sync=True)
    files.fail_directory_write_back("/disk", nothing_kept)
    files.sync_directory("/disk")
    assert files.exists(A) and on_the_disk(files) == {}
    files.rename(A, A + "2")
    files.fail_directory_write_back("/disk", everything_kept)
    assert on_the_disk(files) == {A + "2": b"content"}


def test_a_file_vanishes_and_a_bit_flips_whether_there_is_a_crash_or_not(files):
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

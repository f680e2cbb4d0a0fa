"""The real file system where it differs from the one in memory, and the layers in front of file systems."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from bookspark.store.bookie.disk import file_system
from bookspark.store.bookie.disk.file_system import RealFileSystem, write_all
from bookspark.store.bookie.offline.inspection import DryRunFileSystem
from bookspark.support.private_files import PRIVATE_DIRECTORY, PRIVATE_FILE
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem


def test_exists_raises_for_a_path_that_cannot_be_examined(tmp_path: Path) -> None:
    """``os.path.exists`` is false on any error: on a disk that gave EIO, the unclean marker seemed absent and the stop clean."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        RealFileSystem().exists(str(tmp_path / "loop"))


def test_exists_is_false_for_a_missing_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = RealFileSystem()
    assert files.exists(str(tmp_path / "file"))
    assert not files.exists(str(tmp_path / "none"))
    assert not files.exists(str(tmp_path / "file" / "below"))


def test_sync_directory_syncs_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.readlink(f"/proc/self/fd/{descriptor}")))
    RealFileSystem().sync_directory(str(tmp_path))
    assert synced == [str(tmp_path)]


def test_sync_directory_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        RealFileSystem().sync_directory(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        RealFileSystem().sync_directory(str(tmp_path / "none"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_real_files_write_read_truncate_and_preallocate_as_the_seam_defines(tmp_path: Path) -> None:
    files, path = RealFileSystem(), str(tmp_path / "deep" / "file")
    files.make_directory(str(tmp_path / "deep"))
    files.make_directory(str(tmp_path / "deep"))
    assert (tmp_path / "deep").stat().st_mode & 0o777 == PRIVATE_DIRECTORY
    with pytest.raises(FileNotFoundError):
        files.open(path)
    file = files.open(path, create=True)
    assert (tmp_path / "deep" / "file").stat().st_mode & 0o777 == PRIVATE_FILE
    assert file.write([b"abc", b"defg"], 2) == 7 and file.size() == 9
    assert file.read(100, 0) == b"\0\0abcdefg" and file.read(3, 4) == b"cde" and file.read(5, 9) == b""
    file.sync()
    into = memoryview(bytearray(4))
    assert file.read_cached(into, 2) and bytes(into) == b"abcd"
    assert not file.read_cached(into, 7), "the file ends before"
    file.drop_cached()
    file.preallocate(1 << 16)
    assert file.size() == 9
    file.truncate(3)
    assert file.size() == 3 and file.read(9, 0) == b"\0\0a"
    assert files.list(str(tmp_path / "deep")) == ["file"]
    with pytest.raises(OSError):
        files.open(path).write([b"a log is opened for reading only, to read"], 0)
    files.open(path, write=True).write([b"b"], 0)
    assert files.open(path).read(9, 0) == b"b\0a"
    files.rename(path, path + "2")
    files.unlink(path + "2")
    with pytest.raises(FileNotFoundError):
        files.unlink(path)
    assert 0 < files.free_bytes(str(tmp_path)) <= files.total_bytes(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    file.close()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_read_continues_after_a_short_read_of_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)
    file.write([b"0123456789"], 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, position: pread(descriptor, min(size, 3), position))
    assert file.read(8, 1) == b"12345678" and file.read(20, 4) == b"456789"


@pytest.mark.parametrize(("number", "answer"), [(errno.EAGAIN, False), (errno.EOPNOTSUPP, False), (errno.EIO, None)])
def test_cached_read_is_false_for_a_page_cache_miss_and_raises_other_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, answer: bool | None
) -> None:
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)

    def preadv(*arguments: object) -> int:
        raise OSError(number, "on purpose")

    monkeypatch.setattr(os, "preadv", preadv)
    if answer is None:
        with pytest.raises(OSError, match="on purpose"):
            file.read_cached(memoryview(bytearray(1)), 0)
    else:
        assert file.read_cached(memoryview(bytearray(1)), 0) is answer


@pytest.mark.parametrize(("number", "raises"), [(errno.EOPNOTSUPP, False), (errno.ENOSPC, True)])
def test_preallocate_ignores_an_unsupported_call_and_raises_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, raises: bool
) -> None:
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)
    monkeypatch.setattr(file_system, "_libc", SimpleNamespace(fallocate=lambda *arguments: -1))
    monkeypatch.setattr(file_system.ctypes, "get_errno", lambda: number)
    if raises:
        with pytest.raises(OSError, match="No space"):
            file.preallocate(10)
    else:
        file.preallocate(10)


def test_dry_run_creates_files_in_memory_and_raises_for_a_missing_file():
    files = DryRunFileSystem(MemoryFileSystem("/disk"))
    with pytest.raises(FileNotFoundError):
        files.open("/disk/new")
    files.open("/disk/new", create=True).close()
    assert files.open("/disk/new").size() == 0


def test_write_all_continues_after_a_short_write_and_raises_if_nothing_is_written():
    files = FaultyFileSystem(MemoryFileSystem("/disk"), "write * 1.. short:3")
    file = files.open("/disk/file", create=True)
    assert write_all(file, [b"0123", b"", b"4567"], 2) == 10
    assert file.read(10, 0) == b"\0\0" + b"01234567"
    files.clear()
    files.add("write * 1.. short:0")
    with pytest.raises(OSError, match="wrote nothing"):
        write_all(file, [b"0123"], 0)


def test_write_all_writes_more_than_1024_buffers_in_order(tmp_path: Path) -> None:
    """The kernel takes 1,024 buffers at once and refuses more (EINVAL)."""
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)
    buffers = [b"%04d" % number for number in range(2049)]
    assert write_all(file, buffers, 0) == 4 * len(buffers)
    assert file.read(1 << 20, 0) == b"".join(buffers)
    file.close()


def test_link_is_not_followed_to_a_file(tmp_path):
    (tmp_path / "file").write_bytes(b"another's")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "dangling").symlink_to("new")
    for how in ({}, {"write": True}, {"create": True}):
        for name in ("link", "dangling"):
            with pytest.raises(OSError, match="symbolic link"):
                RealFileSystem().open(str(tmp_path / name), **how)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "file", "link"]

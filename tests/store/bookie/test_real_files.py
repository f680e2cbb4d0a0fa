"""The file system of the machine, where it differs from the one in memory; and what stands in front of file systems."""

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


def test_what_can_not_be_looked_at_is_not_absent(tmp_path: Path) -> None:
    """``os.path.exists`` says no to any error. On a disk that gives EIO, no unclean marker was taken for a clean stop."""
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="loop"):
        RealFileSystem().exists(str(tmp_path / "loop"))


def test_what_is_not_there_is_absent(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    files = RealFileSystem()
    assert files.exists(str(tmp_path / "file"))
    assert not files.exists(str(tmp_path / "none"))
    assert not files.exists(str(tmp_path / "file" / "below"))


def test_a_sync_of_names_leaves_no_descriptor_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        RealFileSystem().sync_directory(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        RealFileSystem().sync_directory(str(tmp_path / "none"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_file_is_written_read_cut_and_reserved_as_the_seam_says(tmp_path: Path) -> None:
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
    files.rename(path, path + "2")
    files.unlink(path + "2")
    with pytest.raises(FileNotFoundError):
        files.unlink(path)
    assert 0 < files.free_bytes(str(tmp_path)) <= files.total_bytes(str(tmp_path))
    before = len(os.listdir("/proc/self/fd"))
    file.close()
    file.close()
    assert len(os.listdir("/proc/self/fd")) == before - 1


def test_short_reads_of_the_kernel_are_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)
    file.write([b"0123456789"], 0)
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda descriptor, size, position: pread(descriptor, min(size, 3), position))
    assert file.read(8, 1) == b"12345678" and file.read(20, 4) == b"456789"


@pytest.mark.parametrize(("number", "answer"), [(errno.EAGAIN, False), (errno.EOPNOTSUPP, False), (errno.EIO, None)])
def test_what_the_page_cache_can_not_give_now_is_no_error(
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
def test_a_file_system_that_can_not_reserve_space_is_only_slower(
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


def test_dry_run_makes_files_and_finds_none_that_is_missing():
    files = DryRunFileSystem(MemoryFileSystem("/disk"))
    with pytest.raises(FileNotFoundError):
        files.open("/disk/new")
    files.open("/disk/new", create=True).close()
    assert files.open("/disk/new").size() == 0


def test_rest_of_a_short_write_is_written_after_it_and_a_write_of_nothing_is_an_error():
    files = FaultyFileSystem(MemoryFileSystem("/disk"), "write * 1.. short:3")
    file = files.open("/disk/file", create=True)
    assert write_all(file, [b"0123", b"", b"4567"], 2) == 10
    assert file.read(10, 0) == b"\0\0" + b"01234567"
    files.clear()
    files.add("write * 1.. short:0")
    with pytest.raises(OSError, match="wrote nothing"):
        write_all(file, [b"0123"], 0)


def test_more_buffers_than_the_kernel_takes_at_once_are_written_in_order(tmp_path: Path) -> None:
    """It takes 1,024 and refuses more (EINVAL)."""
    file = RealFileSystem().open(str(tmp_path / "file"), create=True)
    buffers = [b"%04d" % number for number in range(2049)]
    assert write_all(file, buffers, 0) == 4 * len(buffers)
    assert file.read(1 << 20, 0) == b"".join(buffers)
    file.close()

"""The file system of the machine, where it differs from the one in memory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bookspark.bookie.disk.file_system import RealFileSystem


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

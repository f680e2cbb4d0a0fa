"""Inputs of the main job, counted without Spark, and its run folders."""

from __future__ import annotations

import bz2
import gzip
import os
from pathlib import Path

import pytest

from bookspark.errors import ConfigurationError
from bookspark.lab.demo import inputs as module
from bookspark.lab.demo.inputs import Content, InputChangedError, InputError, count_file, find_input
from bookspark.lab.demo.job import ENDED_RUNS_KEPT, RunFolder


@pytest.mark.parametrize(
    ("data", "content"),
    [
        (b"", Content(0, 0, 0)),
        (b"\n", Content(1, 0, 0)),
        (b"a", Content(1, 1, 1)),
        (b"a\n", Content(1, 1, 1)),
        (b"a\n\nbcd", Content(3, 4, 3)),
        (b"a\r\nb\r", Content(2, 4, 2)),
        (b"\xef\xbb\xbfa\n", Content(1, 1, 1)),
        (b"a\n\xef\xbb\xbf", Content(2, 4, 3)),
    ],
)
def test_count_file_counts_lines_bytes_and_the_longest_line(tmp_path: Path, data: bytes, content: Content) -> None:
    path = tmp_path / "file"
    path.write_bytes(data)
    assert count_file(path) == content


def test_lines_longer_than_a_chunk_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CHUNK_BYTES", 7)
    lines = [b"x" * length for length in (0, 1, 6, 7, 8, 13, 14, 15, 50, 0)]
    path = tmp_path / "file"
    path.write_bytes(b"\n".join(lines))
    assert count_file(path) == Content(9, sum(map(len, lines)), 50)


def test_compressed_files_are_counted_as_spark_reads_them(tmp_path: Path) -> None:
    (tmp_path / "a.gz").write_bytes(gzip.compress(b"one\ntwo\n"))
    (tmp_path / "b.BZ2").write_bytes(bz2.compress(b"three\n"))
    found = find_input(tmp_path)
    assert found.content == Content(3, 11, 5)
    links = tmp_path / "links"
    links.mkdir()
    found.link_into(links)
    assert sorted(link.name for link in links.iterdir()) == ["000000.gz", "000001.bz2"]


def test_hidden_files_are_ignored_and_odd_names_are_not(tmp_path: Path) -> None:
    for name in ("a b*[c]:d.log", ".hidden", "_SUCCESS", "deep/er/é.jsonl", ".git/x", "_temporary/y"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("line\n")
    assert [str(path.relative_to(tmp_path)) for path in find_input(tmp_path).files] == [
        "a b*[c]:d.log",
        "deep/er/é.jsonl",
    ]


def test_folders_and_files_that_spark_can_not_ingest_are_refused(tmp_path: Path) -> None:
    def refused(words: str, folder: Path = tmp_path) -> None:
        with pytest.raises(InputError, match=words):
            find_input(folder)

    refused("does not exist", tmp_path / "missing")
    refused("has no files")
    (tmp_path / "empty").touch()
    refused("all empty")
    refused("is a file", tmp_path / "empty")
    (tmp_path / "x.zst").write_bytes(b"?")
    refused("unpack it")
    (tmp_path / "x.zst").rename(tmp_path / "x.gz")
    refused("can't be read")
    (tmp_path / "x.gz").unlink()
    with (tmp_path / "long").open("wb") as file:
        file.truncate(300 << 20)
    refused("is it a text file")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_unreadable_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    (tmp_path / "secret").chmod(0)
    with pytest.raises(InputError, match="secret can't be read: Permission denied"):
        find_input(tmp_path)


def test_file_changed_after_the_count_is_detected(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x\n")
    found = find_input(tmp_path)
    found.check_unchanged()
    with (tmp_path / "a").open("a") as file:
        file.write("y\n")
    with pytest.raises(InputChangedError, match="was changed"):
        found.check_unchanged()


def test_only_the_last_ended_runs_are_kept(tmp_path: Path) -> None:
    running = RunFolder(tmp_path, tmp_path / "00000000-000000-1")
    for number in range(ENDED_RUNS_KEPT + 2):
        RunFolder(tmp_path, tmp_path / f"20200101-00000{number}-1").close()
    new = RunFolder(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        running.path.name,
        *(f"20200101-00000{number}-1" for number in range(2, ENDED_RUNS_KEPT + 2)),
        new.path.name,
    }
    for run in (running, new):
        run.close()


def test_folder_that_is_not_empty_is_refused_as_a_run_folder(tmp_path: Path) -> None:
    (tmp_path / "x").touch()
    with pytest.raises(ConfigurationError, match="not empty"):
        RunFolder(tmp_path, tmp_path)

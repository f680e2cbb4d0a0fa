"""The calls and responses of a process, a line each, in a file that outlives it.

Law: the line of a call is written before the call, and the line of a response after it, each with one ``write``; so their times
enclose the event, and a SIGKILL loses no written line. Times are those of ``time.monotonic_ns``, which all processes of a host
share. Each process has a file of its own, so an incomplete line is the last one of its file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """A line of a journal."""

    what: str
    time: int
    words: tuple[str, ...]


class Journal:
    """The journal of this process."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_EXCL, 0o600)

    def write(self, what: str, *words: object) -> None:
        """Write a line."""
        os.write(self._file, f"{what} {time.monotonic_ns()} {' '.join(map(str, words))}\n".encode())

    def write_all(self, what: str, lines: list[str]) -> None:
        """Write lines with the same time."""
        now = time.monotonic_ns()
        os.write(self._file, "".join(f"{what} {now} {line}\n" for line in lines).encode())


def lines(path: Path) -> Iterator[Line]:
    """Complete lines of a journal."""
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            what, moment, *words = line.split()
            yield Line(what, int(moment), tuple(words))


def lives(folder: Path, name: str) -> list[Path]:
    """Journals of the lives of ``name``, in order."""
    return sorted(folder.glob(f"{name}.*.journal"), key=lambda path: int(path.name.split(".")[-2]))

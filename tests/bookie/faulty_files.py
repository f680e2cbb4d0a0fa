"""A real file system of which single calls fail."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any

from bookspark.bookie.file_system import RealFileSystem


class FaultyFile:
    def __init__(self, file: Any, path: str, check: Callable[[str, str], None]) -> None:
        self._file = file
        self._path = path
        self._check = check

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._file, name)

        def checked(*arguments: Any) -> Any:
            self._check(name, self._path)
            return call(*arguments)

        return checked


class FaultyFiles(RealFileSystem):
    """``fail(call, part of the path)``: from now on, every such call raises an I/O error. ``calls`` has all that were made."""

    def __init__(self) -> None:
        self._rules: list[tuple[str, str]] = []
        self.calls: list[tuple[str, str]] = []

    def fail(self, call: str, path: str) -> None:
        self._rules.append((call, path))

    def _check(self, call: str, path: str) -> None:
        self.calls.append((call, path))
        if any(call == name and part in path for name, part in self._rules):
            raise OSError(errno.EIO, "Input/output error (on purpose)", path)

    def open(self, path: str, *, create: bool = False) -> Any:
        self._check("open", path)
        return FaultyFile(super().open(path, create=create), path, self._check)

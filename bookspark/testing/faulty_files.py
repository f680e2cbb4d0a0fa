"""A file system in which chosen operations fail, by rules.

Law: an operation without a matching rule passes unchanged. A rule is data, one line of text::

    <operation> <path pattern> <which> <fault>          sync */logs/*.arrows 1.. io-error

    operation     write read read_cached drop_cached sync preallocate truncate size · open create exists list make_directory
                  rename unlink sync_directory free_bytes total_bytes inodes · * for any of them (``create`` is an ``open``
                  that makes the file)
    path pattern  a pattern of ``fnmatch`` for the whole path (for a rename: the source); in quotes if it has spaces
    which         which of the matching operations, counted from 1: ``3``, ``3..5`` or ``3..``
    fault         io-error     the operation fails with EIO
                  no-space     it fails with ENOSPC
                  too-many-files   it fails with EMFILE
                  read-only    it fails with EROFS
                  stale        it fails with ESTALE
                  no-device    it fails with ENXIO
                  gone         it fails with ENOENT
                  short:N      a write writes only N bytes, and returns N
                  bad-sector:N   a read of the file's 4 KiB block with byte N fails with EIO
                  flip:N.B     bit B (0 is the lowest) of the file's byte N is inverted in the data read or written
                  lost         a write is reported done, but never reaches the disk
                  misdirected:N   a write is reported done, but lands N bytes further on (N may be negative) on the disk
                  write-back:SEED   write-back fails: the disk has a part of the unsynced data, drawn from SEED. On a sync, this
                               sync fails with EIO; on a write, the next one does. Later syncs succeed without the rest
                  slow:S       the operation takes S seconds longer
                  hold         the operation waits until ``release()``

The first rule that strikes decides. Every rule counts all its matching operations. ``lost``, ``misdirected`` and
``write-back`` need a ``MemoryFileSystem`` below, which separates page cache and disk.

Source: pebble's ``errorfs``.
"""

from __future__ import annotations

import errno
import os
import shlex
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from bookspark.store.bookie.disk.file_system import File, FileSystem
from bookspark.store.wire.entry_batch import Buffer
from bookspark.testing.memory_files import MemoryFile, MemoryFileSystem
from bookspark.testing.power_cuts import drawn

HOLD_SECONDS_MAX = 60.0
"""A held operation without a release fails with ETIMEDOUT after this time."""
_ERRORS = {
    "io-error": errno.EIO, "no-space": errno.ENOSPC, "too-many-files": errno.EMFILE, "read-only": errno.EROFS,
    "stale": errno.ESTALE, "no-device": errno.ENXIO, "gone": errno.ENOENT,
}  # fmt: skip


class Operation(NamedTuple):
    """An operation on the file system. ``kind`` is its word in a rule."""

    kind: str
    path: str


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule in the language of the module docstring."""

    kind: str
    path: str
    first: int
    """Number, from 1, of the first matching operation that fails."""
    last: int | None
    """Number of the last such operation; None: all later ones."""
    fault: str
    argument: str = ""

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Parse a rule from a line of text. Raises ValueError with the reason."""
        words = shlex.split(text)
        if len(words) != 4:
            raise ValueError(f"{text!r} is no rule: it takes <operation> <path pattern> <which> <fault>")
        kind, path, which, fault = words
        name, _, argument = fault.partition(":")
        if kind not in {"*", *_OPERATIONS}:
            raise ValueError(f"{text!r}: {kind} is no operation; it is one of {', '.join(_OPERATIONS)}, or *")
        start, dots, end = which.partition("..")
        if not start.isdigit() or not (end.isdigit() or not end):
            raise ValueError(f"{text!r}: {which} is not 3, 3..5 or 3..")
        if name not in _FAULTS or bool(argument) != (name in _WITH_ARGUMENT):
            raise ValueError(f"{text!r}: {fault} is no fault; it is one of {', '.join(_FAULTS)}")
        last = int(end) if end else None if dots else int(start)
        return cls(kind, path, int(start), last, name, argument)

    def matches(self, operation: Operation) -> bool:
        return self.kind in ("*", operation.kind) and fnmatchcase(operation.path, self.path)

    def strikes(self, number: int) -> bool:
        """Whether the rule strikes the ``number``-th matching operation, counted from 1."""
        return self.first <= number and (self.last is None or number <= self.last)


class FaultyFileSystem:
    """A file system over another, with rules: ``FaultyFileSystem(RealFileSystem(), "write * 3 no-space")``.

    ``calls`` lists every operation so far, failed or not.
    """

    def __init__(
        self,
        inner: FileSystem,
        *rules: str,
        before: Callable[[Operation], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """``before`` is called before each operation, in the operation's thread. ``slow`` calls ``sleep``."""
        self._inner = inner
        self._before = before
        self._sleep = sleep
        self._rules = [Rule.parse(rule) for rule in rules]
        self._matched: Counter[Rule] = Counter()
        self._lock = threading.Lock()
        self._holding = threading.Event()
        self._released = threading.Event()
        self.calls: list[Operation] = []

    def add(self, rule: str) -> None:
        """Add a rule, which counts operations from now on. Raises ValueError for a malformed rule."""
        parsed = Rule.parse(rule)
        with self._lock:
            self._matched[parsed] = 0
            self._rules.append(parsed)

    def clear(self) -> None:
        """Remove all rules, and release held operations."""
        with self._lock:
            self._rules.clear()
            self._matched.clear()
        self.release()

    def wait_held(self) -> None:
        """Wait until an operation is held. Raises TimeoutError after ``HOLD_SECONDS_MAX``."""
        if not self._holding.wait(HOLD_SECONDS_MAX):
            raise TimeoutError("no operation was held")

    def release(self) -> None:
        """Let held operations continue. The rule holds later ones again."""
        self._holding.clear()
        self._released.set()

    # -- the seam

    def open(self, path: str, *, write: bool = False, create: bool = False) -> File:
        self.strike("create" if create and not self._inner.exists(path) else "open", path)
        return _FaultyFile(self, self._inner.open(path, write=write, create=create), path)

    def exists(self, path: str) -> bool:
        self.strike("exists", path)
        return self._inner.exists(path)

    def list(self, directory: str) -> list[str]:
        self.strike("list", directory)
        return self._inner.list(directory)

    def make_directory(self, path: str) -> None:
        self.strike("make_directory", path)
        self._inner.make_directory(path)

    def rename(self, source: str, target: str) -> None:
        self.strike("rename", source)
        self._inner.rename(source, target)

    def unlink(self, path: str) -> None:
        self.strike("unlink", path)
        self._inner.unlink(path)

    def sync_directory(self, path: str) -> None:
        rule = self.strike("sync_directory", path)
        if rule is not None and rule.fault == "write-back":
            if not isinstance(self._inner, MemoryFileSystem):
                raise TypeError(_NEEDS_MEMORY)
            self._inner.fail_directory_write_back(path, drawn(int(rule.argument)))
            raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (on purpose)", path)
        self._inner.sync_directory(path)

    def free_bytes(self, path: str) -> int:
        self.strike("free_bytes", path)
        return self._inner.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        self.strike("total_bytes", path)
        return self._inner.total_bytes(path)

    def inodes(self, path: str) -> tuple[int, int]:
        self.strike("inodes", path)
        return self._inner.inodes(path)

    # -- rules

    def strike(self, kind: str, path: str) -> Rule | None:
        """Apply the first rule that strikes this operation. Returns that rule, because the caller carries out faults of the
        data such as ``short`` and ``flip``; None if no rule strikes. Raises OSError for a fault that fails the operation."""
        operation = Operation(kind, path)
        if self._before is not None:
            self._before(operation)
        self.calls.append(operation)
        if not self._rules:
            return None
        with self._lock:
            rule = None
            for candidate in self._rules:
                if candidate.matches(operation):
                    self._matched[candidate] += 1
                    if rule is None and candidate.strikes(self._matched[candidate]):
                        rule = candidate
            if rule is not None and rule.fault == "hold":
                self._released.clear()
                self._holding.set()
        if rule is None:
            return None
        if rule.fault in _ERRORS:
            number = _ERRORS[rule.fault]
            raise OSError(number, f"{os.strerror(number)} (on purpose)", path)
        if rule.fault == "slow":
            self._sleep(float(rule.argument))
        elif rule.fault == "hold" and not self._released.wait(HOLD_SECONDS_MAX):
            raise OSError(errno.ETIMEDOUT, "held and never released", path)
        return rule


class _FaultyFile:
    def __init__(self, file_system: FaultyFileSystem, inner: File, path: str) -> None:
        self._file_system = file_system
        self._inner = inner
        self._path = path

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        rule = self._file_system.strike("write", self._path)
        if rule is not None and rule.fault == "short":
            return self._inner.write([b"".join(buffers)[: int(rule.argument)]], position)
        if rule is not None and rule.fault == "flip":
            return self._inner.write([_flipped(b"".join(buffers), position, rule.argument)], position)
        if rule is not None and rule.fault in ("lost", "misdirected"):
            target = None if rule.fault == "lost" else position + int(rule.argument)
            return self._memory().write_elsewhere(buffers, position, target)
        written = self._inner.write(buffers, position)
        if rule is not None and rule.fault == "write-back":
            self._memory().fail_write_back(drawn(int(rule.argument)))
        return written

    def read(self, size: int, position: int) -> bytes:
        rule = self._file_system.strike("read", self._path)
        if _is_bad(rule, position, size):
            raise OSError(errno.EIO, f"{os.strerror(errno.EIO)} (on purpose)", self._path)
        content = self._inner.read(size, position)
        return _flipped(content, position, rule.argument) if rule is not None and rule.fault == "flip" else content

    def read_cached(self, into: memoryview, position: int) -> bool:
        rule = self._file_system.strike("read_cached", self._path)
        if _is_bad(rule, position, len(into)):
            return False
        is_cached = self._inner.read_cached(into, position)
        if is_cached and rule is not None and rule.fault == "flip":
            into[:] = _flipped(into, position, rule.argument)
        return is_cached

    def drop_cached(self) -> None:
        self._file_system.strike("drop_cached", self._path)
        self._inner.drop_cached()

    def sync(self) -> None:
        rule = self._file_system.strike("sync", self._path)
        if rule is not None and rule.fault == "write-back":
            self._memory().fail_write_back(drawn(int(rule.argument)))
        self._inner.sync()

    def preallocate(self, size: int) -> None:
        self._file_system.strike("preallocate", self._path)
        self._inner.preallocate(size)

    def truncate(self, size: int) -> None:
        self._file_system.strike("truncate", self._path)
        self._inner.truncate(size)

    def size(self) -> int:
        self._file_system.strike("size", self._path)
        return self._inner.size()

    def close(self) -> None:
        self._inner.close()

    def _memory(self) -> MemoryFile:
        if not isinstance(self._inner, MemoryFile):
            raise TypeError(_NEEDS_MEMORY)
        return self._inner


def _is_bad(rule: Rule | None, position: int, size: int) -> bool:
    if rule is None or rule.fault != "bad-sector":
        return False
    start = int(rule.argument) // _BLOCK_BYTES * _BLOCK_BYTES
    return position < start + _BLOCK_BYTES and position + size > start


def _flipped(content: Buffer, position: int, place: str) -> bytes:
    """``content``, located at ``position`` in the file, with one bit inverted. ``place`` is ``N.B``: byte of the file, bit."""
    byte, _, bit = place.partition(".")
    at = int(byte) - position
    changed = bytearray(content)
    if 0 <= at < len(changed):
        changed[at] ^= 1 << int(bit or 0)
    return bytes(changed)


_BLOCK_BYTES = 4096
_FILE_OPERATIONS = ("write", "read", "read_cached", "drop_cached", "sync", "preallocate", "truncate", "size")
_NAME_OPERATIONS = (
    "open", "create", "exists", "list", "make_directory", "rename", "unlink", "sync_directory", "free_bytes",
    "total_bytes", "inodes",
)  # fmt: skip
_OPERATIONS = (*_FILE_OPERATIONS, *_NAME_OPERATIONS)
_WITH_ARGUMENT = frozenset({"short", "flip", "slow", "misdirected", "write-back", "bad-sector"})
_FAULTS = (
    *_ERRORS, "short", "flip", "slow", "hold", "lost", "misdirected", "write-back", "bad-sector",
)  # fmt: skip
_NEEDS_MEMORY = "this fault needs a MemoryFileSystem below, which tells what is on the disk"

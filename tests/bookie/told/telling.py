"""What a bookie does, told as lines of text: what is done to its files, what it logs, what it answers.

Law: whatever anybody outside could see is told: files (what is written where, synced, renamed, closed, and in which order),
warnings, answers, and on request all that the storage knows. Nothing of it depends on time, chance or threads: the clock is the
story's, and there are no threads (``stepped``). So two tellings of a story are the same unless the bookie is another one.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from bookspark.bookie.commit.commit_thread import CommitThread
from bookspark.bookie.disk.file_system import File, FileSystem
from bookspark.testing.faulty_files import FaultyFileSystem
from bookspark.testing.memory_files import MemoryFileSystem
from bookspark.wire.entry_batch import Buffer
from tests.bookie.stepped import AtOnce, without_threads

_WIDTH = 126
_MODULES_WITH_CLOCK = ("commit_thread", "group_writer", "background_sync")


class Telling:
    """Lines of text. ``note`` what belongs to the call that was told last."""

    def __init__(self) -> None:
        self.now = 100.0
        """Seconds of the story's clock."""
        self.lines: list[str] = []
        self._notes: list[str] = []
        self.muted = False
        """Is nothing told at present?"""
        self.brief = False
        """Only calls, answers and warnings: of the rest of a section a digest, so that a change of it is seen all the same."""
        self.whole = False
        """Is nothing left out, although a story is brief?"""
        self.clocked = False
        """Does each note that comes later than the one before say when?"""
        self._noted_at = self.now
        self._left_out: list[str] = []

    def note(self, what: str) -> None:
        if self.muted:
            return
        if self.clocked and self.now != self._noted_at:
            self._noted_at = self.now
            what = f"at {self.now:.3f} {what}"
        self._notes.append(what)

    def flush(self) -> None:
        """The notes so far, several in a line."""
        line = "   "
        for note in self._notes:
            if len(line) > 3 and len(line) + len(note) + 2 > _WIDTH:
                self._put(line)
                line = "   "
            line += (" " if line == "   " else "; ") + note
        if line != "   ":
            self._put(line)
        self._notes.clear()

    def line(self, what: str) -> None:
        if not self.muted:
            self.flush()
            self._put(what)

    def section(self, what: str) -> None:
        """What follows belongs together."""
        self.end_section()
        self.line(f"--- {what}")

    def text(self) -> str:
        self.end_section()
        return "\n".join(self.lines) + "\n"

    def _put(self, line: str) -> None:
        # What is wrong with it is said by a library.
        line = re.sub(r"(the body of an? \w+): .*", r"\1 is wrong", line)
        line = re.sub(r"\('127.0.0.1', \d+\)", "here", line)
        if self.brief and not self.whole and line[:2] == "  " and line[:3] not in ("  =", "  !", "  -"):
            self._left_out.append(line)
        else:
            self.lines.append(line)

    def end_section(self) -> None:
        """What was left out so far has a digest of its own."""
        self.flush()
        if self._left_out:
            self.lines.append(f"  … {len(self._left_out)} lines {digest(chr(10).join(self._left_out).encode())}")
            self._left_out.clear()


def digest(content: bytes) -> str:
    """No CRC: that of bytes which end with their own CRC is always the same."""
    return hashlib.blake2b(content, digest_size=2).hexdigest()


def short(path: str) -> str:
    """Without the zeros of a log's number."""
    folder, _, name = path[1:].rpartition("/")
    stem, dot, rest = name.partition(".")
    return f"{folder}/{stem.lstrip('0') or '0' if len(stem) == 8 else stem}{dot}{rest}"


class _ToldFile:
    def __init__(self, telling: Telling, path: str, inner: File) -> None:
        self._telling, self._path, self._inner = telling, short(path), inner

    def _tell(self, what: str, call: Callable[[], Any], more: str = "") -> Any:
        return told(self._telling, f"{what} {self._path}{more}", call)

    def write(self, buffers: Sequence[Buffer], position: int) -> int:
        content = b"".join(buffers)
        what = f" {position}+{len(content)} {digest(content)}"
        return self._tell("write", lambda: self._inner.write(buffers, position), what)

    def read(self, size: int, position: int) -> bytes:
        if self._telling.brief:
            self._telling.note(f"read {self._path} {position}+{size}")
        return self._inner.read(size, position)

    def read_cached(self, into: memoryview, position: int) -> bool:
        if self._telling.brief:
            self._telling.note(f"read what is cached of {self._path} {position}+{len(into)}")
        return self._inner.read_cached(into, position)

    def drop_cached(self) -> None:
        self._tell("drop", self._inner.drop_cached)

    def sync(self) -> None:
        self._tell("sync", self._inner.sync)

    def preallocate(self, size: int) -> None:
        self._tell("reserve", lambda: self._inner.preallocate(size), f" {size}")

    def truncate(self, size: int) -> None:
        self._tell("cut", lambda: self._inner.truncate(size), f" {size}")

    def size(self) -> int:
        return self._inner.size()

    def close(self) -> None:
        self._tell("close", self._inner.close)


def told(telling: Telling, what: str, call: Callable[[], Any]) -> Any:
    """Make a call on files, and tell of it, with the error that it came to."""
    try:
        result = call()
    except OSError as error:
        telling.note(f"{what} {errno.errorcode[error.errno or 0]}")
        raise
    telling.note(what)
    return result


def attempt(telling: Telling, what: str, call: Callable[[], object]) -> Any:
    """Make a call, and tell what it came to."""
    try:
        value = call()
    except Exception as error:
        telling.line(f"{'    ' * telling.brief}{what}: {type(error).__name__} {error}")
        return None
    telling.line(f"{'    ' * telling.brief}{what}: {value}")
    return value


class ToldFiles:
    """A file system that tells what is done to its files. What is only asked is not told, and what is read goes into digests."""

    def __init__(self, telling: Telling, inner: FileSystem) -> None:
        self._telling, self._inner = telling, inner

    def open(self, path: str, *, create: bool = False) -> File:
        what = "open" if not create or self._inner.exists(path) else "make"
        file = told(self._telling, f"{what} {short(path)}", lambda: self._inner.open(path, create=create))
        return _ToldFile(self._telling, path, file)

    def exists(self, path: str) -> bool:
        return self._inner.exists(path)

    def list(self, directory: str) -> list[str]:
        return self._inner.list(directory)

    def make_directory(self, path: str) -> None:
        told(self._telling, f"make {path[1:]}/", lambda: self._inner.make_directory(path))

    def rename(self, source: str, target: str) -> None:
        what = f"rename {short(source)} {target.rpartition('/')[2].lstrip('0')}"
        told(self._telling, what, lambda: self._inner.rename(source, target))

    def unlink(self, path: str) -> None:
        told(self._telling, f"unlink {short(path)}", lambda: self._inner.unlink(path))

    def sync_directory(self, path: str) -> None:
        told(self._telling, f"sync {path[1:]}/", lambda: self._inner.sync_directory(path))

    def free_bytes(self, path: str) -> int:
        return self._inner.free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._inner.total_bytes(path)


def told_files(telling: Telling, *rules: str) -> tuple[MemoryFileSystem, FaultyFileSystem, ToldFiles]:
    """A disk in memory, the same with faults by ``rules``, and that one told."""
    disk = MemoryFileSystem("/a", "/a/logs")
    faults = FaultyFileSystem(disk, *rules)
    return disk, faults, ToldFiles(telling, faults)


class _Logged(logging.Handler):
    def __init__(self, telling: Telling) -> None:
        super().__init__(logging.INFO)
        self._telling = telling

    def emit(self, record: logging.LogRecord) -> None:
        self._telling.line(f"  ! {record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def apart_from_time(telling: Telling) -> Iterator[None]:
    """No threads, no clock but the story's, no compression (whose bytes are another library's); and what is logged is told."""

    def start(thread: Any, post: Any, completed: Any, soon: Any = None, *, alone: bool = False) -> None:
        thread._soon, thread.told = soon, (post, completed)
        if alone and soon is not None:
            thread._completed = completed

    log, handler = logging.getLogger("bookspark"), _Logged(telling)
    with ExitStack() as stack:
        stack.enter_context(without_threads())
        stack.enter_context(patch.object(CommitThread, "start", start))
        for module in _MODULES_WITH_CLOCK:
            stack.enter_context(patch(f"bookspark.bookie.commit.{module}.monotonic", lambda: telling.now))
        stack.enter_context(patch("bookspark.bookie.disk.rewritten_block._ZSTD_BYTES_MIN", 1 << 60))
        stack.enter_context(patch("bookspark.bookie.holdings.disk_threads.ThreadPoolExecutor", Threads))
        level, propagate = log.level, log.propagate
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        log.propagate = False
        try:
            yield
        finally:
            log.removeHandler(handler)
            log.setLevel(level)
            log.propagate = propagate


class Threads(AtOnce):
    """As ``AtOnce``, with the future of what was submitted."""

    def submit(self, function: Any, *arguments: Any) -> Any:
        from concurrent.futures import Future

        future: Future[Any] = Future()
        try:
            future.set_result(function(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

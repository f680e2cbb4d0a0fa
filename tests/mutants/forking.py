"""Works in forked processes, with limits.

Law: a process that takes too much processor time, memory or time is ended, and so is what it leaves behind: whatever it started
becomes this process's child when its parent is gone, and is killed then. Its temporary files are in a folder of its own, which is
removed. One that stands is not counted among those that work: to wait for its end costs no processor.
"""

from __future__ import annotations

import _thread
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

_STANDS = "stands"
"""A file in the folder of a process that stands."""
_MEMORY_MAX = 8 << 30
_WAITS_SECONDS = 600
"""How long a process may wait, if it does nothing."""
_PR_SET_CHILD_SUBREAPER = 36

_STANDING_MAX = 12
_LOOKS_SECONDS = 0.05

Watch = Callable[[float, float, Any], None]
"""``watch(stands, ends, answer)``: if the process is not done after so many seconds, and does not call it again, it stands. It
ends with this answer after ``ends`` seconds."""


class Work(NamedTuple):
    """``limit_seconds``: the processor time that it may take."""

    key: Any
    do: Callable[[Watch], Any]
    limit_seconds: float


def each_in_a_process(works: Iterable[Work], processes: int) -> Iterator[tuple[Any, Any]]:
    """Do each work in a forked process. Yields its key with what it returned, or None if it was ended at its limit."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = set(_children())
    running: dict[int, tuple[Any, Any, Path]] = {}
    waiting = iter(works)
    try:
        while True:
            standing = sum((folder / _STANDS).exists() for _, _, folder in running.values())
            while len(running) < processes + min(standing, _STANDING_MAX) and (work := next(waiting, None)) is not None:
                # Both are gone when the process has ended.
                answer, folder = tempfile.TemporaryFile("w+"), Path(tempfile.mkdtemp(prefix="m-"))  # noqa: SIM115
                running[_forked(work, answer, folder)] = work.key, answer, folder
            if not running:
                return
            ended, _ = os.waitpid(-1, os.WNOHANG)
            if not ended:
                _await_end(running, _LOOKS_SECONDS)
            if ended not in running:
                continue
            _end_all(set(_children()) - before - running.keys())
            key, answer, folder = running.pop(ended)
            shutil.rmtree(folder, ignore_errors=True)
            with answer:
                answer.seek(0)
                said = json.loads(answer.read() or "null")
            if isinstance(said, str):
                raise RuntimeError(f"{key}: {said}")
            yield key, said
    finally:
        for process in running:
            os.kill(process, signal.SIGKILL)


def _await_end(processes: Iterable[int], seconds: float) -> None:
    """Wait until one of these children has ended, but no longer than that: others may have been left behind."""
    descriptors = [os.pidfd_open(process) for process in processes]
    try:
        select.select(descriptors, [], [], seconds)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _children() -> Iterator[int]:
    for task in Path("/proc/self/task").iterdir():
        yield from map(int, (task / "children").read_text().split())


def _end_all(processes: Iterable[int]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _forked(work: Work, answer: Any, folder: Path) -> int:
    process = os.fork()
    if process:
        return process
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        # pytest's own, Python's, and those of processes that it starts.
        os.environ["PYTEST_DEBUG_TEMPROOT"] = os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
        limit = int(work.limit_seconds) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, limit))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
        news: SimpleQueue[tuple[float, float, Any]] = SimpleQueue()
        stands_at = folder / _STANDS

        def look() -> None:
            ends: float
            stands, ends, said = 10 * limit + _WAITS_SECONDS, 0.0, None
            while True:
                try:
                    stands, ends, said = news.get(timeout=stands)
                    stands_at.unlink(missing_ok=True)
                except Empty:
                    if ends <= stands:
                        json.dump(said, answer)
                        answer.flush()
                        os._exit(0)
                    stands_at.touch()
                    stands, ends = ends - stands, 0.0

        # Tests that look at threads do not see this one.
        _thread.start_new_thread(look, ())

        def watch(stands: float, ends: float, said: Any) -> None:
            news.put((stands, ends, said))

        try:
            said = work.do(watch)
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        news.put((_WAITS_SECONDS, 0.0, None))
        json.dump(said, answer)
        answer.flush()
    finally:
        os._exit(0)

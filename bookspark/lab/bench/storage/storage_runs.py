"""Runs a bookie's storage alone, without sockets, and a bare loop that writes the same bytes.

Law: frames are encoded and checked before the clock starts. The timed part begins where a bookie has a request's bytes, and ends
with the acknowledgement. What a bookie's process does for its storage is done here too: a turn of the loop brings as many
requests as a receive from a busy client, and Python's collector looks as seldom. The bare loop is the limit: one ``pwritev`` of
as many frames as the storage may have in flight, then one ``fdatasync`` if wanted, into a file that is preallocated in the same
way.
"""

from __future__ import annotations

import gc
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from crc32c import crc32c

from bookspark.errors import StorageError
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.file_system import RealFileSystem, write_all
from bookspark.store.bookie.interpreter import suit_a_bookie
from bookspark.store.bookie.steps import Steps, Wait
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.header import Header, Kind, Status, decode

KEY = bytes(range(16))
IN_FLIGHT_FRAMES_MAX = 1000
IN_FLIGHT_BYTES_MAX = 4 << 20
_TURN_BYTES = 256 << 10
"""A turn of the loop brings requests of so many bytes, or as many as may be under way. A busy connection's receive brings up to
eight times as many."""
_HEADER_AT = 88
_LOG_BYTES = 64 << 20
_POLL_SECONDS = 0.001
_STALLED_SECONDS = 60.0


class Add(NamedTuple):
    """An add request as a bookie has it after its checks. ``size``: bytes of its frame."""

    header: Header
    batch: EntryBatch
    size: int


def adds(ledger_id: int, count: int, entries: int, payload: Callable[[int], bytes]) -> list[Add]:
    """``count`` add requests with ``entries`` entries each. ``payload`` makes the payload of an entry id."""
    made = []
    length = 0
    for number in range(count):
        first = number * entries
        rows = []
        for entry_id in range(first, first + entries):
            content = payload(entry_id)
            length += len(content)
            rows.append(Entry(ledger_id, entry_id, first - 1, length, content, b"dgst"))
        request = Header(Kind.ADD, number, ledger_id, first, first + entries - 1, first - 1, master_key=KEY)
        frame = encode_entries(request, rows)
        header, body_crc = decode(frame, _HEADER_AT)
        made.append(Add(header, EntryBatch.checked(frame, header, body_crc), len(frame)))
    return made


class StorageRun:
    """A storage in ``directory``. The caller is its event loop. ``options``: those of ``BookieConfig``."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self._posted: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self._soon: list[Callable[[], None]] = []
        """What is to be called at the end of this turn of the loop."""
        self.storage = Storage(BookieConfig(directories=(str(directory),), zookeeper="-", **options)).open()
        self.storage.start(lambda function, *arguments: self._posted.put((function, arguments)), self._soon.append)
        self._thresholds, self._switch_interval = gc.get_threshold(), sys.getswitchinterval()
        suit_a_bookie()

    def close(self) -> None:
        """Close the storage."""
        self.storage.close()
        gc.set_threshold(*self._thresholds)
        sys.setswitchinterval(self._switch_interval)
        gc.unfreeze()

    def add_all(self, requests: Sequence[Add]) -> None:
        """Add ``requests``, with at most ``IN_FLIGHT_FRAMES_MAX`` of them and ``IN_FLIGHT_BYTES_MAX`` bytes unacknowledged. No
        clock is read meanwhile, as the bare loop reads none. Raises StorageError if an add fails or nothing happens for a
        minute."""
        self._add(requests, IN_FLIGHT_FRAMES_MAX, None, None)

    def timed_adds(self, requests: Sequence[Add], in_flight: int, background: Steps[Any] | None = None) -> list[float]:
        """Add ``requests``, with at most ``in_flight`` of them unacknowledged; returns the seconds that each took. ``background``
        is carried on beside them, to its end. Raises StorageError as ``add_all`` does."""
        took: list[float] = []
        driver = StepDriver(background) if background is not None else None
        self._add(requests, in_flight, took, driver)
        while driver is not None and not driver.step(self._is_idle):
            self._pump(None, wait=False)
        return took

    def _add(
        self, requests: Sequence[Add], frames_max: int, took: list[float] | None, driver: StepDriver | None
    ) -> None:
        under_way: deque[int] = deque()
        """The sizes of what is not acknowledged yet."""
        bytes_in_flight = turn_bytes = 0
        clock = time.perf_counter

        def acknowledged(status: int) -> None:
            nonlocal bytes_in_flight
            if status != Status.OK:
                raise StorageError(f"an add was answered {Status(status).name}")
            bytes_in_flight -= under_way.popleft()

        def acknowledged_after(begun: float, status: int) -> None:
            acknowledged(status)
            assert took is not None
            took.append(clock() - begun)

        for header, batch, size in requests:
            while under_way and (len(under_way) >= frames_max or bytes_in_flight + size > IN_FLIGHT_BYTES_MAX):
                self._pump(driver)
            under_way.append(size)
            bytes_in_flight += size
            done = acknowledged if took is None else partial(acknowledged_after, clock())
            self.storage.add(header, batch, done)
            turn_bytes += size
            if turn_bytes >= _TURN_BYTES:
                turn_bytes = 0
                self._end_turn()
        while under_way:
            self._pump(driver)

    def _pump(self, driver: StepDriver | None, *, wait: bool = True) -> None:
        """End the turn, or else run the next posted call. Wait for it if there is none."""
        if self._soon:
            self._end_turn()
            return
        if driver is not None:
            driver.step(self._is_idle)
        try:
            function, arguments = self._posted.get(timeout=_POLL_SECONDS if driver or not wait else _STALLED_SECONDS)
        except Empty:
            if driver is None and wait:
                raise StorageError(f"no add was acknowledged for {_STALLED_SECONDS:g} s") from None
            return
        function(*arguments)

    def _is_idle(self) -> bool:
        """Is there nothing to call? What is for the turn's end may be what a step waits for."""
        return self._posted.empty() and not self._soon

    def _end_turn(self) -> None:
        soon = self._soon.copy()
        self._soon.clear()
        for function in soon:
            function()


class StepDriver:
    """Carries background steps on, beside the adds."""

    def __init__(self, steps: Steps[Any]) -> None:
        self._steps = steps
        self._thread = ThreadPoolExecutor(1)
        self._running: Any = None
        self._sent: Any = None
        self.result: Any = None
        self.ended = False

    def step(self, idle: Callable[[], bool]) -> bool:
        """Do one step, and more as long as ``idle()`` is true. Returns True once all steps are done."""
        while not self.ended:
            if self._running is not None:
                if not self._running.done():
                    return False
                self._sent, self._running = self._running.result(), None
            try:
                need = self._steps.send(self._sent)
            except StopIteration as stop:
                self.result, self.ended = stop.value, True
                return True
            self._sent = None
            if need is not None and not isinstance(need, Wait):
                self._running = self._thread.submit(need)
            if not idle():
                return False
        return True

    def close(self) -> None:
        """End the thread that does blocking steps."""
        self._thread.shutdown()


def bare_loop(directory: Path, requests: Sequence[Add], *, synced: bool) -> float:
    """Write the frames of ``requests`` to a file in ``directory``. Returns the seconds that it took."""
    files = RealFileSystem()
    groups: list[list[Any]] = [[]]
    size = 0
    for add in requests:
        if len(groups[-1]) == IN_FLIGHT_FRAMES_MAX or (groups[-1] and size + add.size > IN_FLIGHT_BYTES_MAX):
            groups.append([])
            size = 0
        groups[-1].append(add.batch.frame)
        size += add.size
    path = str(directory / "bare")
    start = time.perf_counter()
    file = files.open(path, create=True)
    end = 0
    for group in groups:
        if end % _LOG_BYTES == 0:
            file.preallocate(end + _LOG_BYTES)
        end = write_all(file, group, end)
        if synced:
            file.sync()
    seconds = time.perf_counter() - start
    file.close()
    os.unlink(path)
    return seconds


def read_loop(directory: Path) -> float:
    """Read all files under ``directory`` in pieces and sum each piece up. Returns the processor seconds that it took."""
    used, memory = time.process_time(), memoryview(bytearray(1 << 20))
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while count := file.readinto(memory):
                    crc32c(memory[:count])
    return time.process_time() - used

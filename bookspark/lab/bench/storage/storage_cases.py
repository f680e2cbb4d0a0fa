"""The cases of ``bookspark bench storage``: a bookie's storage beside a bare loop that writes and syncs the same bytes.

Law: rounds of the storage and of the bare loop take turns. ``ratio`` is the storage's speed divided by the bare loop's, the
median of the rounds. ``written_per_byte`` is the kernel's count of bytes for the disk (logs, notes, control log and
checkpoints) divided by the bytes of payload. Latencies are milliseconds, speeds are 10⁶ bytes of payload a second.
"""

from __future__ import annotations

import gc
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from functools import partial
from itertools import product
from pathlib import Path
from queue import Empty, SimpleQueue
from statistics import median
from typing import Any, NamedTuple

from crc32c import crc32c

from bookspark.errors import StorageError
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.file_system import RealFileSystem, write_all
from bookspark.store.bookie.interpreter import suit_a_bookie
from bookspark.store.bookie.steps import Steps, Wait
from bookspark.store.bookie.storage import Storage
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.header import Header, Kind, Status, decode

# -- Storage alone, without sockets, and a bare loop that writes the same bytes.
#
# Law: frames are encoded and checked before the clock starts. The timed part begins when a bookie has a request's bytes,
# and ends with the acknowledgement. The bench works like a bookie's process: a turn of the loop brings as many requests as
# a receive from a busy client, and Python's collector runs as rarely. The bare loop is the limit: one ``pwritev`` of as
# many frames as the storage may have in flight, then one ``fdatasync`` if wanted, into a file with the same preallocation.


KEY = bytes(range(16))
IN_FLIGHT_FRAMES_MAX = 1000
IN_FLIGHT_BYTES_MAX = 4 << 20
_TURN_BYTES = 256 << 10
"""Bytes of requests in a turn of the loop, limited by the bytes in flight. A receive from a busy connection brings up to eight
times as many."""
_LOG_BYTES = 64 << 20
_POLL_SECONDS = 0.001
_STALLED_SECONDS = 60.0


class Add(NamedTuple):
    """An add request after a bookie's checks. ``size``: bytes of its frame."""

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
        header, body_crc = decode(frame, HEADER_OFFSET)
        made.append(Add(header, EntryBatch.checked(frame, header, body_crc), len(frame)))
    return made


class StorageRun:
    """A storage in ``directory``. The caller is its event loop. ``options``: those of ``BookieConfig``."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self._posted: SimpleQueue[tuple[Callable[..., object], tuple[Any, ...]]] = SimpleQueue()
        self._soon: list[Callable[[], None]] = []
        """Calls for the end of this turn of the loop."""
        self.storage = Storage(BookieConfig(directories=(str(directory),), zookeeper="-", **options)).open()
        self.storage.start(lambda function, *arguments: self._posted.put((function, arguments)), self._soon.append)
        self._thresholds, self._switch_interval = gc.get_threshold(), sys.getswitchinterval()
        suit_a_bookie()

    def close(self) -> None:
        self.storage.close()
        gc.set_threshold(*self._thresholds)
        sys.setswitchinterval(self._switch_interval)
        gc.unfreeze()

    def add_all(self, requests: Sequence[Add]) -> None:
        """Add ``requests``, with at most ``IN_FLIGHT_FRAMES_MAX`` of them and ``IN_FLIGHT_BYTES_MAX`` bytes unacknowledged.
        It reads no clock meanwhile, like the bare loop. Raises StorageError if an add fails or nothing happens for a
        minute."""
        self._add(requests, IN_FLIGHT_FRAMES_MAX, None, None)

    def timed_adds(self, requests: Sequence[Add], in_flight: int, background: Steps[Any] | None = None) -> list[float]:
        """Add ``requests``, with at most ``in_flight`` of them unacknowledged; returns the seconds of each. ``background``
        runs beside them, to its end. Raises StorageError if an add fails or nothing happens for a minute."""
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
        """Sizes of unacknowledged requests."""
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
        """End the turn if it has calls; otherwise run the next posted call, after a wait if there is none."""
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
        """Whether there is no call to run. A step may wait for a call at the turn's end."""
        return self._posted.empty() and not self._soon

    def _end_turn(self) -> None:
        soon = self._soon.copy()
        self._soon.clear()
        for function in soon:
            function()


class StepDriver:
    """Runs background steps beside the adds."""

    def __init__(self, steps: Steps[Any]) -> None:
        self._steps = steps
        self._thread = ThreadPoolExecutor(1)
        self._running: Any = None
        self._sent: Any = None
        self.result: Any = None
        self.ended = False

    def step(self, idle: Callable[[], bool]) -> bool:
        """Do a step, and more while ``idle()`` is true. Returns True once all steps are done."""
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
        self._thread.shutdown()


def bare_loop(directory: Path, requests: Sequence[Add], *, synced: bool) -> float:
    """Write the frames of ``requests`` to a file in ``directory``. Returns the seconds."""
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
    """Read all files under ``directory`` in pieces and sum each piece up. Returns the processor seconds."""
    used, memory = time.process_time(), memoryview(bytearray(1 << 20))
    for path in directory.rglob("*"):
        if path.is_file():
            with open(path, "rb", buffering=0) as file:
                while count := file.readinto(memory):
                    crc32c(memory[:count])
    return time.process_time() - used


# -- Cases


_SIZES, _BATCHES = (100, 1024, 16384), (1, 10, 100, 1000)
_ROUND_BYTES = 64 << 20
_LEDGERS, _ENTRIES = 1_000_000, 10
_REPLAYED_FRAMES = 100_000
_LETTERS = bytes(random.Random(0).choices(b"abcdefghijklmnopqrstuvwxyz", k=3000))
_WORDS = [_LETTERS[start : start + 6] for start in range(0, len(_LETTERS), 6)]

Case = dict[str, Any]


class Part(StrEnum):
    ADDS = "adds"
    REWRITING = "rewriting"
    REPLAY = "replay"
    STATE = "state"


def measure_storage(parts: Iterable[Part], scale: float, directory: Path | None) -> Iterator[Case]:
    """The cases of ``parts``, measured in a new folder in ``directory``. ``scale`` multiplies bytes, ledgers and rounds."""
    with tempfile.TemporaryDirectory(prefix="bookspark-bench-", dir=directory) as place:
        for number, part in enumerate(parts):
            for case in CASES[part](Path(place, str(number)), scale):
                yield {"part": part.value, **case}


def _adds(place: Path, scale: float) -> Iterator[Case]:
    from bookspark.lab.bench.processes import use_memory_once

    rounds = 3 if scale >= 1 else 1
    use_memory_once(place.parent, int(4 * _ROUND_BYTES * scale))
    for size, batch, synced in product(_SIZES, _BATCHES, (True, False)):
        count = max(2, int(_ROUND_BYTES * scale) // (batch * size + 700))
        ours, bare = [], []
        for number in range(rounds):
            requests = adds(number, count, batch, partial(_same, os.urandom(size)))
            there = place / f"{size}-{batch}-{synced}-{number}"
            there.mkdir(parents=True)
            run = StorageRun(there, journal_write_data=synced)
            start = time.perf_counter()
            run.add_all(requests)
            ours.append(time.perf_counter() - start)
            run.close()
            bare.append(bare_loop(there, requests, synced=synced))
            shutil.rmtree(there)
        entries = count * batch
        yield {
            "payload_bytes": size,
            "batch": batch,
            "synced": synced,
            "adds_per_second": round(entries / median(ours)),
            "megabytes_per_second": round(entries * size / median(ours) / 1e6, 1),
            "bare_megabytes_per_second": round(entries * size / median(bare) / 1e6, 1),
            "ratio": round(median(b / o for o, b in zip(ours, bare, strict=True)), 3),
        }


def _rewriting(place: Path, scale: float) -> Iterator[Case]:
    """Bytes written for each added byte, before and after a rewrite of all logs, and latencies of adds alone and beside it."""
    from bookspark.lab.bench.processes import written_bytes
    from bookspark.store.bookie.space.reclaiming import unlimited
    from bookspark.store.bookie.space.rewriting_process import RewritingProcess

    rewriter = RewritingProcess()
    try:
        worker = rewriter.worker_pid()
        for kind, payload in (("random", _random_payload), ("text", _text_payload)):
            there = place / kind
            there.mkdir(parents=True)
            run = StorageRun(there, entry_log_bytes_max=16 << 20)
            count = max(20, int(4 * _ROUND_BYTES * scale) // (100 * 1024))
            before = written_bytes(os.getpid(), worker)
            run.add_all(adds(1, count, 100, payload))
            added = count * 100 * 1024
            written = written_bytes(os.getpid(), worker) - before
            logged = run.storage.status().log_bytes
            singles = max(200, int(20_000 * scale))
            alone = run.timed_adds(adds(2, singles, 1, payload), 16)
            start = time.perf_counter()
            steps = run.storage.reclaiming.reclaim(rewriter, 0.0, 64 << 20, unlimited, entry_logs=True)
            before = written_bytes(worker)
            beside = run.timed_adds(adds(3, singles, 1, payload), 16, steps)
            yield {
                "payload": kind,
                "written_per_byte": round(written / added, 3),
                "written_per_byte_rewritten": round((written + written_bytes(worker) - before) / added, 3),
                "logs_per_byte": round(logged / added, 3),
                "rewriting_seconds": round(time.perf_counter() - start, 2),
                **{f"alone_{name}": value for name, value in _percentiles(alone).items()},
                **{f"beside_{name}": value for name, value in _percentiles(beside).items()},
            }
            run.close()
            shutil.rmtree(there)
    finally:
        rewriter.close()


def _replay(place: Path, scale: float) -> Iterator[Case]:
    """A boot that replays a log of small frames, beside a loop that reads the same file."""

    count = max(1000, int(_REPLAYED_FRAMES * scale))
    for entries in (1, 10):
        there, copy = place / f"run{entries}", place / f"copy{entries}"
        there.mkdir(parents=True)
        run = StorageRun(there)
        run.add_all(adds(1, count, entries, partial(_same, os.urandom(100))))
        # The state after a crash: no checkpoint has these frames.
        shutil.copytree(there, copy)
        run.close()
        bare = read_loop(copy)
        begun, used = time.perf_counter(), time.process_time()
        again = StorageRun(copy)
        used, took = time.process_time() - used, time.perf_counter() - begun
        found = again.storage.status().ledgers
        again.close()
        assert found == 1, f"{found} ledgers were found again"
        shutil.rmtree(there)
        shutil.rmtree(copy)
        yield {
            "entries_a_frame": entries,
            "frames": count,
            "us_a_frame": round(took / count * 1e6, 3),
            "cpu_us_a_frame": round(used / count * 1e6, 3),
            "bare_cpu_us_a_frame": round(bare / count * 1e6, 3),
        }


def _state(place: Path, scale: float) -> Iterator[Case]:
    """A boot from a checkpoint of many ledgers, and the memory of the index of one long ledger."""
    from bookspark.lab.bench.storage.boot_probe import index_bytes, make

    ledgers = max(1000, int(_LEDGERS * scale))
    make(place, ledgers, _ENTRIES)
    probe = subprocess.run(
        [sys.executable, "-m", "bookspark.lab.bench.storage.boot_probe", str(place)],
        check=True,
        capture_output=True,
        text=True,
    )
    yield {"case": "boot", "entries_a_ledger": _ENTRIES, **json.loads(probe.stdout)}
    batches = max(10, int(10_000 * scale))
    yield {"case": "one ledger", "entries": batches * 1000, "index_mb": round(index_bytes(batches, 1000) / 1e6, 3)}


def _percentiles(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {
        f"{name}_ms": round(1000 * ordered[min(len(ordered) - 1, int(part * len(ordered)))], 3)
        for name, part in (("p50", 0.5), ("p99", 0.99), ("p99_9", 0.999))
    }


def _same(payload: bytes, entry_id: int) -> bytes:
    return payload


def _random_payload(entry_id: int) -> bytes:
    return random.Random(entry_id).randbytes(1024)


def _text_payload(entry_id: int) -> bytes:
    return b" ".join(random.Random(entry_id).choices(_WORDS, k=147))[:1024].ljust(1024)


def kept_lines(cases: Iterable[Case]) -> list[Case]:
    """The cases as lines for ``kept_results``: with a label, and the bare loop as a system of its own."""
    lines = []
    for case in cases:
        match case:
            case {"part": "adds", "payload_bytes": size, "batch": batch, "synced": synced, "ratio": ratio}:
                label = {"label": f"{size}x{batch}{' synced' if synced else ''}"}
                for system, prefix in (("bookspark", ""), ("limit", "bare_")):
                    figures = {"megabytes_per_second": case[f"{prefix}megabytes_per_second"]}
                    lines.append({"system": system, **label, **figures})
                lines[-2] |= {"of_the_bare_loop": ratio, "adds_per_second": case["adds_per_second"]}
            case {"part": "rewriting", "payload": payload}:
                lines.append({"system": "bookspark", "label": f"rewriting {payload}", **case})
            case {"part": "replay", "entries_a_frame": entries}:
                for system, prefix in (("bookspark", ""), ("limit", "bare_")):
                    figures = {"cpu_us_a_frame": case[f"{prefix}cpu_us_a_frame"]}
                    lines.append({"system": system, "label": f"replay x{entries}", **figures})
    return [line | {"load": os.getloadavg()[0]} for line in lines]


CASES: dict[Part, Callable[[Path, float], Iterator[Case]]] = {
    Part.ADDS: _adds,
    Part.REWRITING: _rewriting,
    Part.REPLAY: _replay,
    Part.STATE: _state,
}
"""The function that measures each part, of a folder and a scale."""

"""The cases of ``bookspark bench storage``: a bookie's storage beside a bare loop that writes and syncs the same bytes.

Law: rounds of the storage and of the bare loop take turns. ``ratio`` is the storage's speed divided by the bare loop's, the
median of the rounds. ``written_per_byte`` are the bytes that the kernel counted for the disk (logs, notes, control log and
checkpoints) divided by the bytes of payload. Latencies are milliseconds, speeds are 10⁶ bytes of payload a second.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

_SIZES, _BATCHES = (100, 1024, 16384), (1, 10, 100, 1000)
_ROUND_BYTES = 64 << 20
_LEDGERS, _ENTRIES = 1_000_000, 10
_REPLAYED_FRAMES = 100_000
_LETTERS = bytes(random.Random(0).choices(b"abcdefghijklmnopqrstuvwxyz", k=3000))
_WORDS = [_LETTERS[start : start + 6] for start in range(0, len(_LETTERS), 6)]

Case = dict[str, Any]


class Part(StrEnum):
    """What is measured."""

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
    from bookspark.lab.bench.storage.storage_runs import StorageRun, adds, bare_loop

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
    """Bytes written for each byte added, before and after all logs were rewritten, and latencies of adds alone and beside it."""
    from bookspark.lab.bench.processes import written_bytes
    from bookspark.lab.bench.storage.storage_runs import StorageRun, adds
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
    """A boot that reads a log of small frames again, beside a loop that reads the same file."""
    from bookspark.lab.bench.storage.storage_runs import StorageRun, adds, read_loop

    count = max(1000, int(_REPLAYED_FRAMES * scale))
    for entries in (1, 10):
        there, copy = place / f"run{entries}", place / f"copy{entries}"
        there.mkdir(parents=True)
        run = StorageRun(there)
        run.add_all(adds(1, count, entries, partial(_same, os.urandom(100))))
        # What a crash would leave: no checkpoint has these frames.
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
    """The cases as the lines that ``kept_results`` keeps: with a label, and the bare loop as a system of its own."""
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
"""What measures each part: a function of a folder and a scale."""

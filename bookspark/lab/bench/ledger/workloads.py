"""Runs the workloads of ``cases`` on a ``LocalCluster``.

Law: each entry starts with its own number, so that a reader can check it. The rest is random bytes. Payloads are made
before the clock starts.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import chain, cycle, islice, repeat
from pathlib import Path
from typing import Any

from bookspark.errors import BookKeeperError
from bookspark.lab.bench.ledger.cases import Kind, Turn, Workload
from bookspark.lab.bench.processes import (
    bytes_written_by_ended_children,
    cpu_seconds,
    drop_cached,
    resident_bytes,
)
from bookspark.local import LocalCluster
from bookspark.store.client import BookKeeper, LedgerHandle
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.writing.futures import AppendFuture
from bookspark.store.wire.entry_batch import Entry

BOOKIES = 3
_SAMPLED = 16
"""One in this many appends is timed. A callback for each append would be most of the client's work."""

_PAYLOADS_MAX = 500_000
"""Payloads in memory at once."""
_IDLE_BEFORE, _RANDOM_BEFORE = 100, 50
"""Open ledgers before the first memory measurement, and reads before the timed ones."""

Figures = dict[str, Any]


def measure(turn: Turn, workloads: Sequence[Workload], directory: Path | None) -> Iterator[tuple[Workload, Figures]]:
    """Run the workloads of ``turn`` on a fresh cluster with its data in a new folder in ``directory``. A workload may have two
    results: by ``read`` and by ``read_batches``."""
    options: dict[str, Any] = {"journal_write_data": False} if turn is Turn.UNJOURNALED else {}
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="bookspark-bench-", dir=directory))
        cluster = stack.enter_context(LocalCluster(BOOKIES, directory=home, **options))
        bench = Bench(cluster)
        for workload in workloads:
            for figures in bench.run(workload):
                yield workload, figures


class Bench:
    def __init__(self, cluster: LocalCluster) -> None:
        self.cluster = cluster
        self.bookkeeper = cluster.bookkeeper()

    def run(self, workload: Workload) -> list[Figures]:
        match workload.kind:
            case Kind.ADD | Kind.BATCH:
                self._append(self.bookkeeper, workload, workload.warm_up)
                return [self._timed_adds([create(self.bookkeeper, workload)], workload)]
            case Kind.MANY:
                ledgers = [create(self.bookkeeper, workload) for _ in range(workload.ledgers)]
                return [self._timed_adds(ledgers, workload)]
            case Kind.READ:
                ledger_id = self._append(self.bookkeeper, workload, workload.entries)
                return [self._read(ledger_id, workload, batches=batches) for batches in (False, True)]
            case Kind.READ_COLD:
                ledger_id = self._append(self.bookkeeper, workload, workload.entries)
                return [self._read_cold(ledger_id, workload, batches=batches) for batches in (False, True)]
            case Kind.RECOVER:
                return [self._recover(workload)]
            case Kind.CREATE_CLOSE:
                created_and_closed = partial(_create_and_close, self.bookkeeper, workload)
                return [latencies(timed(created_and_closed) for _ in range(workload.ledgers))]
            case Kind.WRITTEN:
                return [self._written(workload)]
            case Kind.RESIDENT:
                return [self._resident(workload)]
            case Kind.IDLE:
                return [self._idle(workload)]
            case Kind.RANDOM:
                return [self._random(workload)]

    def _pids(self) -> list[int]:
        return [bookie.pid for bookie in self.cluster.bookies if bookie.pid is not None]

    def _used(self) -> tuple[float, float, float]:
        """Seconds so far: of the clock, of this process's processor time, of the bookies' processor time."""
        return time.perf_counter(), time.process_time(), cpu_seconds(self._pids())

    def _spent(self, since: tuple[float, float, float], what: str, count: int) -> Figures:
        seconds, client, bookies = (now - then for now, then in zip(self._used(), since, strict=True))
        return {
            "seconds": seconds,
            f"{what}_per_second": count / seconds,
            "client_cpu_us": client / count * 1e6,
            "client_cpu_seconds": client,
            "bookies_cpu_seconds": bookies,
        }

    def _append(self, bookkeeper: BookKeeper, workload: Workload, entries: int, *, close: bool = True) -> int:
        """Write a new ledger with this many entries. Returns its id."""
        ledger = create(bookkeeper, workload)
        append([ledger], workload, arguments(workload, entries))
        if close:
            ledger.close()
        return ledger.ledger_id

    def _timed_adds(self, ledgers: Sequence[LedgerHandle], workload: Workload) -> Figures:
        content = arguments(workload, workload.entries, len(ledgers))
        # Garbage of the ledgers' creation is not collected during the timed adds.
        gc.collect()
        since = self._used()
        took = append(ledgers, workload, content)
        figures = self._spent(since, "adds", workload.entries) | latencies(took)
        for ledger in ledgers:
            ledger.close()
        return figures

    def _read(self, ledger_id: int, workload: Workload, *, batches: bool) -> Figures:
        import pyarrow  # noqa: F401 -- loaded here, so that its import is not timed

        reader = self.bookkeeper.open_ledger(ledger_id)
        last = reader.last_add_confirmed
        since = self._used()
        if batches:
            count = checked_batches(reader.read_batches(), workload.size)
        else:
            count = checked_entries(reader.read(), workload.size)
        if count != last + 1:
            raise BookKeeperError(f"read {count} entries instead of {last + 1}")
        return {"api": "read_batches" if batches else "read"} | self._spent(since, "reads", last + 1)

    def _read_cold(self, ledger_id: int, workload: Workload, *, batches: bool) -> Figures:
        for bookie in self.cluster.bookies:
            bookie.stop()
        drop_cached(chain.from_iterable(bookie.directories for bookie in self.cluster.bookies))
        for bookie in self.cluster.bookies:
            bookie.start()
        self.bookkeeper.close()
        self.bookkeeper = self.cluster.bookkeeper()
        return self._read(ledger_id, workload, batches=batches)

    def _recover(self, workload: Workload) -> Figures:
        with self.cluster.bookkeeper() as abandoned:
            ids = [self._append(abandoned, workload, workload.entries, close=False) for _ in range(workload.ledgers)]
            took = []
            for ledger_id in ids:
                took.append(timed(partial(self.bookkeeper.open_ledger, ledger_id)))
                found = self.bookkeeper.get_ledger_metadata(ledger_id).last_entry_id
                if found != workload.entries - 1:
                    raise BookKeeperError(f"ledger {ledger_id} was recovered up to {found}")
        return latencies(took)

    def _written(self, workload: Workload) -> Figures:
        before = bytes_written_by_ended_children()
        self._append(self.bookkeeper, workload, workload.entries)
        for bookie in self.cluster.bookies:
            bookie.stop()
        written = bytes_written_by_ended_children() - before
        return {"written_per_byte": written / (BOOKIES * workload.entries * workload.size)}

    def _resident(self, workload: Workload) -> Figures:
        idle = max(resident_bytes(self._pids()))
        for start in range(0, workload.entries, _PAYLOADS_MAX):
            self._append(self.bookkeeper, workload, min(_PAYLOADS_MAX, workload.entries - start))
        return {"idle_bytes": idle, "resident_bytes": max(resident_bytes(self._pids()))}

    def _idle(self, workload: Workload) -> Figures:
        # One-time costs of the first ledgers come before the measurement.
        kept = [self._with_an_entry(workload) for _ in range(_IDLE_BEFORE)]
        gc.collect()
        before = resident_bytes([os.getpid()])[0]
        kept += [self._with_an_entry(workload) for _ in range(workload.ledgers)]
        gc.collect()
        each = (resident_bytes([os.getpid()])[0] - before) / workload.ledgers
        for ledger in kept:
            ledger.close()
        return {"idle_ledger_bytes": max(0.0, each)}

    def _with_an_entry(self, workload: Workload) -> LedgerHandle:
        ledger = create(self.bookkeeper, workload)
        ledger.append(bytes(workload.size))
        return ledger

    def _random(self, workload: Workload) -> Figures:
        ledger_id = self._append(self.bookkeeper, workload, workload.entries)
        chance = random.Random(workload.reads)
        places = [chance.randrange(workload.entries) for _ in range(workload.reads + _RANDOM_BEFORE)]
        with self.bookkeeper.open_ledger(ledger_id) as reader:
            took = [timed(partial(_read_one, reader, place, workload.size)) for place in places]
        return latencies(took[_RANDOM_BEFORE:])


def _read_one(reader: ReadHandle, place: int, size: int) -> None:
    (entry,) = reader.read(place, place)
    _check_entry(entry.entry_id, entry.payload, place, size)


def create(bookkeeper: BookKeeper, workload: Workload) -> LedgerHandle:
    return bookkeeper.create_ledger(3, 3, 2, ledger_type=workload.ledger_type, replication=workload.replication)


def _create_and_close(bookkeeper: BookKeeper, workload: Workload) -> None:
    create(bookkeeper, workload).close()


def payloads(size: int, count: int) -> list[bytes]:
    """Payloads of the entries 0 to ``count`` − 1: the number in 8 bytes, then random bytes."""
    noise = [os.urandom(size - 8) for _ in range(64)]
    return [number.to_bytes(8) + noise[number % 64] for number in range(count)]


def arguments(workload: Workload, entries: int, ledgers: int = 1) -> list[Any]:
    """The argument of each call of ``append``: a payload, or a list of ``workload.batch`` payloads."""
    content = payloads(workload.size, entries // ledgers + 1)
    if workload.batch > 1:
        return [content[start : start + workload.batch] for start in range(0, entries, workload.batch)]
    return list(islice(chain.from_iterable(repeat(payload, ledgers) for payload in content), entries))


def append(ledgers: Sequence[LedgerHandle], workload: Workload, content: Sequence[Any]) -> list[float]:
    """Append to the ledgers in turn, with at most ``workload.in_flight`` calls unacknowledged. Returns latencies in
    seconds, once all entries are acknowledged and, if the workload syncs, synced."""
    if workload.in_flight == 1:
        return [timed(partial(ledgers[0].append, payload)) for payload in content]
    calls: list[Callable[[Any], AppendFuture]] = [
        ledger.append_async if workload.batch == 1 else ledger.append_batch_async for ledger in ledgers
    ]
    took: list[float] = []
    waiting: deque[AppendFuture] = deque()
    for number, (call, argument) in enumerate(zip(cycle(calls), content)):
        if len(waiting) >= workload.in_flight:
            waiting.popleft().result()
        start = time.perf_counter()
        future = call(argument)
        waiting.append(future)
        if number % _SAMPLED == 0:
            future.tell_at_once(partial(_acknowledged, took, start))
        if workload.sync_every and (number + 1) % workload.sync_every == 0:
            ledgers[0].sync_async()
    for future in waiting:
        future.result()
    if workload.sync_every:
        ledgers[0].sync()
    return took


def _acknowledged(took: list[float], start: float, future: AppendFuture) -> None:
    took.append(time.perf_counter() - start)


def _check_entry(entry_id: int, payload: bytes, expected: int, size: int) -> None:
    if entry_id != expected or len(payload) != size or int.from_bytes(payload[:8]) != expected:
        raise BookKeeperError(f"read a wrong entry at {expected}")


def checked_entries(entries: Iterable[Entry], size: int) -> int:
    """Count ``entries``, and check each against the written entry."""
    count = 0
    for entry in entries:
        _check_entry(entry.entry_id, entry.payload, count, size)
        count += 1
    return count


def checked_batches(batches: Any, size: int) -> int:
    """Count the entries of ``batches``, and check the first and the last of each batch."""
    count = 0
    for batch in batches:
        ids, values = batch.column("entry_id"), batch.column("payload")
        for row in (0, batch.num_rows - 1):
            _check_entry(ids[row].as_py(), values[row].as_py(), count + row, size)
        count += batch.num_rows
    return count


def timed(call: Callable[[], object]) -> float:
    """In seconds."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def latencies(seconds: Any) -> Figures:
    """The median and the 99th percentile, in milliseconds."""
    ordered = sorted(seconds)
    return {f"p{p}_ms": 1e3 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)] for p in (50, 99)}

"""``bookspark bench peers ledger``: ``bookspark bench ledger`` beside Apache BookKeeper, in turns, and the table of ratios.

Law: the two never run at once. In each round, a turn's workloads run on a fresh cluster of Bookspark, then on a fresh cluster of
Apache BookKeeper; the limits of the machine are measured before the two. A ratio is that of the medians over the rounds. All
lines are kept in ``results.jsonl``, the medians of each run in ``history.jsonl``, and what changed since the last run is told. A
failed turn leaves its lines out of the table, and the failure is told at the end.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bookspark.lab.bench.kept_results import checkout, keep
from bookspark.lab.bench.ledger.cases import Kind, Turn, Workload, chosen
from bookspark.lab.bench.ledger.limits import limits
from bookspark.lab.bench.ledger.workloads import BOOKIES
from bookspark.lab.bench.peers.bookkeeper_peer import Peer, build
from bookspark.lab.bench.peers.ledger_targets import table
from bookspark.lab.bench.processes import (
    bytes_written_by_ended_children,
    drop_cached,
    resident_bytes,
    use_memory_once,
)
from bookspark.protocol.ledger.ledger_metadata import Replication

_DEEP = 10_000
"""Adds in flight for the peer's best throughput, and entries that it reads by one call. It is measured with 1,000 too."""

Line = dict[str, Any]


def compare(
    cache: Path, directory: Path | None, turns: Sequence[Turn], rounds: int, scale: float, cases: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Measure both systems. Each line goes to standard output and to ``results.jsonl`` in ``cache``, where the peer's jars are
    kept too. ``directory``: a folder on the disk to measure (default: ``cache``). ``cases``: only these, such as
    L2. Returns the table, with what changed since the last run, and the failures."""
    class_path = build(cache)
    lines: list[Line] = []
    failures: list[str] = []
    with (
        open(cache / "results.jsonl", "w") as results,
        tempfile.TemporaryDirectory(prefix="bench-", dir=directory or cache) as place,
    ):
        for number in range(rounds):
            for turn in turns:
                workloads = chosen(turn, cases, scale)
                if not workloads:
                    continue
                limit = limits(turn, workloads, Path(place))
                own = ours(turn, scale, place, cases)
                copied = 2 * BOOKIES * sum(workload.size * workload.entries for workload in workloads)
                for system in (limit, own, theirs(turn, workloads, class_path, Path(place))):
                    use_memory_once(Path(place), copied)
                    try:
                        for line in system:
                            line |= {"turn": turn, "round": number, "load": os.getloadavg()[0]}
                            print(json.dumps(line), flush=True)
                            print(json.dumps(line), file=results, flush=True)
                            lines.append(line)
                    except RuntimeError as error:
                        failures.append(f"round {number}, {turn}: {error}")
    changed = keep(cache, "ledger", lines, scale, checkout())
    told = "".join(f"\nchanged: {change}" for change in changed)
    return f"{table(lines)}{told}\n" if told else table(lines), failures


def ours(turn: Turn, scale: float, directory: str, cases: Sequence[str] = ()) -> Iterator[Line]:
    """Lines of Bookspark, measured in a process of its own. Raises RuntimeError if that fails."""
    command = [sys.executable, "-m", "bookspark", "bench", "ledger", "--turn", turn, "--scale", str(scale)]
    command += [word for case in cases for word in ("--case", case)]
    process = subprocess.Popen([*command, "--directory", directory], stdout=subprocess.PIPE)
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} failed")


def theirs(turn: Turn, workloads: list[Workload], class_path: list[str], directory: Path) -> Iterator[Line]:
    """Lines of Apache BookKeeper. Raises RuntimeError if it can't be started or its client fails."""
    settings = {"journalWriteData": "false"} if turn is Turn.UNJOURNALED else {}
    before = bytes_written_by_ended_children()
    with Peer(class_path, directory / "peer", settings) as peer:
        if turn is Turn.COLD:
            yield from cold_reads(peer, workloads)
        elif turn is Turn.MEMORY:
            idle = max(resident_bytes(peer.pids))
            for line in peer.run([_write(workload) for workload in workloads]):
                yield line | {"idle_bytes": idle, "resident_bytes": max(resident_bytes(peer.pids))}
        elif turn is Turn.DISK:
            (line,) = peer.run([_write(workload) for workload in workloads])
            peer.stop()
            written = bytes_written_by_ended_children() - before
            yield line | {"written_per_byte": written / (3 * line["entries"] * line["size"])}
        else:
            yield from reads_and_adds(peer, workloads)
    first = [workload for workload in workloads if workload.label == "L1"]
    if first:
        with Peer(class_path, directory / "peer", {"journalFlushWhenQueueEmpty": "true"}) as peer:
            yield from peer.run([_as_argument(workload, f"{workload.label}-no-group-wait") for workload in first])


def reads_and_adds(peer: Peer, workloads: list[Workload]) -> Iterator[Line]:
    """Workloads that need nothing done between them. One client runs them all, so that its JIT compiler has seen the code."""
    others = (Kind.READ, Kind.BATCH, Kind.IDLE)
    asked = [w for w in workloads if w.kind not in others and w.replication is Replication.BEST_EFFORT]
    if asked:
        yield from peer.run([_as_argument(workload) for workload in asked])
    batched = {workload.size for workload in workloads if workload.kind is Kind.BATCH}
    deep = [w for w in workloads if w.kind is Kind.ADD and w.in_flight > 1 and w.size in batched]
    if deep:
        yield from peer.run([_as_argument(workload, f"{workload.label}-deep", in_flight=_DEEP) for workload in deep])
    reads = [workload for workload in workloads if workload.kind is Kind.READ]
    if reads:
        written = list(peer.run([_write(workload) for workload in reads]))
        # Each ledger is read twice, and the second time counts.
        twice = [_read(line, per_call) for line in written for per_call in (1000, _DEEP) for _ in range(2)]
        yield from list(peer.run(twice))[1::2]


def cold_reads(peer: Peer, workloads: list[Workload]) -> Iterator[Line]:
    """Reads after the bookies were restarted and their files dropped from the page cache."""
    for workload in workloads:
        # The first ledger is read so that the client's JIT compiler has seen the code. The second one counts.
        first, second = peer.run([_write(workload), _write(workload)])
        peer.stop()
        drop_cached(peer.directories)
        peer.start()
        yield list(peer.run([_read(first, 1000), _read(first, 1000), _read(second, 1000)]))[-1]


def _as_argument(workload: Workload, label: str = "", **changed: int) -> str:
    numbers = workload.numbers() | {"warm_up": workload.warm_up} | changed
    del numbers["replication"]
    return _argument(label or workload.label, workload.kind, **numbers)


def _write(workload: Workload) -> str:
    return _argument(workload.label, "write", size=workload.size, entries=workload.entries, in_flight=1000)


def _read(written: Line, per_call: int) -> str:
    label = written["label"] + ("-deep" if per_call == _DEEP else "")
    return _argument(label, "read", size=written["size"], ledger=written["ledger"], per_call=per_call)


def _argument(label: str, kind: str, **numbers: int) -> str:
    return " ".join([label, kind, *(f"{name}={number}" for name, number in numbers.items())])

"""``scripts/bench ledger``: ``bookspark bench ledger`` beside Apache BookKeeper, in turns, and the table of ratios.

Law: never both at once. Each turn's workloads run on a fresh cluster of the one and then on a fresh cluster of the other, and
so on for some rounds; a ratio is that of the medians over the rounds. All lines are kept in ``results.jsonl``. What fails leaves
its lines out of the table, and is told at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from peer import Peer, build
from targets import table

from bookspark.cli.bench.cases import WORKLOADS, Kind, Turn, Workload
from bookspark.cli.bench.processes import bytes_written_by_ended_children, drop_cached, resident_bytes
from bookspark.protocol.ledger.ledger_metadata import Replication

ROOT = Path(__file__).resolve().parents[2]
QUICK = 0.05
_DEEP = 10_000
"""Adds in flight for the peer's best throughput, and entries it reads by one call, besides 1,000."""

Line = dict[str, Any]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench ledger", description="Bookspark beside Apache BookKeeper.")
    parser.add_argument("--quick", action="store_true", help="one round, few entries: to see that everything works")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--scale", type=float, default=1.0, help="so many times the usual number of entries")
    parser.add_argument("--turn", type=Turn, action="append", choices=list(Turn), help="only these; may be repeated")
    parser.add_argument("--directory", type=Path, help="a folder on the disk to be measured")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and so the peer's processes are, too
    rounds, scale = (1, QUICK) if arguments.quick else (arguments.rounds, arguments.scale)
    cache = ROOT / ".cache" / "bench"
    cache.mkdir(parents=True, exist_ok=True)
    class_path = build(cache)
    lines: list[Line] = []
    failures: list[str] = []
    with (
        open(cache / "results.jsonl", "w") as results,
        tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.directory or cache) as directory,
    ):
        for number in range(rounds):
            for turn in arguments.turn or Turn:
                for system in (
                    lambda turn=turn: ours(turn, scale, directory),
                    lambda turn=turn: theirs(turn, scale, class_path, Path(directory)),
                ):
                    try:
                        for line in system():
                            line |= {"turn": turn, "round": number, "load": os.getloadavg()[0]}
                            print(json.dumps(line), flush=True)
                            print(json.dumps(line), file=results, flush=True)
                            lines.append(line)
                    except RuntimeError as error:
                        failures.append(f"round {number}, {turn}: {error}")
    print(table(lines), end="")
    if failures:
        sys.exit("\n".join(failures))


def ours(turn: Turn, scale: float, directory: str) -> Iterator[Line]:
    command = [sys.executable, "-m", "bookspark.cli.main", "bench", "ledger", "--turn", turn, "--scale", str(scale)]
    process = subprocess.Popen([*command, "--directory", directory], stdout=subprocess.PIPE, cwd=ROOT)
    assert process.stdout is not None
    for line in process.stdout:
        yield json.loads(line)
    if process.wait() != 0:
        raise RuntimeError(f"{' '.join(command)} failed")


def theirs(turn: Turn, scale: float, class_path: list[str], directory: Path) -> Iterator[Line]:
    workloads = [workload.scaled(scale) for workload in WORKLOADS[turn]]
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
    if turn is Turn.SYNCED:
        with Peer(class_path, directory / "peer", {"journalFlushWhenQueueEmpty": "true"}) as peer:
            first = [workload for workload in workloads if workload.label == "L1"]
            yield from peer.run([_as_argument(workload, f"{workload.label}-no-group-wait") for workload in first])


def reads_and_adds(peer: Peer, workloads: list[Workload]) -> Iterator[Line]:
    """What needs nothing between its parts, all by one client, so that its compiler has seen the code."""
    asked = [w for w in workloads if w.kind not in (Kind.READ, Kind.BATCH) and w.replication is Replication.BEST_EFFORT]
    yield from peer.run([_as_argument(workload) for workload in asked])
    batched = {workload.size for workload in workloads if workload.kind is Kind.BATCH}
    deep = [w for w in workloads if w.kind is Kind.ADD and w.in_flight > 1 and w.size in batched]
    if deep:
        yield from peer.run([_as_argument(workload, f"{workload.label}-deep", in_flight=_DEEP) for workload in deep])
    reads = [workload for workload in workloads if workload.kind is Kind.READ]
    if reads:
        written = list(peer.run([_write(workload) for workload in reads]))
        # Read twice, and the second time counts.
        twice = [_read(line, per_call) for line in written for per_call in (1000, _DEEP) for _ in range(2)]
        yield from list(peer.run(twice))[1::2]


def cold_reads(peer: Peer, workloads: list[Workload]) -> Iterator[Line]:
    for workload in workloads:
        # One ledger to be read first, so that the client's compiler has seen the code, and the one that counts.
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


if __name__ == "__main__":
    main()

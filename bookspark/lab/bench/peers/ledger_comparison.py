"""``bookspark bench peers ledger``: ``bookspark bench ledger`` beside Apache BookKeeper, in turns, and the table of ratios.

Law: the two never run at once. In each round, a turn's workloads run on a fresh cluster of Bookspark, then on a fresh
cluster of Apache BookKeeper; the limits of the machine are measured before both. A ratio is that of the medians over the
rounds. All lines are kept in ``results.jsonl``, the medians of each run in ``history.jsonl``, and changes since the last
run are reported. The lines of a failed turn are left out of the table, and the failure is reported at the end.
"""

from __future__ import annotations

import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bookspark.lab.bench.kept_results import Results, checkout
from bookspark.lab.bench.ledger.cases import Kind, Turn, Workload, chosen
from bookspark.lab.bench.ledger.workloads import BOOKIES, latencies, timed
from bookspark.lab.bench.peers.bookkeeper_peer import Peer, build
from bookspark.lab.bench.processes import bytes_written_by_ended_children, drop_cached, resident_bytes, use_memory_once
from bookspark.lab.bench.trees import bench
from bookspark.protocol.ledger.ledger_metadata import Replication

# -- Limits of this machine for the cases of ``bookspark bench ledger``: bare loops of the unavoidable work.
#
# Law: a limit is measured in the same run as its case, on the same disk, with the bytes of the same workload. It has no
# protocol, no checksum and no index, so no system with the promises of a ledger gets past it; another machine, or another
# durability, may have a better limit.
#
# ========  ==================================================================================================================
# ``L1``    a write and fdatasync of one entry, and two echoes of its bytes over loopback: the minimum of a writer, a bookie
#           and the way between them. Both in turns, so that a busy moment hits both
# ``L2``    the bytes of all entries, in frames of FRAME_BYTES, fed over loopback to three processes that write and sync them; a
# ``L3``    frame counts after its sync by an ack quorum of two. The same for L7: many ledgers share the disks' syncs
# ``L7``
# ``L8``    the same without a sync
# ``L14``   an echo over loopback that answers with a pread of one entry, at a random place of a file in the page cache
# ``L4``    the file with the bytes of all entries, read in pieces of 1 MiB: from the page cache, or after its removal from it
# ========  ==================================================================================================================


SYSTEM = "limit"
FRAME_BYTES = 640 << 10
"""Default size of the client's frames."""
_PIECE_BYTES = 1 << 20
_COPIES, _ACK_QUORUM = 3, 2
_SECONDS_MAX = 60.0
_IN_FLIGHT = 8
"""Frames under way to each process."""
_BYTES_MAX = 256 << 20
"""More bytes do not change the rate."""

Line = dict[str, Any]


def limits(turn: Turn, workloads: list[Workload], directory: Path) -> Iterator[Line]:
    """A line for each workload of the turn with a limit. ``directory`` is on the disk to measure."""
    with tempfile.TemporaryDirectory(prefix="bench-limit-", dir=directory) as place:
        for workload in workloads:
            found = _limit(turn, workload, Path(place))
            if found:
                yield {"label": workload.label, "system": SYSTEM, **workload.numbers(), **found}


def _limit(turn: Turn, workload: Workload, place: Path) -> dict[str, float]:
    if workload.kind is Kind.ADD and workload.in_flight == 1:
        return one_in_flight(place, workload.size, min(workload.entries, 2000))
    if workload.kind is Kind.RANDOM:
        return random_preads(place, workload.size, workload.entries, workload.reads)
    if workload.kind in (Kind.ADD, Kind.BATCH, Kind.MANY) and turn in (Turn.SYNCED, Turn.LEDGERS, Turn.UNJOURNALED):
        return {"adds_per_second": fed_loops(place, workload.size, workload.entries, syncs=turn is Turn.SYNCED)}
    if workload.kind in (Kind.READ, Kind.READ_COLD):
        cold = workload.kind is Kind.READ_COLD
        return {"reads_per_second": file_read(place, workload.size, workload.entries, cold=cold)}
    return {}


@contextmanager
def _loopback(answer: Callable[[bytes], bytes]) -> Iterator[Callable[[bytes, int], None]]:
    """Yields a function that sends bytes over loopback and waits for an answer of a number of bytes. A thread answers each
    receive by ``answer``."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname()[:2], timeout=_SECONDS_MAX)
        accepted, _ = server.accept()
    accepted.settimeout(_SECONDS_MAX)
    for each in (client, accepted):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def serve() -> None:
        while some := accepted.recv(1 << 20):
            accepted.sendall(answer(some))

    def ask(question: bytes, left: int) -> None:
        client.sendall(question)
        while left:
            left -= len(client.recv(left))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield ask
    finally:
        client.close()
        thread.join(_SECONDS_MAX)
        accepted.close()


def one_in_flight(place: Path, size: int, rounds: int) -> dict[str, float]:
    """The median and the 99th percentile, in ms, of a write with its sync and two echoes of the same bytes."""
    data, descriptor = os.urandom(size), os.open(place / "one", os.O_WRONLY | os.O_CREAT)

    def write_and_echo() -> None:
        os.write(descriptor, data)
        os.fdatasync(descriptor)
        for _ in range(2):
            ask(data, size)

    try:
        with _loopback(lambda some: some) as ask:
            return latencies(timed(write_and_echo) for _ in range(rounds))
    finally:
        os.close(descriptor)


def random_preads(place: Path, size: int, entries: int, reads: int) -> dict[str, float]:
    """The median and the 99th percentile, in ms, of a request over loopback whose answer is read from a file."""
    path, chance = place / "random", random.Random(0)
    with open(path, "wb") as file:
        file.write(os.urandom(size) * entries)
    descriptor = os.open(path, os.O_RDONLY)

    def answer(question: bytes) -> bytes:
        return os.pread(descriptor, size, int.from_bytes(question) * size)

    try:
        with _loopback(answer) as ask:
            return latencies(timed(lambda: ask(chance.randrange(entries).to_bytes(8), size)) for _ in range(reads))
    finally:
        os.close(descriptor)
        path.unlink()


_LOOP = """
import os, socket, sys
port, path, frame, syncs = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4] == "1"
connection = socket.create_connection(("127.0.0.1", port), timeout=60)
log = os.open(path, os.O_WRONLY | os.O_CREAT)
memory = memoryview(bytearray(frame))
while True:
    got = 0
    while got < frame:
        n = connection.recv_into(memory[got:])
        if not n:
            sys.exit()
        got += n
    os.write(log, memory)
    if syncs:
        os.fdatasync(log)
    connection.sendall(b"k")
"""


def fed_loops(place: Path, size: int, entries: int, *, syncs: bool) -> float:
    """Entries a second that three processes receive over loopback and write; an entry counts once two have synced it."""
    total = min(size * entries, _BYTES_MAX)
    frame = min(FRAME_BYTES, max(size, total))
    frames = max(1, total // frame)
    data = os.urandom(frame)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_SECONDS_MAX)
        port = str(server.getsockname()[1])
        command = [sys.executable, "-c", _LOOP, port]
        paths = [place / f"loop-{n}" for n in range(_COPIES)]
        loops = [subprocess.Popen([*command, str(path), str(frame), "1" if syncs else "0"]) for path in paths]
        connections = []
        try:
            for _ in loops:
                connections.append(server.accept()[0])
                connections[-1].settimeout(_SECONDS_MAX)
            done: list[list[float]] = [[] for _ in loops]
            threads = [
                threading.Thread(target=_feed, args=(connection, data, frames, found), daemon=True)
                for connection, found in zip(connections, done, strict=True)
            ]
            begun = time.perf_counter()
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(_SECONDS_MAX)
        finally:
            for connection in connections:
                connection.close()
            for loop in loops:
                loop.wait(_SECONDS_MAX)
            # The next limit must append, too, and not overwrite existing blocks and pages.
            for path in paths:
                path.unlink(missing_ok=True)
    ends = [sorted(at)[_ACK_QUORUM - 1] for at in zip(*done, strict=True)]
    if len(ends) < frames:
        raise RuntimeError(f"a bare loop took {len(ends)} of {frames} frames in {_SECONDS_MAX:g} s")
    return float(frames * frame / size / (max(ends) - begun))


def _feed(connection: socket.socket, data: bytes, frames: int, done: list[float]) -> None:
    """Send the frames, some ahead of their answers, and note the time of each answer."""
    sent = 0
    while len(done) < frames:
        while sent < frames and sent - len(done) < _IN_FLIGHT:
            connection.sendall(data)
            sent += 1
        answers = len(connection.recv(_IN_FLIGHT))
        if not answers:
            return
        done += [time.perf_counter()] * answers


def file_read(place: Path, size: int, entries: int, *, cold: bool) -> float:
    """Entries a second of a read of a file with their bytes."""
    total, folder = min(size * entries, _BYTES_MAX), place / "read"
    folder.mkdir(exist_ok=True)
    path, piece = folder / "bytes", os.urandom(_PIECE_BYTES)
    with open(path, "wb") as file:
        for at in range(0, total, _PIECE_BYTES):
            file.write(piece[: total - at])
    if cold:
        drop_cached([folder])
    memory = memoryview(bytearray(_PIECE_BYTES))
    begun = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        while file.readinto(memory):
            pass
    took = time.perf_counter() - begun
    path.unlink()
    return total / size / took


# -- The comparison


_DEEP = 10_000
"""Adds in flight for the peer's best throughput, and entries of its read calls. Both are measured with 1,000 too."""


def compare(
    cache: Path, directory: Path | None, turns: Sequence[Turn], rounds: int, scale: float, cases: Sequence[str] = ()
) -> tuple[str, list[str]]:
    """Measure both systems. Each line goes to standard output and to ``results.jsonl`` in ``cache``, the folder of the
    peer's jars too. ``directory``: a folder on the disk to measure (default: ``cache``). ``cases``: only these, such as L2.
    Returns the table, with the changes since the last run, and the failures."""
    class_path = build(cache)
    with (
        open(cache / "results.jsonl", "w") as file,
        tempfile.TemporaryDirectory(prefix="bench-", dir=directory or cache) as place,
    ):
        results = Results(file)
        for number in range(rounds):
            for turn in turns:
                workloads = chosen(turn, cases, scale)
                if not workloads:
                    continue
                limit = limits(turn, workloads, Path(place))
                own = bench(checkout(), turn, scale, Path(place), cases)
                copied = 2 * BOOKIES * sum(workload.size * workload.entries for workload in workloads)
                for system in (limit, own, theirs(turn, workloads, class_path, Path(place))):
                    use_memory_once(Path(place), copied)
                    results.add_turn(system, turn, turn=turn, round=number)
    return results.table(cache, "ledger", scale), results.failures


def theirs(turn: Turn, workloads: list[Workload], class_path: list[str], directory: Path) -> Iterator[Line]:
    """Lines of Apache BookKeeper. Raises RuntimeError if its start or its client fails."""
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
    """Workloads without steps between them. One client runs them all, to warm up its JIT compiler."""
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
        # Each ledger is read twice; the second read counts.
        twice = [_read(line, per_call) for line in written for per_call in (1000, _DEEP) for _ in range(2)]
        yield from list(peer.run(twice))[1::2]


def cold_reads(peer: Peer, workloads: list[Workload]) -> Iterator[Line]:
    """Reads after a restart of the bookies with their files dropped from the page cache."""
    for workload in workloads:
        # The first ledger warms up the client's JIT compiler; the second counts.
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

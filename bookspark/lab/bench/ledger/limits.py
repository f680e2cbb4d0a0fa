"""The limits of this machine for the cases of ``bookspark bench ledger``: bare loops that do the unavoidable and nothing else.

Law: a limit is measured in the same run as what is held against it, on the same disk, with the bytes of the same workload. It
has no protocol, no checksum and no index, so nothing that keeps the promises of a ledger gets past it; it is not the best that
another machine, or another durability, could do.

========  ==================================================================================================================
``L1``    a write and fdatasync of one entry, and two echoes of its bytes over loopback: what a writer, a bookie and the way
          between them can't be without. Both in turns, so that a busy moment hits both
``L2``    the bytes of all entries, in frames of FRAME_BYTES, fed over loopback to three processes that write and sync them; a
``L3``    frame counts when an ack quorum of two has synced it. L7's are the same: many ledgers share the disks' syncs
``L7``
``L8``    the same without a sync
``L14``   an echo over loopback that answers with a pread of one entry, at a random place of a file in the page cache
``L4``    the file with the bytes of all entries, read in pieces of 1 MiB: from the page cache, or after it was dropped
========  ==================================================================================================================
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
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bookspark.lab.bench.ledger.cases import Kind, Turn, Workload
from bookspark.lab.bench.processes import drop_cached

SYSTEM = "limit"
FRAME_BYTES = 640 << 10
"""As the client's frames are by default."""
_PIECE_BYTES = 1 << 20
_COPIES, _ACK_QUORUM = 3, 2
_SECONDS_MAX = 60.0
_IN_FLIGHT = 8
"""Frames that are under way to each process."""
_BYTES_MAX = 256 << 20
"""More bytes than this say nothing more about the rate."""

Line = dict[str, Any]


def limits(turn: Turn, workloads: list[Workload], directory: Path) -> Iterator[Line]:
    """A line for each workload of the turn that has a limit. ``directory`` is on the disk to measure."""
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


def one_in_flight(place: Path, size: int, rounds: int) -> dict[str, float]:
    """The median and the 99th percentile, in ms, of a write with its sync and two echoes of the same bytes."""
    data = os.urandom(size)
    server, path = socket.create_server(("127.0.0.1", 0)), place / "one"
    client = socket.create_connection(server.getsockname()[:2], timeout=_SECONDS_MAX)
    accepted, _ = server.accept()
    accepted.settimeout(_SECONDS_MAX)
    for each in (client, accepted):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def echo() -> None:
        while some := accepted.recv(1 << 20):
            accepted.sendall(some)

    thread = threading.Thread(target=echo, daemon=True)
    thread.start()
    took = []
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        for _ in range(rounds):
            begun = time.perf_counter()
            os.write(descriptor, data)
            os.fdatasync(descriptor)
            for _ in range(2):
                client.sendall(data)
                left = size
                while left:
                    left -= len(client.recv(left))
            took.append(time.perf_counter() - begun)
    finally:
        os.close(descriptor)
        client.close()
        thread.join(_SECONDS_MAX)
        accepted.close()
        server.close()
    took.sort()
    return {"p50_ms": 1e3 * median(took), "p99_ms": 1e3 * took[len(took) * 99 // 100]}


def random_preads(place: Path, size: int, entries: int, reads: int) -> dict[str, float]:
    """The median and the 99th percentile, in ms, of a question over loopback whose answer is read from a file."""
    path = place / "random"
    with open(path, "wb") as file:
        file.write(os.urandom(size) * entries)
    descriptor = os.open(path, os.O_RDONLY)
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname()[:2], timeout=_SECONDS_MAX)
    accepted, _ = server.accept()
    accepted.settimeout(_SECONDS_MAX)
    for each in (client, accepted):
        each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def answer() -> None:
        while question := accepted.recv(8):
            accepted.sendall(os.pread(descriptor, size, int.from_bytes(question) * size))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    chance, took = random.Random(0), []
    try:
        for _ in range(reads):
            begun = time.perf_counter()
            client.sendall(chance.randrange(entries).to_bytes(8))
            left = size
            while left:
                left -= len(client.recv(left))
            took.append(time.perf_counter() - begun)
    finally:
        client.close()
        thread.join(_SECONDS_MAX)
        accepted.close()
        server.close()
        os.close(descriptor)
        path.unlink()
    took.sort()
    return {"p50_ms": 1e3 * median(took), "p99_ms": 1e3 * took[len(took) * 99 // 100]}


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
    """Entries a second that three processes take in over loopback and write, each synced at two of them."""
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
            # The next limit is of appends too, and not of writes over blocks and pages that are there.
            for path in paths:
                path.unlink(missing_ok=True)
    ends = [sorted(at)[_ACK_QUORUM - 1] for at in zip(*done, strict=True)]
    if len(ends) < frames:
        raise RuntimeError(f"a bare loop took {len(ends)} of {frames} frames in {_SECONDS_MAX:g} s")
    return float(frames * frame / size / (max(ends) - begun))


def _feed(connection: socket.socket, data: bytes, frames: int, done: list[float]) -> None:
    """Send the frames, some of them ahead of their answers; note when each was answered."""
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
    """Entries a second that a read of a file of their bytes makes."""
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

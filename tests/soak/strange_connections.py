"""Ten thousand connections of strangers, silent, half open or with garbage, to a bookie with 700 descriptors, while a
writer continues: no append fails, and the bookie's memory does not grow with them. A round is a connection."""

from __future__ import annotations

import random
import resource
import socket
import struct
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress

from bookspark.local import LocalCluster
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from tests.soak._command import main
from tests.soak.slow_bookies import resident_bytes

_DESCRIPTORS = 700
# The number of connections that the strangers keep; the bookie has ended most of the older ones.
_HELD_MAX = 3000
_GROWTH_BYTES_MAX = 32_000_000
_BEFORE_SECONDS = 10.0
_ENTRY = bytes(4096)
_PAUSE_SECONDS = 0.002
_SEED = 17


def _silent(connection: socket.socket, chance: random.Random) -> None:
    pass


def _garbage(connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(chance.randbytes(chance.randrange(1, 5000)))


def _half_a_frame(connection: socket.socket, chance: random.Random) -> None:
    """An Arrow message that announces more bytes than follow."""
    connection.sendall(b"\xff\xff\xff\xff" + struct.pack("<i", chance.randrange(1, 1 << 31)) + bytes(20))


def _half_a_handshake(connection: socket.socket, chance: random.Random) -> None:
    connection.sendall(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + chance.randbytes(40))


def _half_closed(connection: socket.socket, chance: random.Random) -> None:
    connection.shutdown(socket.SHUT_WR)


def _reset(connection: socket.socket, chance: random.Random) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


_KINDS: tuple[Callable[[socket.socket, random.Random], None], ...] = (
    _silent, _garbage, _half_a_frame, _half_a_handshake, _half_closed, _reset
)  # fmt: skip


class _Strangers:
    """Makes so many connections, in a thread of its own."""

    def __init__(self, address: str, connections: int) -> None:
        host, _, port = address.rpartition(":")
        self._address, self._connections = (host, int(port)), connections
        self.made: Counter[str] = Counter()
        self.ended = threading.Event()
        # Never set: its wait paces the connections.
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        chance, held = random.Random(_SEED), deque[socket.socket]()
        try:
            for number in range(self._connections):
                kind = _KINDS[number % len(_KINDS)]
                with suppress(OSError):  # the bookie may have ended the connection already
                    held.append(socket.create_connection(self._address, 60))
                    self.made[kind.__name__.strip("_")] += 1
                    kind(held[-1], chance)
                if len(held) > _HELD_MAX:
                    held.popleft().close()
                self._stopped.wait(_PAUSE_SECONDS)
        finally:
            for one in held:
                one.close()
            self.ended.set()


def strange_connections(connections: int) -> Mapping[str, object]:
    with ExitStack() as stack:
        # Short logs, so that the bookie needs new descriptors of its own all the time.
        cluster = stack.enter_context(LocalCluster(bookies=1, entry_log_bytes_max=1 << 20))
        bookie, client = cluster.bookies[0], stack.enter_context(cluster.bookkeeper())
        assert bookie.pid is not None and bookie.address is not None
        ledger = client.create_ledger(1, 1, 1)
        until = time.monotonic() + _BEFORE_SECONDS
        warm, appended = _append(ledger, bookie.pid, lambda: time.monotonic() > until)
        resource.prlimit(bookie.pid, resource.RLIMIT_NOFILE, (_DESCRIPTORS, _DESCRIPTORS))
        began = time.monotonic()
        strangers = _Strangers(bookie.address, connections)
        largest, more = _append(ledger, bookie.pid, strangers.ended.is_set)
        seconds = time.monotonic() - began
        with cluster.bookkeeper() as late:
            assert late.bookie_status(bookie.bookie_id).ledgers == 1
        last = ledger.append(b"the last one")
        assert last == appended + more and not client.bookie_status(bookie.bookie_id).read_only
    assert strangers.made.total() == connections, strangers.made
    result = {
        "connections": dict(strangers.made),
        "seconds": round(seconds, 1),
        "appends": more,
        "appends_per_second_before": round(appended / _BEFORE_SECONDS),
        "appends_per_second": round(more / seconds),
        "failed_appends": 0,
        "growth_mib": round((largest - warm) / (1 << 20), 1),
    }
    assert largest - warm <= _GROWTH_BYTES_MAX, result
    return result


def _append(ledger: LedgerHandle, pid: int, is_over: Callable[[], bool]) -> tuple[int, int]:
    """Append until ``is_over()``, each append acknowledged; returns the process's greatest memory in bytes, and the number
    of appends."""
    largest = appended = 0
    while not is_over():
        ledger.append(_ENTRY)
        appended += 1
        if appended % 50 == 0:
            largest = max(largest, resident_bytes(pid))
    return largest, appended


if __name__ == "__main__":
    main(__doc__, strange_connections, 10_000)

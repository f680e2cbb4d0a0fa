"""What servers that are measured have in common: free ports, settings files, a start that is waited for, an end that is too, and
what they use."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_START_SECONDS = 180.0
_STOP_SECONDS = 120.0
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def write_settings(path: Path, settings: Mapping[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1.0).close()
            return
        except OSError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"nothing of the peer listens on port {port}; see its log") from error
            time.sleep(0.1)


def end(process: subprocess.Popen[bytes]) -> None:
    """End it, and wait for it, so that what it used is counted."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def family_cpu_seconds() -> float:
    """Processor time of this process and of all that descend from it; of those that ended, too, once they were waited for."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # ended meanwhile
        pid = int(path.parent.name)
        parents[pid], used[pid] = int(fields[1]), sum(map(int, fields[11:15]))
    own = os.getpid()

    def of_family(pid: int) -> bool:
        while pid not in (own, 0):
            pid = parents.get(pid, 0)
        return pid == own

    return sum(ticks for pid, ticks in used.items() if of_family(pid)) / _TICKS_PER_SECOND

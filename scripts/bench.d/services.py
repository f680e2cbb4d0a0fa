"""What servers that are measured have in common: free ports, settings files, a start that is waited for, an end that is too."""

from __future__ import annotations

import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

_START_SECONDS = 180.0
_STOP_SECONDS = 120.0


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

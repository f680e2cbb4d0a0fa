"""Common parts of measured servers: jars, free ports, settings files, waits for start and end."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

# -- Jars from Maven Central, copied by ``mvn`` into a folder.


def fetched(pom: Path, jars: Path) -> Path:
    """The folder ``jars`` with every jar that ``pom`` needs at run time, filled again after a change of the pom. Needs
    ``mvn``; raises CalledProcessError if it fails."""
    complete = jars.with_name(f"{jars.name}-complete")
    wanted = pom.read_text()
    if not complete.exists() or complete.read_text() != wanted:
        shutil.rmtree(jars, ignore_errors=True)
        subprocess.run(
            ["mvn", "-q", "-B", "-f", pom, "dependency:copy-dependencies", "-DincludeScope=runtime", f"-DoutputDirectory={jars}"],
            check=True,
        )  # fmt: skip
        complete.write_text(wanted)
    return jars


# -- Servers


_START_SECONDS = 180.0
_STOP_SECONDS = 120.0


def write_settings(path: Path, settings: Mapping[str, object]) -> None:
    """Write lines ``name=value``."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def wait_listening(port: int, process: subprocess.Popen[bytes]) -> None:
    """Return once ``port`` has a listener. Raises RuntimeError if ``process`` ends, or after three minutes."""
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
    """Stop ``process`` and wait for its end. The kernel counts a child's resources only after a wait for it."""
    process.terminate()
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

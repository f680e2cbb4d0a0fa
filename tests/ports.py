"""Free ports, for servers that need a given port."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_MIN = 15_000


def free_port() -> int:
    """A free port on 127.0.0.1 outside the kernel's range of ephemeral ports: from that range, the kernel could give the
    port to a connection or another server before the test's server starts."""
    first_local = int(_LOCAL_PORTS.read_text().split()[0]) if _LOCAL_PORTS.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(_PORT_MIN, first_local)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue

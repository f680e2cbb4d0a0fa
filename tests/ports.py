"""Ports that nobody has, for servers that have to be told theirs."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_LOCAL_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_PORT_MIN = 15_000


def free_port() -> int:
    """A port on 127.0.0.1 that is free, and of which the kernel gives nobody a connection's end or a server that asked for any
    port: those are what a port that was asked for, and freed again, goes to while the server for it starts."""
    first_local = int(_LOCAL_PORTS.read_text().split()[0]) if _LOCAL_PORTS.exists() else 32_768
    while True:
        port = random.SystemRandom().randrange(_PORT_MIN, first_local)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue

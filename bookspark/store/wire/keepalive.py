"""Detection of a peer whose host is gone, so that not even a reset arrives.

Law: a connection ends with an error if its peer acknowledges neither data nor keepalive probes for 60 s. Otherwise a bookie
would keep the sockets of dead clients for ever, and a client would wait a quarter of an hour, the kernel's own limit. A halted
process (SIGSTOP) is not gone, as long as its socket has room.
"""

from __future__ import annotations

import contextlib
import socket
from typing import Protocol

_GONE_SECONDS = 60
_IDLE_SECONDS = 30
"""After this time without a byte, the kernel probes the peer."""
_ASKED_EACH_SECONDS = 10

_OPTIONS = {
    "TCP_KEEPIDLE": _IDLE_SECONDS,
    "TCP_KEEPINTVL": _ASKED_EACH_SECONDS,
    "TCP_KEEPCNT": (_GONE_SECONDS - _IDLE_SECONDS) // _ASKED_EACH_SECONDS,
    "TCP_USER_TIMEOUT": _GONE_SECONDS * 1000,
}


class _Socket(Protocol):
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def notice_lost_peer(connection: _Socket) -> None:
    """Let the kernel end ``connection`` when its peer is gone. Options unknown to the system are skipped."""
    # The peer may have ended the connection already. The protocol reports that loss itself.
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _OPTIONS.items():
            if hasattr(socket, name):
                connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

"""A relay between a cluster and its ZooKeeper that delays or drops answers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

from tests.awaiting import time_passes


class SlowRelay:
    """Relay bytes, each piece ``seconds`` late; use as a context manager."""

    def __init__(self, target: str) -> None:
        """``target``: ``host:port``."""
        host, _, port = target.partition(":")
        self._target = host, int(port)
        self.seconds = 0.0
        self._is_cut = False
        self._open: list[socket.socket] = []
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listens.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Close all connections and refuse new ones."""
        self._is_cut = True
        self._end_all()

    def mend(self) -> None:
        """Accept connections again."""
        self._is_cut = False

    def __enter__(self) -> SlowRelay:
        return self

    def __exit__(self, *_: object) -> None:
        self.cut()
        self._listens.close()

    def _end_all(self) -> None:
        for one in self._open:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listens.accept()
                if self._is_cut:
                    near.close()
                    continue
                far = socket.create_connection(self._target)
                self._open += (near, far)
                for one, other in ((near, far), (far, near)):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        with suppress(OSError):
            while part := one.recv(1 << 16):
                if self.seconds:
                    time_passes(self.seconds)
                other.sendall(part)
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

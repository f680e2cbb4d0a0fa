"""The interface of a connection to its requests.

``connection`` implements it on a socket. With this interface the imports go one way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bookspark.store.wire.entry_batch import Buffer


class Peer(Protocol):
    """The client at the other end of a connection."""

    @property
    def peer(self) -> str:
        """Address and name, for log lines."""

    def greeted(self) -> None:
        """Allow all requests from now on: TLS, the secret and HELLO are through."""

    def name_peer(self, name: str) -> None:
        """Note the client's name for itself. It may change later."""

    def refuse(self, why: str) -> None:
        """Send the reason, take nothing more, and end the connection."""

    def send(self, *pieces: Buffer) -> None:
        """Send these bytes at the end of this turn of the loop, or with the next ``flush``."""

    def acknowledge(self, request_id: int) -> None:
        """Answer an add OK. All such answers of one turn of the loop share a frame."""

    def flush(self) -> None:
        """Send the gathered answers now."""

    def read_begins(self) -> None:
        """Count the start of a read's answer."""

    def read_ends(self) -> None:
        """Count the end of a read's answer."""

    def takes(self, size: int) -> bool:
        """Has the peer taken all earlier parts, and is there room for ``size`` bytes more?"""

    def when_it_takes(self, size: int, begin: Callable[[int], None]) -> None:
        """Call ``begin``, now or later, once the peer has taken all earlier parts and there is room for ``size`` bytes. Its
        argument is the granted size, which may be larger. ``part_ends`` has to follow with that size. Nothing is called after the
        end of the connection."""

    def part_ends(self, size: int) -> None:
        """Note that the part is sent, or failed."""

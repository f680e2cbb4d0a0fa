"""What the requests of a connection need of it: a place to send answers to, and to say how much is under way.

``connection`` is the one that sits on a socket. The requests know it by this interface, so the imports go one way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bookspark.store.wire.entry_batch import Buffer


class Peer(Protocol):
    """The client at the other end of a connection."""

    @property
    def peer(self) -> str:
        """Its address and name, for log lines."""

    def greeted(self) -> None:
        """It may ask for anything from now on: TLS, the secret and HELLO are through."""

    def name_peer(self, name: str) -> None:
        """Note the name that the client gave itself. It may give another one later."""

    def refuse(self, why: str) -> None:
        """Tell it why, take nothing more from it, and end the connection."""

    def send(self, *pieces: Buffer) -> None:
        """Send these bytes at the end of this turn of the loop, or with the next ``flush``."""

    def acknowledge(self, request_id: int) -> None:
        """Answer an add OK. All such answers of one turn of the loop are sent in one frame."""

    def flush(self) -> None:
        """Send now what is gathered."""

    def read_begins(self) -> None:
        """The answer to a read begins."""

    def read_ends(self) -> None:
        """That answer is sent."""

    def takes(self, size: int) -> bool:
        """Has it taken what was sent before, and is there room for ``size`` bytes more?"""

    def when_it_takes(self, size: int, begin: Callable[[int], None]) -> None:
        """Call ``begin`` as soon as the peer has taken what was sent before, and there is room for ``size`` bytes: now or later.
        It is told how many bytes there is room for, which may be more. ``part_ends`` follows with that number. Nothing is called
        once the connection has ended."""

    def part_ends(self, size: int) -> None:
        """What ``begin`` began is sent, or failed."""

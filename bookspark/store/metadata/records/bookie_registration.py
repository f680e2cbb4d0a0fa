"""A bookie's registration: the document in its ephemeral node while it serves."""

from __future__ import annotations

import msgspec


class BookieRegistration(msgspec.Struct, frozen=True):
    """A bookie's address, and its properties for placement."""

    bookie_id: str
    address: str
    """``host:port`` of the request server."""
    incarnation: int
    """A random number, new at each start of the process. Unsynced adds acked by another incarnation may be gone."""
    host: str = ""
    pid: int = 0
    read_only: bool = False
    journal_write_data: bool = True
    """False: the bookie acks adds before it syncs them."""
    rack: str = ""
    """The rack, for placement: bookies of a rack fail together. Bookies without a rack count as one rack."""
    labels: dict[str, str] = {}
    """Other failure domains for placement, such as the executor."""
    bookkeeper_address: str | msgspec.UnsetType = msgspec.UNSET
    """``host:port`` of BookKeeper's own protocol. Absent if the bookie does not speak it."""

"""A bookie's registration: what stands in its ephemeral node while it serves."""

from __future__ import annotations

import msgspec


class BookieRegistration(msgspec.Struct, frozen=True):
    """What a bookie publishes while it serves: where it is reached, and what placement wants to know of it."""

    bookie_id: str
    address: str
    """``host:port`` of its request server."""
    incarnation: int
    """A random number, new at each start of the process. Unsynced adds that another incarnation acked may be gone."""
    host: str = ""
    pid: int = 0
    read_only: bool = False
    journal_write_data: bool = True
    """False: the bookie acks adds before it has synced them."""
    rack: str = ""
    """The rack, for placement: bookies of one rack fail together. Bookies that name none count as one rack."""
    labels: dict[str, str] = {}
    """Anything else that placement may want to keep apart, such as the executor."""
    bookkeeper_address: str | msgspec.UnsetType = msgspec.UNSET
    """``host:port`` where it speaks BookKeeper's own protocol. Not there if it does not."""

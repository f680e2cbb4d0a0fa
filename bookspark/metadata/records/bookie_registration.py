"""A bookie's registration: what stands in its ephemeral node while it serves."""

from __future__ import annotations

import msgspec


class BookieRegistration(msgspec.Struct, frozen=True):
    """What a bookie publishes while it serves: where it is reached, and what placement wants to know of it."""

    bookie_id: str
    address: str
    """``host:port`` of its request server."""
    incarnation: int
    """Random per start of the process: unsynced adds acked by another incarnation may be gone."""
    host: str = ""
    pid: int = 0
    read_only: bool = False
    journal_write_data: bool = True
    """False: it acks adds before it has synced them."""
    rack: str = ""
    """Which bookies fail together, for placement; those that name none are on one."""
    labels: dict[str, str] = {}
    """Anything else that placement may want to keep apart, such as the executor."""

"""A bookie's options: one frozen value, from keyword arguments or from the ``[bookie]`` table of a ``bookspark.toml``.

Units are last in the names. ``conf/bookspark.toml`` shows each option with its default; a test keeps the two the same.
"""

from __future__ import annotations

from typing import Any

import msgspec

from bookspark.protocol.errors import ConfigurationError
from bookspark.protocol.options import check_names


class BookieConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a bookie process is told. ``directories`` (one per disk) and ``zookeeper`` have no default."""

    directories: tuple[str, ...]
    """Absolute paths, one per disk, the bookie's own: nothing else may lie in them."""
    zookeeper: str
    """``host:port[,host:port…][/chroot]``."""
    host: str = "127.0.0.1"
    """The address to listen on, and the one that clients are told."""
    port: int = 0
    """0: any free one. Identity is the cookie's, so a bookie may come back at another port."""
    lease_seconds: float = 60.0
    """How long a bookie serves on with nobody holding its lease before it shuts down cleanly."""
    entry_log_bytes_max: int = 64 << 20
    """A log that has reached this is sealed and a new one begun."""
    checkpoint_interval_seconds: float = 60.0
    request_bytes_in_flight_max: int = 64 << 20
    """Adds waiting for their sync, in bytes, over which a bookie stops reading from its connections."""
    zookeeper_timeout_seconds: float = 10.0

    def __post_init__(self) -> None:
        if not self.directories:
            raise ConfigurationError("a bookie needs at least one directory: set directories")
        if not 0 <= self.port <= 65535:
            raise ConfigurationError(f"port {self.port} is not one; use 1 to 65535, or 0 for any free one")
        if not 0 < self.entry_log_bytes_max <= 1 << 31:
            raise ConfigurationError(
                f"entry_log_bytes_max {self.entry_log_bytes_max} can't be used; choose 1 to {1 << 31} (default {64 << 20})"
            )


def bookie_config(**options: Any) -> BookieConfig:
    """A BookieConfig from ``options``; an unknown or ill-typed one is a ConfigurationError that names it."""
    check_names(options, BookieConfig.__struct_fields__, "bookie option")
    try:
        return msgspec.convert(options, BookieConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"bookie option: {error}") from error

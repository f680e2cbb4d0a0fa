"""A client's options: one frozen value, from the keyword arguments of ``BookKeeper``. Units are last in the names."""

from __future__ import annotations

from typing import Any

import msgspec

from bookspark.protocol.errors import ConfigurationError
from bookspark.protocol.options import check_names


class ClientConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every blocking call ends within one of these times."""

    add_timeout_seconds: float = 30.0
    """After so long without progress, appends that an ack quorum did not acknowledge fail, and the handle with them."""
    answer_timeout_seconds: float = 5.0
    """One bookie's time to answer. A read asks the next replica then, a writer looks for another bookie."""
    recovery_timeout_seconds: float = 60.0
    connect_timeout_seconds: float = 3.0
    metadata_timeout_seconds: float = 10.0
    delay_ensemble_change: bool = False
    """Replace a failed bookie only when an ack quorum can't be reached without it, and not at its first failure."""
    quarantine_seconds: float = 10.0
    """For so long a bookie that could not be reached is chosen as a replacement only if there is no other."""
    explicit_lac_interval_seconds: float = 0.1
    """How long an idle writer keeps a LAC that no entry told the bookies to itself."""
    frame_bytes: int = 256 << 10
    """Pending appends are gathered into frames of about this size."""
    frames_in_flight_max: int = 8
    """Per ledger. While so many are under way, appends gather."""
    bytes_in_flight_max: int = 64 << 20
    """Per ledger. Over this ``append_async`` waits."""
    bookie_bytes_queued_max: int = 64 << 20
    """A bookie that is so far behind is cut off; what still counts is sent again when it is back."""


def client_config(**options: Any) -> ClientConfig:
    """A ClientConfig from ``options``; an unknown or ill-typed one is a ConfigurationError that names it."""
    check_names(options, ClientConfig.__struct_fields__, "client option")
    try:
        return msgspec.convert(options, ClientConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"client option: {error}") from error

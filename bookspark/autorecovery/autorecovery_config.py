"""Options of autorecovery: one frozen value, from the table ``[autorecovery]`` of the settings. Units are last in the names."""

from __future__ import annotations

from typing import Any

import msgspec

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.option_checks import check_names


class AutorecoveryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Of an auditor and of a replication worker, which are one process."""

    lost_bookie_delay_seconds: float = 120.0
    """For so long a bookie may be gone until it counts as lost: longer than a restart takes. ``bookspark autorecovery delay``
    sets it for all auditors."""
    check_interval_hours: float = 24.0
    """How often what every bookie holds is compared with what it should; 0: only when it is triggered."""
    check_confirm_seconds: float = 5.0
    """Entries that a bookie lacks are looked for again so much later: copies that were under way have arrived then."""
    grace_seconds: float = 30.0
    """An open ledger is left to its writer for so long, before one whose last fragment lost a bookie is recovered."""
    copy_bytes_per_second: int = 0
    """What the copies of one worker may take; 0: as fast as it can."""
    ledgers_at_once: int = 4
    """How many ledgers one worker repairs at the same time."""
    retry_seconds: float = 2.0
    """The pause after a first failed attempt at a ledger; it doubles with each."""
    retry_seconds_max: float = 600.0
    poll_seconds: float = 10.0
    """How often things are looked at that nobody is told of. What changes is seen at once."""

    def __post_init__(self) -> None:
        for name in ("lost_bookie_delay_seconds", "check_interval_hours", "check_confirm_seconds", "grace_seconds"):
            if getattr(self, name) < 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it has to be 0 or more")
        for name in ("ledgers_at_once", "retry_seconds", "retry_seconds_max", "poll_seconds"):
            if getattr(self, name) <= 0:
                raise ConfigurationError(f"{name} is {getattr(self, name)}; it has to be above 0")


def autorecovery_config(**options: Any) -> AutorecoveryConfig:
    """An AutorecoveryConfig from ``options``; an unknown or ill-typed one is a ConfigurationError that names it."""
    check_names(options, AutorecoveryConfig.__struct_fields__, "autorecovery option")
    try:
        return msgspec.convert(options, AutorecoveryConfig)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"autorecovery option: {error}") from error

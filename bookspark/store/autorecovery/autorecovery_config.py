"""Options of autorecovery: one frozen value, from the table ``[autorecovery]`` of the settings. Units are last in the names."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from bookspark.support.arguments import AtLeastOne, BytesOrNone, Config, Seconds, SecondsOrNone, make_config

Port = Annotated[int, Meta(ge=-1, le=65535)]
Hours = Annotated[float, Meta(ge=0, le=1e6)]


class AutorecoveryConfig(Config, frozen=True, kw_only=True):
    """Options of an autorecovery process, which is an auditor and a replication worker."""

    option_kind = "autorecovery option"

    lost_bookie_delay_seconds: SecondsOrNone = 120.0
    """Time until an absent bookie counts as lost; more than a restart takes. ``bookspark autorecovery delay`` sets it for all
    auditors."""
    check_interval_hours: Hours = 24.0
    """Time between exact checks of every bookie's held and assigned entries. 0: only when triggered."""
    check_confirm_seconds: SecondsOrNone = 5.0
    """Time until a check looks again for missing entries."""
    grace_seconds: SecondsOrNone = 30.0
    """Time for an open ledger's writer to replace a lost bookie before the ledger is recovered. 0: only connected writers get
    time."""
    grace_seconds_max: SecondsOrNone = 600.0
    """The same for a Bookspark writer that is connected to a bookie of the ledger."""
    copy_bytes_per_second: BytesOrNone = 0
    """Limit of a worker's copying. 0: none."""
    ledgers_at_once: AtLeastOne = 16
    """Ledgers that a worker repairs at once, each in a thread."""
    retry_seconds: Seconds = 2.0
    """Pause after a ledger's first failed repair; further failures double it."""
    retry_seconds_max: Seconds = 600.0
    """Longest such pause."""
    poll_seconds: Seconds = 10.0
    """Time between looks at things without a watch."""
    metrics_host: str = "127.0.0.1"
    """Address for Prometheus and probes."""
    metrics_port: Port = 0
    """Port for Prometheus and probes (``/health``, ``/ready``), or the next free one of 64. 0: none. -1: any free port. The log
    has it."""


def autorecovery_config(**options: Any) -> AutorecoveryConfig:
    """An AutorecoveryConfig of ``options``. Raises ConfigurationError for an unknown option or an invalid value."""
    return make_config(AutorecoveryConfig, options)

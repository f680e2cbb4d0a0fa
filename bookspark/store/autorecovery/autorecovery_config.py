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
    """A bookie that is gone for this many seconds counts as lost; choose more than a restart takes. ``bookspark autorecovery
    delay`` sets it for all auditors."""
    check_interval_hours: Hours = 24.0
    """Hours between two exact checks, which compare what every bookie holds with what it should. 0: only when triggered."""
    check_confirm_seconds: SecondsOrNone = 5.0
    """Seconds after which a check looks again for entries that seem to be missing: copies under way have arrived by then."""
    grace_seconds: SecondsOrNone = 30.0
    """Seconds that the writer of an open ledger has to replace a lost bookie itself; then the ledger is recovered."""
    copy_bytes_per_second: BytesOrNone = 0
    """Limit of bytes a second for the copies of one worker. 0: no limit."""
    ledgers_at_once: AtLeastOne = 16
    """Number of ledgers that one worker repairs at the same time; each takes a thread."""
    retry_seconds: Seconds = 2.0
    """Seconds of pause after the first failed repair of a ledger; the pause doubles with each further one."""
    retry_seconds_max: Seconds = 600.0
    """Longest such pause, in seconds."""
    poll_seconds: Seconds = 10.0
    """Seconds between two looks at things that no watch reports, such as a lock that became free."""
    metrics_host: str = "127.0.0.1"
    """The address at which Prometheus and probes are answered."""
    metrics_port: Port = 0
    """The port there where Prometheus and probes (``/health``, ``/ready``) are answered; if another process has it, the next free
    one of 64. 0: nobody is answered. -1: any free port. The log tells which one it is."""


def autorecovery_config(**options: Any) -> AutorecoveryConfig:
    """An AutorecoveryConfig of ``options``. Raises ConfigurationError for an option that is unknown or can't be used."""
    return make_config(AutorecoveryConfig, options)

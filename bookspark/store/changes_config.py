"""Options of the process that applies a change: one frozen value, from the table ``[changes]`` of the settings."""

from __future__ import annotations

from typing import Any

from bookspark.support.arguments import AtLeastOne, BytesOrNone, Config, Seconds, make_config


class ChangesConfig(Config, frozen=True, kw_only=True):
    """Options of the process that applies a change of the cluster."""

    option_kind = "changes option"

    stall_seconds: Seconds = 1800.0
    """Time without progress after which a change stops. It can be resumed."""
    poll_seconds: Seconds = 2.0
    """Time between looks at the cluster while waiting."""
    confirm_seconds: Seconds = 2.0
    """Time until a check looks again for missing entries."""
    copy_bytes_per_second: BytesOrNone = 0
    """Limit for moved copies. 0: none."""
    ledgers_at_once: AtLeastOne = 8
    """Ledgers moved at once, each in a thread."""


def changes_config(**options: Any) -> ChangesConfig:
    """A ChangesConfig of ``options``. Raises ConfigurationError for an unknown option or an invalid value."""
    return make_config(ChangesConfig, options)

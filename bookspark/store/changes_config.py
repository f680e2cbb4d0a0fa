"""Options of the one who applies a change: one frozen value, from the table ``[changes]`` of the settings."""

from __future__ import annotations

from typing import Any

from bookspark.support.arguments import AtLeastOne, BytesOrNone, Config, Seconds, make_config


class ChangesConfig(Config, frozen=True, kw_only=True):
    """Options of the one who applies a change of the cluster."""

    option_kind = "changes option"

    stall_seconds: Seconds = 1800.0
    """Seconds after which a change that nothing happens to is left as it is, with the reason. It may be gone on with."""
    poll_seconds: Seconds = 2.0
    """Seconds between two looks at the cluster while something is waited for."""
    confirm_seconds: Seconds = 2.0
    """Seconds after which a check looks again for entries that seem to be missing: copies under way have arrived by then."""
    copy_bytes_per_second: BytesOrNone = 0
    """Limit of bytes a second for the copies that are moved. 0: no limit."""
    ledgers_at_once: AtLeastOne = 8
    """Number of ledgers that are moved at the same time; each takes a thread."""


def changes_config(**options: Any) -> ChangesConfig:
    """A ChangesConfig of ``options``. Raises ConfigurationError for an option that is unknown or can't be used."""
    return make_config(ChangesConfig, options)

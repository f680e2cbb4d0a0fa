"""Settings of this process, from the file of ``bookspark --config FILE``. ``store.settings`` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_chosen: dict[str, dict[str, Any]] = {}


def choose(path: Path | None) -> None:
    """Read the settings from ``path``; None: no settings. Raises ConfigurationError if the file is unreadable or has an unknown
    option or a wrong value."""
    _chosen.clear()
    if path is not None:
        # Imported here: the import loads the client, which not every command needs.
        from bookspark.store.settings import read_settings

        _chosen.update(read_settings(path))


def chosen(table: str) -> dict[str, Any]:
    """The options in table ``table`` of the settings file. Empty without a file."""
    return dict(_chosen.get(table, {}))

"""The settings file of this process: the one that ``bookspark --config FILE`` names. ``store.settings`` reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_chosen: dict[str, dict[str, Any]] = {}


def choose(path: Path | None) -> None:
    """Read the settings of this process from ``path``. None: there are none. Raises ConfigurationError if the file can't be read,
    or has an unknown option or a wrong value."""
    _chosen.clear()
    if path is not None:
        # Imported here: it loads the client, which not every command needs.
        from bookspark.store.settings import read_settings

        _chosen.update(read_settings(path))


def chosen(table: str) -> dict[str, Any]:
    """The options in the table ``table`` of the chosen file. Empty without a file."""
    return dict(_chosen.get(table, {}))

"""The settings of this process: the file of ``bookspark --config FILE`` (see ``daemon.settings``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_chosen: dict[str, dict[str, Any]] = {}


def choose(path: Path | None) -> None:
    """Take ``path`` (None: nothing) for the settings of this process. Raises ConfigurationError."""
    _chosen.clear()
    if path is not None:
        from bookspark.daemon.settings import read_settings  # with the client, which not every command needs

        _chosen.update(read_settings(path))


def chosen(table: str) -> dict[str, Any]:
    """The options in that table of the chosen file; none if there is no file."""
    return dict(_chosen.get(table, {}))

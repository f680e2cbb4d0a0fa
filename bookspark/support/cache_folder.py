"""Folder of files that Bookspark can make again: jars of other systems, folders of runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder ``bookspark`` in ``$XDG_CACHE_HOME``, or in ``~/.cache`` if that is not set. It may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bookspark"

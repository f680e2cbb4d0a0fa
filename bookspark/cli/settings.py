"""The file of ``bookspark --config FILE``: tables ``[bookie]`` and ``[client]``, as ``conf/bookspark.toml`` shows them.

Law: a table or an option that is not known is an error, even of a table that the command does not use.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from bookspark.bookie.config import BookieConfig
from bookspark.client.config import ClientConfig
from bookspark.protocol.errors import ConfigurationError
from bookspark.protocol.options import check_names

TABLES = {
    "bookie": frozenset(BookieConfig.__struct_fields__) - {"directories", "zookeeper"},
    "client": frozenset(ClientConfig.__struct_fields__),
}

_chosen: dict[str, dict[str, Any]] = {}


def choose(path: Path | None) -> None:
    """Take ``path`` (None: nothing) for the settings of this process. Raises ConfigurationError."""
    _chosen.clear()
    if path is not None:
        _chosen.update(read_settings(path))


def chosen(table: str) -> dict[str, Any]:
    """The options in that table of the chosen file; none if there is no file."""
    return dict(_chosen.get(table, {}))


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a file. Raises ConfigurationError: unreadable, not TOML, or with names that are not known."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"settings file {path} can't be read: {error.strerror}") from error
    except ValueError as error:
        raise ConfigurationError(f"settings file {path} is not TOML: {error}") from error
    check_names(tables, TABLES, f"table in {path}")
    for table, options in tables.items():
        if not isinstance(options, dict):
            raise ConfigurationError(f"{table} in {path} is not a table; write [{table}]")
        check_names(options, TABLES[table], f"option of [{table}] in {path}")
    return tables

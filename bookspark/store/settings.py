"""The settings file: tables ``[bookie]``, ``[client]``, ``[autorecovery]`` and ``[changes]``, as in ``conf/bookspark.toml``.

Law: an unknown table or option is an error, also in an unused table.

The command takes the file from ``--config``. Processes without a command line, such as Spark's Python workers, take it from
the environment variable ``BOOKSPARK_CONFIG`` (``spark.executorEnv.BOOKSPARK_CONFIG``).
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

from bookspark.errors import ConfigurationError
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client.client_config import ClientConfig
from bookspark.support.arguments import check_names
from bookspark.support.private_files import trusted_opened

VARIABLE = "BOOKSPARK_CONFIG"
TABLES = {
    "bookie": frozenset(BookieConfig.__struct_fields__) - {"directories", "zookeeper"},
    "client": frozenset(ClientConfig.__struct_fields__),
    "autorecovery": frozenset(AutorecoveryConfig.__struct_fields__),
    "changes": frozenset(ChangesConfig.__struct_fields__),
}


def of_environment(table: str) -> dict[str, Any]:
    """The options of one table, from the file named by the environment variable; {} without a file. Raises ConfigurationError."""
    path = os.environ.get(VARIABLE)
    return read_settings(Path(path)).get(table, {}) if path else {}


def read_settings(path: Path) -> dict[str, dict[str, Any]]:
    """The tables of a file. Raises ConfigurationError if the file can't be read, can be written by others, is not TOML, or has
    unknown names."""
    try:
        with trusted_opened(str(path), "settings file") as descriptor, open(descriptor, "rb", closefd=False) as file:
            tables = tomllib.load(file)
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

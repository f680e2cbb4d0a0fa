"""All system tables by name, for ``spark.read.format("bookspark").option("table", name)`` and for snapshots.

Law: a table is read whole, or the read fails (see ``table``). Tables are read at slightly different times: equal values of
``metadata_version`` show the same state of a ledger. Each column's meaning stands beside its name in its module, and is the
column's comment in Delta.
"""

from __future__ import annotations

from bookspark.spark.tables.bookies import AUTORECOVERY, BOOKIES, COOKIES, DISKS, PLACEMENT, UNDERREPLICATION
from bookspark.spark.tables.contents import ENTRY_CHECKSUMS, ENTRY_LOGS, INDEX_RANGES, LIMBO
from bookspark.spark.tables.ledgers import ACCEPTED_LOSSES, FRAGMENTS, LEDGER_IDS, LEDGER_RECORDS, LEDGERS
from bookspark.spark.tables.logs import GAPS, LOG_COMMITS, LOGS
from bookspark.spark.tables.table import SystemTable
from bookspark.support.arguments import check_names

_TABLES = (
    *(LEDGERS, FRAGMENTS, ACCEPTED_LOSSES, LEDGER_RECORDS, LEDGER_IDS),
    *(BOOKIES, COOKIES, PLACEMENT),
    *(INDEX_RANGES, ENTRY_LOGS, LIMBO, ENTRY_CHECKSUMS),
    *(UNDERREPLICATION, AUTORECOVERY, DISKS),
    *(LOGS, LOG_COMMITS, GAPS),
)
TABLES = {table.name: table for table in _TABLES}


def system_table(name: str) -> SystemTable:
    """The table of that name. Raises ConfigurationError with the most similar name."""
    check_names([name], TABLES, "system table")
    return TABLES[name]

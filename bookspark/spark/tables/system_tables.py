"""All system tables by name, for ``spark.read.format("bookspark").option("table", name)`` and for snapshots.

Law: a table is read whole, or the read fails (see ``table``). Tables are read at slightly different times: equal values of
``metadata_version`` show the same state of a ledger. Each column's meaning stands beside its name in its module, and is the
column's comment in Delta.

====================  =========================================================================
``ledgers``           a row per ledger: its metadata
``fragments``         a row per fragment of each ledger: its bookies and entries
``accepted_losses``   a row per loss that an operator accepted to close a ledger
``ledger_records``    a row per ledger: its rows in the three tables above, from one read
``ledger_ids``        a row per run of consecutive ledger ids
``bookies``           a row per bookie with a cookie or a registration
``cookies``           a row per cookie in the metadata store
``index_ranges``      a row per run of entries in a bookie's index
``entry_logs``        a row per log of a bookie
``limbo``             a row per ledger in limbo on a bookie
``entry_checksums``   the checksum of every copy on every bookie; this reads all copies
``underreplication``  a row per ledger to be repaired and bookie that is the reason
``disks``             a row per directory of a bookie that is up
``autorecovery``      a row: whether autorecovery is on
``logs``              a row per log: its record
``log_commits``       a row per range of entries in a commit of a log
``gaps``              a row per run of unreadable rows of a log; this reads all rows
====================  =========================================================================
"""

from __future__ import annotations

from bookspark.spark.tables.bookies import AUTORECOVERY, BOOKIES, COOKIES, DISKS, PLACEMENT, UNDERREPLICATION
from bookspark.spark.tables.contents import ENTRY_CHECKSUMS, ENTRY_LOGS, INDEX_RANGES, LIMBO
from bookspark.spark.tables.ledgers import ACCEPTED_LOSSES, FRAGMENTS, LEDGER_IDS, LEDGER_RECORDS, LEDGERS
from bookspark.spark.tables.logs import GAPS, LOG_COMMITS, LOGS
from bookspark.spark.tables.table import SystemTable
from bookspark.support.arguments import check_names

_FAMILIES = (
    (LEDGERS, FRAGMENTS, ACCEPTED_LOSSES, LEDGER_RECORDS, LEDGER_IDS),
    (BOOKIES, COOKIES, PLACEMENT),
    (INDEX_RANGES, ENTRY_LOGS, LIMBO, ENTRY_CHECKSUMS),
    (UNDERREPLICATION, AUTORECOVERY),
    (DISKS,),
    (LOGS, LOG_COMMITS),
    (GAPS,),
)
TABLES = {table.name: table for family in _FAMILIES for table in family}


def system_table(name: str) -> SystemTable:
    """The table of that name. Raises ConfigurationError with the most similar name."""
    check_names([name], TABLES, "system table")
    return TABLES[name]

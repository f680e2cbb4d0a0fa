"""Bookspark: ledger storage for Spark, with the protocol of Apache BookKeeper.

A ledger is an append-only sequence of entries with one writer. Each entry is kept on several bookies, which are processes on
the hosts of Spark's executors. The names of a client:

===================
=============================================================================================================
``BookKeeper``       a client: creates, opens, lists and deletes ledgers
``LedgerHandle``     the only writer of a ledger; ``create_ledger`` returns it
``LedgerHandleAdv``  the same, with entry ids chosen by the caller; ``create_ledger_adv`` returns it
``ReadHandle``       a reader of a ledger; ``open_ledger`` and ``open_ledger_no_recovery`` return it
``Entry``            a read entry: its id, its payload and its writer's other fields
``LedgerMetadata``   a ledger's record in the metadata store; four of its fields have the types that follow
``LedgerState``      open, in recovery or closed
``LedgerType``       when an append is acknowledged: after the sync, or before it
``DigestType``       how entries are protected against damage
``Replication``      the meaning of write quorum: an aim, or a promise
``errors``           every error that Bookspark raises on purpose
``logs``             logs with many writers: ``open_log``, producers and readers
===================
=============================================================================================================

Example::

    with bookspark.BookKeeper("zk1:2181") as bookkeeper:
        with bookkeeper.create_ledger(password=b"secret") as ledger:
            ledger.append(b"first")  # returns once an ack quorum of bookies has synced it
        entries = list(bookkeeper.open_ledger(ledger.ledger_id, password=b"secret").read())

The wings of the package, each above those that it imports:

================  ================================================================================================
``jobs``          jobs for spark-submit; they and the settings in ``conf`` come with the wheel
``operations``    command line, console, ``why``, changes of a live cluster, copies from Apache BookKeeper
``lab``           simulator, replay of recorded decisions, benches, ``bookspark run``
``testing``       faults, histories and file systems for tests
``local``         a cluster on one host, for tests and development
``spark``         the bookies' Spark application, ``format("bookspark")``, snapshots, audits
``logs``          logs with many writers, on ledgers
``servers``       a bookie's process, and Apache BookKeeper's protocol on its second port
``store``         wire, metadata, a bookie's disk, the client, autorecovery
``protocol``      every decision about ledgers and logs, as state machines without I/O
``support``       small helpers without knowledge of ledgers
``errors``        every error that Bookspark raises on purpose
================  ================================================================================================

Law: a name is imported at its first use. So a bookie's process does not load the client, and neither of them loads pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bookspark import errors
    from bookspark.protocol.ledger.ledger_metadata import (
        DigestType,
        LedgerMetadata,
        LedgerState,
        LedgerType,
        Replication,
    )
    from bookspark.store.client import BookKeeper, LedgerHandle, LedgerHandleAdv, ReadHandle
    from bookspark.store.wire.entry_batch import Entry

__version__ = "0.1.0"
"""The only place of the version: ``setup.cfg`` and ``bookspark --version`` read it here."""

_HOME = {
    "BookKeeper": "bookspark.store.client",
    "LedgerHandle": "bookspark.store.client",
    "LedgerHandleAdv": "bookspark.store.client",
    "ReadHandle": "bookspark.store.client",
    "DigestType": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerMetadata": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerState": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerType": "bookspark.protocol.ledger.ledger_metadata",
    "Replication": "bookspark.protocol.ledger.ledger_metadata",
    "Entry": "bookspark.store.wire.entry_batch",
}
"""Public name → the module that defines it."""

__all__ = [
    "BookKeeper",
    "DigestType",
    "Entry",
    "LedgerHandle",
    "LedgerHandleAdv",
    "LedgerMetadata",
    "LedgerState",
    "LedgerType",
    "ReadHandle",
    "Replication",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name in ("errors", "logs"):
        return import_module(f"bookspark.{name}")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'bookspark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "logs", *(name for name in globals() if name.startswith("__"))])

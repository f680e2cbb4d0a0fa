"""Bookspark: ledger storage for Spark, with the protocol of Apache BookKeeper.

A ledger is an append-only sequence of entries with one writer. Each entry is kept on several bookies, which are processes on the
hosts of Spark's executors. This module holds what a client needs:

===================  =============================================================================================================
``BookKeeper``       a client: creates, opens, lists and deletes ledgers
``LedgerHandle``     the only writer of a ledger; ``create_ledger`` returns it
``LedgerHandleAdv``  the same, with entry ids that the caller gives; ``create_ledger_adv`` returns it
``ReadHandle``       a reader of a ledger; ``open_ledger`` and ``open_ledger_no_recovery`` return it
``Entry``            one entry that was read: its id and payload, and what its writer said with it
``LedgerMetadata``   a ledger's record in the metadata store; four of its fields have the types that follow
``LedgerState``      open, in recovery or closed
``LedgerType``       when an append is acknowledged: after the sync, or before it
``DigestType``       how entries are protected against damage
``Replication``      what write quorum means: an aim, or a promise
``errors``           every error that Bookspark raises on purpose
===================  =============================================================================================================

Example::

    with bookspark.BookKeeper("zk1:2181") as bookkeeper:
        with bookkeeper.create_ledger(password=b"secret") as ledger:
            ledger.append(b"first")  # returns once an ack quorum of bookies has synced it
        entries = list(bookkeeper.open_ledger(ledger.ledger_id, password=b"secret").read())

The rooms of the package:

====================  ===========================================================================================================
``protocol``          every decision of the protocol, as state machines without I/O
``simulation``        runs these machines through every order of events, and through failures
``decisions``         the record of what these machines were given and what they answered
``wire``              the frames between clients and bookies: headers, entry batches, digests
``metadata``          ledgers, cookies and registrations in ZooKeeper, or in memory
``bookie``            a bookie's disk and its server
``client``            ``BookKeeper``, its handles, connections and placement
``bookkeeper``        Apache BookKeeper's wire protocol on a second port of a bookie
``autorecovery``      copies what was lost: the auditor, the replication workers, the healing of a bookie
``changes``           carries out changes of a cluster that lives: restarts, growing, shrinking, moves, new disks
``moving``            ledgers of a cluster of Apache BookKeeper's, copied into one of ours
``daemon``            a bookie as a process: directories, lease, start and stop
``spark``             the bookies' Spark application, ``format("bookspark")``, logs, snapshots, audits
``why``               what is wrong with a cluster, why, and what to type
``console``           the same as web pages that live
``local``             a cluster on one host, for tests and development
``testing``           faults, histories and file systems for tests
``replay``            such records, decided again and judged
``demo``              ``bookspark run``: real data through Spark into ledgers and back
``bench``             measurements, alone and beside other systems
``cli``               the command ``bookspark``
``jobs``, ``conf``    the jobs for spark-submit and the settings files; ``packaged_files`` finds them
``arguments``         judges what callers hand in: types, bounds and choices of arguments and options
``metrics``           every metric for Prometheus, and the counters behind them
``extras``            the extras of the package, and the error that names a missing one
``protobuf_messages`` messages of Protocol Buffers, made from tables
``plain_text``        short texts that commands, jobs and the demo share
``snapshot_commits``  which versions of Delta tables make one snapshot
``threads``           threads of the client's own, and waits that a signal handler may interrupt
``cache_folder``      where files lie that can be made again
``command_line``      exit statuses, and how commands and jobs end
``private_files``     files and directories that only their owner may read
``forks``             whether this process was forked, without a system call
====================  ===========================================================================================================

Law: a name is imported when it is first used. So a bookie's process does not load the client, and neither of them loads pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bookspark import errors
    from bookspark.client import BookKeeper, LedgerHandle, LedgerHandleAdv, ReadHandle
    from bookspark.protocol.ledger.ledger_metadata import (
        DigestType,
        LedgerMetadata,
        LedgerState,
        LedgerType,
        Replication,
    )
    from bookspark.wire.entry_batch import Entry

__version__ = "0.1.0"
"""The only place of the version: ``setup.cfg`` and ``bookspark --version`` read it here."""

_HOME = {
    "BookKeeper": "bookspark.client",
    "LedgerHandle": "bookspark.client",
    "LedgerHandleAdv": "bookspark.client",
    "ReadHandle": "bookspark.client",
    "DigestType": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerMetadata": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerState": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerType": "bookspark.protocol.ledger.ledger_metadata",
    "Replication": "bookspark.protocol.ledger.ledger_metadata",
    "Entry": "bookspark.wire.entry_batch",
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
    if name == "errors":
        return import_module("bookspark.errors")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'bookspark' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, *(name for name in globals() if name.startswith("__"))])

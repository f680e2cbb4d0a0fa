"""Bookspark: Spark-native ledger storage.

Names are imported when they are first used, so that a bookie process does not load the client, nor a client pyarrow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bookspark import errors
    from bookspark.client import BookKeeper, LedgerHandle, ReadHandle
    from bookspark.protocol.ledger.ledger_metadata import DigestType, LedgerMetadata, LedgerState, LedgerType
    from bookspark.wire.entry_batch import Entry

_HOME = {
    "BookKeeper": "bookspark.client",
    "LedgerHandle": "bookspark.client",
    "ReadHandle": "bookspark.client",
    "DigestType": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerMetadata": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerState": "bookspark.protocol.ledger.ledger_metadata",
    "LedgerType": "bookspark.protocol.ledger.ledger_metadata",
    "Entry": "bookspark.wire.entry_batch",
}

__all__ = [
    "BookKeeper",
    "DigestType",
    "Entry",
    "LedgerHandle",
    "LedgerMetadata",
    "LedgerState",
    "LedgerType",
    "ReadHandle",
    "errors",
]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return import_module("bookspark.errors")
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'bookspark' has no attribute {name!r}")

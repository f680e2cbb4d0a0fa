"""A record together with its version in the metadata store."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

Value = TypeVar("Value")


class Versioned(NamedTuple, Generic[Value]):
    """A record with the version that a compare-and-set on it must name."""

    value: Value
    version: int


VersionedLedger = Versioned[LedgerMetadata]
"""The metadata of a ledger with the version of its record."""

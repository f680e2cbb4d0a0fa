"""The refusals that every metadata store gives in the same words."""

from __future__ import annotations

from bookspark.errors import (
    ConfigurationError,
    InvalidCookieError,
    LedgerExistsError,
    MetadataVersionError,
    NoSuchLedgerError,
)

RECORD_BYTES_MAX = 1_000_000
"""Largest record. ZooKeeper drops the connection of a client that sends more than 1 MiB (jute.maxbuffer)."""


def sized(document: bytes, what: str) -> bytes:
    """``document`` unchanged. Raises ConfigurationError if it is too large for ZooKeeper, which would drop the connection."""
    if len(document) > RECORD_BYTES_MAX:
        raise ConfigurationError(
            f"{what} takes {len(document)} bytes as a record, and the metadata store keeps at most {RECORD_BYTES_MAX}; "
            "make it smaller"
        )
    return document


def no_such_ledger(ledger_id: int) -> NoSuchLedgerError:
    return NoSuchLedgerError(f"there is no ledger {ledger_id}; it was deleted or never created")


def ledger_exists(ledger_id: int) -> LedgerExistsError:
    return LedgerExistsError(f"ledger {ledger_id} exists already; take another id")


def no_cookie(bookie_id: str) -> InvalidCookieError:
    return InvalidCookieError(
        f"{bookie_id} has no cookie in the metadata store; "
        "`bookspark cookie create` with its directories puts back the one that lies in them"
    )


def version_changed(what: str, version: int | None) -> MetadataVersionError:
    """The error for a lost compare-and-set: against ``version``, or, None, against the record's absence."""
    if version is None:
        return MetadataVersionError(f"{what} is there already; read it, and change it from its version")
    return MetadataVersionError(f"{what} is no longer at version {version}: another client changed it; read it again")

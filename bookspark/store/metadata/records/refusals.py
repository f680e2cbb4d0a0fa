"""The refusals that every metadata store gives in the same words."""

from __future__ import annotations

import shlex
from dataclasses import replace

from bookspark.errors import (
    ConfigurationError,
    InvalidCookieError,
    LedgerExistsError,
    MetadataVersionError,
    NoSuchLedgerError,
)
from bookspark.protocol.bookie.cookie import Cookie

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


def check_recorded(cookie: Cookie, recorded: Cookie | None) -> None:
    """Raises InvalidCookieError if the metadata store no longer has the cookie of a running bookie: it was deleted, or another
    host has become the bookie. BookKeeper's tools know no nonce, so a record without one passes."""
    places = shlex.join(cookie.directories)
    if recorded is None:
        raise InvalidCookieError(
            f"the cookie of {cookie.bookie_id} was deleted from the metadata store, by `bookspark cookie delete` or `bookspark "
            "autorecovery decommission`, so it serves no longer; a new bookie may have its directories, once they are empty; if "
            f"it is to serve again: `bookspark cookie create` with {places}"
        )
    if replace(recorded, nonce=recorded.nonce or cookie.nonce) != cookie:
        raise InvalidCookieError(
            f"other directories have become {cookie.bookie_id} since, by `bookspark cookie fix` or `bookspark cookie update`, or "
            f"by a start with stamp_missing_cookies: its cookie in the metadata store has nonce {recorded.nonce} and directories "
            f"{', '.join(recorded.directories)}, and this process has nonce {cookie.nonce} and {', '.join(cookie.directories)}; "
            "start it on that host. If an older copy of ZooKeeper's data was put back, these may be the right ones: `bookspark "
            f"cookie update` with {places}"
        )


def version_changed(what: str, version: int | None) -> MetadataVersionError:
    """The error for a lost compare-and-set: against ``version``, or, None, against the record's absence."""
    if version is None:
        return MetadataVersionError(f"{what} is there already; read it, and change it from its version")
    return MetadataVersionError(f"{what} is no longer at version {version}: another client changed it; read it again")

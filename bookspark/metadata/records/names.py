"""Which names and ids a metadata store takes, whatever it is made of.

Law: what one store refuses, every store refuses, in the same words.
"""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

from bookspark.errors import ConfigurationError

LEDGER_ID_MAX = 9_999_999_999
"""The largest ledger id that the layout of ZooKeeper's paths has a place for: ten digits."""

READONLY = "readonly"
"""No bookie id: the node of this name holds the registrations of read-only bookies."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


def check_name(name: str, what: str) -> str:
    """``name`` if it can be a node's, else a ConfigurationError; ``what`` is e.g. "bookie id"."""
    if not _NAME.fullmatch(name) or name == READONLY:
        raise ConfigurationError(
            f"{what} {name!r} can't be used: take letters, digits and _ . : - with a letter or digit first, and not {READONLY!r}"
        )
    return name


def check_record(kind: str, name: str) -> None:
    """A record's kind is a name as above; its own name may be any text but the empty one."""
    check_name(kind, "record kind")
    if not name:
        raise ConfigurationError(f"a record of kind {kind!r} needs a name that is not empty")


def check_ledger_id(ledger_id: int) -> int:
    """``ledger_id`` if it has a place in the layout, else a ConfigurationError."""
    if not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise ConfigurationError(f"ledger id {ledger_id} can't be used: they go from 0 to {LEDGER_ID_MAX}")
    return ledger_id


def encode_name(name: str) -> str:
    """A record's name as a node's: percent-encoded, and never "." or ".."."""
    return quote(name, safe="").replace(".", "%2E") if name.strip(".") == "" else quote(name, safe="")


def decode_name(node: str) -> str:
    return unquote(node)

"""Valid names and ids, the same for every metadata store.

Law: every store refuses the same names and ids, in the same words.
"""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import quote, unquote

from msgspec import Meta

from bookspark.errors import InvalidArgumentError
from bookspark.protocol.ledger.ledger_metadata import LEDGER_ID_MAX
from bookspark.support.arguments import Rule

LedgerId = Annotated[int, Meta(ge=0, le=LEDGER_ID_MAX)]
ChangeOrder = Annotated[int, Meta(ge=0, lt=1 << 32)]
CopyCount = Annotated[int, Meta(ge=1, le=10_000)]
"""The size of an ensemble or quorum. More bookies would not fit into a ledger's record."""

READONLY = "readonly"
"""Not a bookie id: the node of this name holds the registrations of read-only bookies."""

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]*")


def is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and name != READONLY


def check_name(name: str, what: str) -> str:
    """``name`` if it is valid for a node, else an InvalidArgumentError; ``what`` is e.g. "bookie id"."""
    if not isinstance(name, str) or not is_name(name):
        raise InvalidArgumentError(
            f"{what} {name!r} can't be used: take letters, digits and _ . : - with a letter or digit first, and not {READONLY!r}",
            what.replace(" ", "_"),
        )
    return name


BookieId = Annotated[str, Rule("a bookie id", lambda name: check_name(name, "bookie id"))]


def check_record(kind: str, name: str) -> None:
    """Check a record's kind by ``check_name``; its own name may be any non-empty text. Raises InvalidArgumentError."""
    check_name(kind, "record kind")
    if not isinstance(name, str) or not name:
        raise InvalidArgumentError(
            f"a record of kind {kind!r} needs a name that is not empty, a text, and not {name!r}", "name"
        )


def check_ledger_id(ledger_id: int) -> int:
    """``ledger_id`` if the layout has a place for it, else an InvalidArgumentError."""
    if type(ledger_id) is not int or not 0 <= ledger_id <= LEDGER_ID_MAX:
        raise InvalidArgumentError(
            f"ledger id {ledger_id!r} can't be used: they go from 0 to {LEDGER_ID_MAX}", "ledger_id"
        )
    return ledger_id


def encode_name(name: str) -> str:
    """A record's name as a node's: percent-encoded, and never "." or ".."."""
    return quote(name, safe="").replace(".", "%2E") if name.strip(".") == "" else quote(name, safe="")


def decode_name(node: str) -> str:
    return unquote(node)

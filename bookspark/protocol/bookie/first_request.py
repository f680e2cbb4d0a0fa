"""The first request for a ledger on a bookie without an entry: a fence or an explicit LAC (last add confirmed).

Law: the first request for a ledger fixes the ledger's master key on the bookie, until another key meets it. A fence or an
explicit LAC is granted only if the ledger's metadata, read after the request came, exists, names this bookie, and has the same
master key. So a client that guesses an id can't fence a ledger that this bookie has not seen, nor a future ledger.

Recovery still works: it marks the ledger IN_RECOVERY before its first fence, and fences the bookies in this metadata. While the
metadata is unreadable, this bookie counts towards no coverage; the recoverer needs the metadata as well.

An add does not wait for the metadata store. So any client that may send adds can come before the owner of a future id; the
owner's first request then lets the metadata decide (``key_meeting``).

BookKeeper takes the master key of the first request as it comes, fences included (``LedgerDescriptor``, ``HandleFactoryImpl``).
"""

from __future__ import annotations

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive, Unknown, UnknownReason

METADATA_UNREADABLE = Unknown(
    UnknownReason.LIMBO, "the ledger's metadata could not be read, and nothing else is known of it"
)
_NO_RECORD = Unknown(UnknownReason.LIMBO, "there is no such ledger, and this bookie holds nothing of it")
_NOT_NAMED = Unknown(UnknownReason.LIMBO, "the ledger's metadata does not name this bookie, and it holds nothing of it")


def answer_first_request(bookie: str, metadata: LedgerMetadata | None, master_key: bytes) -> Positive | Unknown:
    """May a request without an entry make the ledger known here? ``metadata``: read after the request came; None for a ledger
    that does not exist."""
    if metadata is None:
        return _NO_RECORD
    if not any(bookie in fragment.ensemble for fragment in metadata.fragments):
        return _NOT_NAMED
    return Positive() if metadata.master_key == master_key else UNAUTHORIZED

"""Helpers shared by the tests of the protocol's machines."""

from __future__ import annotations

from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Negative, Positive, Unknown, UnknownReason

OK = Positive()
NO = Negative()
LOST = Unknown(UnknownReason.UNREACHABLE)
FENCED = Unknown(UnknownReason.FENCED)


def metadata(e=3, wq=3, aq=2, state=LedgerState.OPEN, fragments=None, **fields):
    """Ledger 7 on bookies b1, b2, …"""
    fragments = fragments or (Fragment(0, tuple(f"b{i + 1}" for i in range(e))),)
    return LedgerMetadata(7, e, wq, aq, fragments, state, **fields)

"""An accepted loss: an operator declared lost what can't be known of a ledger. The ledger's metadata keeps that.

Law: it is written together with the close that rests on it, and stays for good. A ledger that could be closed without it has
none. It is part of the custom metadata, a field of BookKeeper's, so that every version of Bookspark keeps it::

    "bookspark.accepted_loss" → {"by": "…", "at_ms": 1700000000000, "not_known": ["entry 7: b1: in limbo …", …]}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

LABEL = "bookspark.accepted_loss"


@dataclass(frozen=True, slots=True)
class AcceptedLoss:
    """``by``: who accepted it. ``at_ms``: when, in milliseconds since 1970. ``not_known``: what was not known, in words; empty if
    everything was."""

    by: str
    at_ms: int
    not_known: tuple[str, ...] = ()

    def noted_in(self, metadata: LedgerMetadata) -> LedgerMetadata:
        """``metadata`` with this in it."""
        document = json.dumps(asdict(self), ensure_ascii=False).encode()
        return replace(metadata, custom_metadata={**metadata.custom_metadata, LABEL: document})


def accepted_loss_of(metadata: LedgerMetadata) -> AcceptedLoss | None:
    """What was accepted when the ledger was closed; None if nothing had to be."""
    document = metadata.custom_metadata.get(LABEL)
    if document is None:
        return None
    found = json.loads(document)
    return AcceptedLoss(found["by"], found["at_ms"], tuple(found["not_known"]))

"""Two master keys for one ledger at one bookie: the ledger's metadata decides.

Law: the first request for a ledger fixes its master key on the bookie, and an add needs no metadata. So anybody who may send adds
can come before the owner. A request with another key than the kept one waits until the metadata is read after its arrival. ::

    kept key ──another key──► first look ──not this key──► refused (UNAUTHORIZED), or unknown (LIMBO): nothing changes
                                 │ this key
                                 ▼
                              stopped: requests of all keys wait
                                 │ second look
                                 ├── this key ──► ``KeyDecided``, in each log before entries of this key; the other entries go
                                 └── any other answer ──► the kept key goes on

Requests with the kept key never wait for the first look: a stranger's key delays nobody, also while ZooKeeper is away. The second
look begins after the kept key's last admitted entry. The owner of an admitted entry made the ledger's record before it, so the
second look sees that record, even of a ledger that was deleted and made anew with the same id: an acknowledged entry of the
metadata's key is never dropped.

A missing record decides nothing: the id is not given out yet, or the ledger was deleted. The answer is Unknown then, as for
unreadable metadata. Fences, LACs (last add confirmed) and lost entries noted under the other key go with its entries.

BookKeeper keeps the key of the first request for ever (``LedgerDescriptor``).
"""

from __future__ import annotations

from dataclasses import dataclass

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import UNAUTHORIZED, Positive, Unknown, UnknownReason

KEYS_UNDECIDED = Unknown(UnknownReason.LIMBO, "two master keys met, and the ledger's metadata could not be read")
_NO_RECORD = Unknown(UnknownReason.LIMBO, "two master keys met, and there is no such ledger")


def answer_meeting(metadata: LedgerMetadata | None, master_key: bytes) -> Positive | Unknown:
    """Is the ledger's key ``master_key``, which differs from the kept one? ``metadata``: None if there is no such ledger."""
    if metadata is None:
        return _NO_RECORD
    return Positive() if metadata.master_key == master_key else UNAUTHORIZED


@dataclass(slots=True)
class KeyMeeting:
    """One other key at one ledger, from its first request to the decision."""

    stopped: bool = False
    """The kept key's requests wait, and the metadata is read once more."""

    def looked(self, answer: Positive | Unknown) -> Positive | Unknown | None:
        """``answer``: of ``answer_meeting``, by metadata read since the last step. Returns the decision, Positive for the
        other key; None: stop the ledger, then look again."""
        if isinstance(answer, Positive) and not self.stopped:
            self.stopped = True
            return None
        return answer

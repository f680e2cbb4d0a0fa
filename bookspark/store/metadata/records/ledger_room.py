"""The room of a ledger's record, which ZooKeeper limits.

Law: each state of a ledger keeps room for what may follow, so a ledger that exists can be closed, recovered and repaired::

    creation        NEW_BYTES_MAX, and CHANGES_MIN ensemble changes fit below OPEN_BYTES_MAX
    ensemble change OPEN_BYTES_MAX
    others          RECORD_BYTES_MAX: the close, the ensemble changes and accepted losses of a recovery, the splits of a repair

A bookie id counts as ID_BYTES at least, and the end as its longest form, so neither a repair nor a close makes a record larger. A
writer without room keeps its ensemble, or closes the ledger if it can't (``RecordFull``).
"""

from __future__ import annotations

from bookspark.errors import InvalidArgumentError, RecordFullError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.store.metadata.records.refusals import RECORD_BYTES_MAX

NEW_BYTES_MAX = 500_000
OPEN_BYTES_MAX = 600_000
CHANGES_MIN = 8
ID_BYTES = 64
"""Bytes that a bookie's id counts for at least: a repair may replace it by a longer one."""
_END_BYTES = 60
"""State, last entry id and length in their longest forms, above those of an open ledger."""
_FRAGMENT_BYTES, _MEMBER_BYTES = 60, ID_BYTES + 3
"""Bytes of a fragment as JSON, with the longest entry id, and of each member with quotation marks and comma."""


def new_ledger(document: bytes, metadata: LedgerMetadata) -> bytes:
    """``document`` of a new ledger, unchanged. Raises InvalidArgumentError if the ledger would lack room later."""
    change = _FRAGMENT_BYTES + metadata.ensemble_size * _MEMBER_BYTES
    excess = _counted(document, metadata) - min(NEW_BYTES_MAX, OPEN_BYTES_MAX - CHANGES_MIN * change)
    if excess <= 0:
        return document
    values = metadata.custom_metadata.values()
    total = sum(map(len, values))
    # Base64: three bytes are four characters.
    allowed = total - (excess * 3 // 4 + 3 * len(values) + 3)
    if allowed < 0:
        raise InvalidArgumentError(
            f"a ledger of ensemble_size {metadata.ensemble_size} can't be created: its record is {excess:,} bytes too large, as "
            f"it has to keep room for ensemble changes and the close; choose a smaller ensemble_size, or fewer and shorter names "
            "in custom_metadata",
            "custom_metadata" if total else "ensemble_size",
        )
    raise InvalidArgumentError(
        f"custom_metadata has {total:,} bytes, and at most {allowed:,} bytes are allowed under these names: the ledger's record "
        "has to keep room for ensemble changes and the close; keep the rest elsewhere, for example in an entry",
        "custom_metadata",
    )


def changed_ledger(document: bytes, metadata: LedgerMetadata) -> bytes:
    """``document`` of an existing ledger, unchanged. Raises RecordFullError if it takes the room kept for later changes."""
    count, most = _counted(document, metadata), OPEN_BYTES_MAX
    if metadata.state is not LedgerState.OPEN:
        count, most = len(document), RECORD_BYTES_MAX
    if count > most:
        lost = 0 if metadata.accepted_loss is None else len(metadata.accepted_loss.losses)
        more, remedy = "another fragment", "copy its entries to another ledger, and delete it"
        if metadata.state is LedgerState.OPEN:
            remedy = "close the ledger, and go on in another one"
        elif lost:
            more = f"{lost:,} separate accepted losses"
            remedy = "recover the ledger while more of its bookies are up, so that fewer entries are lost"
        raise RecordFullError(
            f"the record of ledger {metadata.ledger_id} has no room for {more}: with its {len(metadata.fragments)} fragments "
            f"and {sum(map(len, metadata.custom_metadata.values())):,} bytes of custom metadata it would have {count:,} bytes, "
            f"and at most {most:,} are allowed in state {metadata.state.value}; {remedy}"
        )
    return document


def _counted(document: bytes, metadata: LedgerMetadata) -> int:
    """The bytes of the record, after the longest close and repair without new fragments."""
    short = sum(max(0, ID_BYTES - len(bookie)) for fragment in metadata.fragments for bookie in fragment.ensemble)
    return len(document) + short + _END_BYTES

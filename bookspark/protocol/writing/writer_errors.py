"""Errors of a writer that ends without a close.

Law: each message names the ledger, its progress, and the user's next step.
"""

from __future__ import annotations

from collections.abc import Set

from bookspark.errors import (
    AddTimeoutError,
    BookKeeperError,
    LedgerFencedError,
    NotEnoughBookiesError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import UnknownReason
from bookspark.protocol.writing.durability import Persistent, Volatile
from bookspark.protocol.writing.writer_cursors import Cursors


def refused_at(
    bookie: str, reason: UnknownReason | None, ledger_id: int, last_add_confirmed: int
) -> BookKeeperError | None:
    """The error that ends the writer when a bookie refuses it for ``reason``, or None."""
    if reason is UnknownReason.FENCED:
        return LedgerFencedError(
            f"ledger {ledger_id} was fenced at {bookie} by another client; whether entries after "
            f"{last_add_confirmed} are part of it is unknown until it is closed"
        )
    if reason is UnknownReason.UNAUTHORIZED:
        return UnauthorizedAccessError(f"{bookie} refused the password of ledger {ledger_id}")
    return None


def taken_over(found: LedgerMetadata, last_add_confirmed: int) -> LedgerFencedError:
    """Another client changed the record."""
    if found.closed:
        state = f"closed at entry {found.last_entry_id}"
    else:
        state = f"{found.state.value} with ensemble {', '.join(found.last_fragment.ensemble)}"
    return LedgerFencedError(
        f"ledger {found.ledger_id} is {state} by another client, this writer's last acknowledged entry is "
        f"{last_add_confirmed}; open it to see what it holds"
    )


def left_open(ledger_id: int, last_add_acknowledged: int, error: BookKeeperError) -> NotEnoughBookiesError:
    """No bookies to go on with. A close at the LAC would cut off acknowledged entries that are not synced; a recovery reads them
    from bookies that come back."""
    return NotEnoughBookiesError(
        f"{error}. Ledger {ledger_id} was left open: entries up to {last_add_acknowledged} were acknowledged and are not all "
        "synced; open it to recover them when its bookies are back"
    )


def late(
    metadata: LedgerMetadata,
    cursors: Cursors,
    copies: int,
    durability: Persistent | Volatile,
    failed: Set[str],
) -> AddTimeoutError:
    """The error after the deadline: for unacknowledged appends, for the ``copies`` of each entry that a close waits for, or for
    the close itself."""
    ledger_id, pending = metadata.ledger_id, list(cursors.pending.values())
    if not pending:
        return AddTimeoutError(f"ledger {ledger_id}: the close was not answered in time; open it to recover it")
    last = pending[-1].last
    add = next((add for add in pending if add.last > cursors.last_add_acknowledged), None)
    if add is not None:
        waiting = ", ".join(bookie for bookie in add.bookies if bookie not in add.acks)
        return AddTimeoutError(
            f"ledger {ledger_id}: entries {add.first}..{last} were not acknowledged in time by "
            f"{metadata.ack_quorum} bookies (waiting for {waiting}); open the ledger to recover it"
        )
    held = durability.holders(pending[0], frozenset())
    waiting = ", ".join(bookie for bookie in pending[0].bookies if bookie not in held)
    why = f", {', '.join(sorted(failed))} failed" if failed else ""
    return AddTimeoutError(
        f"ledger {ledger_id}: all appends were acknowledged, but entries {pending[0].first}..{last} are not yet synced on "
        f"{copies} bookies (waiting for {waiting}{why}), so it was not closed; open it to recover it"
    )


def missing_for_long(ledger_id: int, missing: int, seconds: float) -> AddTimeoutError:
    """Entries have waited for a lower id for ``seconds``."""
    return AddTimeoutError(
        f"ledger {ledger_id}: entry {missing} was not appended in {seconds:g} s, and later ones wait for it; entries up to "
        f"{missing - 1} may be part of the ledger: open it to recover it"
    )

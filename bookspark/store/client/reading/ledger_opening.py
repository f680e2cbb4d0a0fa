"""Opening a ledger for reading: with recovery, which ends its writer, or without.

Law: a wrong password has no side effect: it is compared with the metadata before anything is sent, and by each bookie after.
Opening with recovery returns a closed ledger or raises. Opening without recovery never fences.

Sources: bookkeeper-overview, "Opening a ledger" and "Ledger recovery"; ``protocol.reading.recovery`` decides.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection

from bookspark.errors import (
    BookKeeperError,
    InvalidArgumentError,
    LedgerRecoveryError,
    NoSuchLedgerError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.store.client.reading.read_handle import ReadHandle
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.runtime.machine_driver import MachineDriver
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.records.versioned import Versioned
from bookspark.store.wire.digests import master_key
from bookspark.support.arguments import check_names

log = logging.getLogger(__name__)


def open_with_recovery(
    context: ClientContext, ledger_id: int, password: bytes, accept_loss_as: str | None, lost_bookies: Collection[str]
) -> ReadHandle:
    """A handle of the closed ledger; one that was not closed is recovered first. ``BookKeeper.open_ledger`` lists the errors."""
    if lost_bookies and accept_loss_as is None:
        raise InvalidArgumentError(
            f"lost_bookies {lost_bookies!r} can't be used alone; give accept_loss_as too, the name of who declares them lost",
            "accept_loss_as",
        )
    found = _read_metadata(context, ledger_id, password)
    check_names(lost_bookies, found.value.bookies(), f"bookie of ledger {ledger_id}")
    if not found.value.closed:
        named = tuple(sorted(set(lost_bookies)))
        accepted = None if accept_loss_as is None else AcceptedLoss(accept_loss_as, time.time_ns() // 1_000_000, named)
        found = _recover(context, found, password, accepted)
    return ReadHandle(context, found.value, found.version, password)


def open_without_recovery(
    context: ClientContext, ledger_id: int, password: bytes, confirmed: int | None = None
) -> ReadHandle:
    """A handle that knows the LAC (last add confirmed) of now, or that entry ``confirmed`` is. ``open_ledger_no_recovery`` of
    ``BookKeeper`` lists the errors."""
    handle = ReadHandle(context, *_read_metadata(context, ledger_id, password), password)
    if confirmed is None:
        handle.read_last_add_confirmed()
    else:
        handle.confirm(confirmed)
    return handle


def _read_metadata(context: ClientContext, ledger_id: int, password: bytes) -> Versioned[LedgerMetadata]:
    found = context.store.read_ledger(ledger_id)
    if found.value.master_key != master_key(password, found.value.digest_type):
        raise UnauthorizedAccessError(
            f"wrong password for ledger {ledger_id}; use the one it was created with (nothing was fenced)"
        )
    return found


def _recover(
    context: ClientContext, found: Versioned[LedgerMetadata], password: bytes, accepted_loss: AcceptedLoss | None
) -> Versioned[LedgerMetadata]:
    """Run ``LedgerRecovery`` to its end, in this thread."""
    ledger_id = found.value.ledger_id
    machine = made(LedgerRecovery, replaces_bookies=True, accepted_loss=accepted_loss)
    driver = MachineDriver(context, found.value, password, context.config.recovery_timeout_seconds)
    try:
        closed = driver.run(machine.step, machine.step(act.MetadataRead(*found)))
    except (NoSuchLedgerError, LedgerRecoveryError, UnauthorizedAccessError):
        raise
    except BookKeeperError as error:
        raise LedgerRecoveryError(f"ledger {ledger_id} was not recovered: {error}") from error
    loss = closed.metadata.accepted_loss
    if loss is not None:
        log.warning(
            "ledger %d was closed at entry %d with a loss that %s accepted; not known: %s",
            ledger_id,
            closed.metadata.last_entry_id,
            loss.by,
            "; ".join(loss.not_known),
        )
    return Versioned(closed.metadata, closed.version)

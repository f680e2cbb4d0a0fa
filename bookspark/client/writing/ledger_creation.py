"""Creating a ledger: its choices are checked, its first ensemble is chosen, its record is written.

Law: choices that make no sense create nothing. The ledger exists once its record does; no bookie hears of it before the first
entry.

Source: BookKeeper's ``LedgerCreateOp``.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from bookspark.client.runtime.client_context import ClientContext
from bookspark.client.writing.ledger_handle import LedgerHandle
from bookspark.protocol.ledger.ledger_choices import check_choices, choice_of, risk_of
from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerType, Replication
from bookspark.wire.digests import master_key

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class NewLedger:
    """The choices of ``BookKeeper.create_ledger``, which documents each."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    password: bytes = field(repr=False)
    custom_metadata: Mapping[str, bytes]
    ledger_type: str | LedgerType
    replication: str | Replication


def create_ledger(context: ClientContext, new: NewLedger) -> LedgerHandle:
    """Create the ledger and return its one writer. ``BookKeeper.create_ledger`` lists the errors."""
    ledger_type = choice_of(LedgerType, new.ledger_type, "ledger_type")
    replication = choice_of(Replication, new.replication, "replication")
    check_choices(new.ensemble_size, new.write_quorum, new.ack_quorum, ledger_type, replication)
    store = context.store
    # The new id is asked for on another thread, while this one looks the bookies up.
    ledger_id = context.runtime.threads.submit(store.new_ledger_id)
    topology = context.topology()
    ensemble = context.placement.choose_ensemble(
        topology,
        new.ensemble_size,
        new.write_quorum,
        random.Random(),
        new.write_quorum if context.config.opportunistic_striping else new.ensemble_size,
    )
    without_journal = sum(not topology.bookies[bookie].journal_write_data for bookie in ensemble)
    if risk := risk_of(new.ack_quorum, ledger_type, without_journal):
        log.warning("a ledger is created with %s", risk)
    metadata = LedgerMetadata(
        ledger_id=ledger_id.result(),
        ensemble_size=len(ensemble),
        write_quorum=new.write_quorum,
        ack_quorum=new.ack_quorum,
        fragments=(Fragment(0, ensemble),),
        digest_type=new.digest_type,
        master_key=master_key(new.password),
        ledger_type=ledger_type,
        replication=replication,
        ctime_ms=time.time_ns() // 1_000_000,
        c_token=random.getrandbits(63),
        custom_metadata=dict(new.custom_metadata),
    )
    return LedgerHandle(context, metadata, store.create_ledger(metadata), new.password)

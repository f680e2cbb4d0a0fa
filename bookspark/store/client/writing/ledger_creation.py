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
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from bookspark.errors import LedgerExistsError, MetadataStoreError
from bookspark.protocol.ledger.ledger_choices import check_choices, check_digest, risk_of
from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata, LedgerType, Replication
from bookspark.store.client.runtime.client_context import ClientContext
from bookspark.store.client.writing.ledger_handle import LedgerHandle
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.digests import master_key

log = logging.getLogger(__name__)

Handle = TypeVar("Handle", bound=LedgerHandle)
_IDS_TRIED = 1000
"""How many new ids are tried that users gave to ledgers of theirs."""


@dataclass(frozen=True, kw_only=True)
class NewLedger:
    """The choices of ``BookKeeper.create_ledger``, which documents each."""

    ensemble_size: int
    write_quorum: int
    ack_quorum: int
    digest_type: DigestType
    password: bytes = field(repr=False)
    custom_metadata: Mapping[str, bytes]
    ledger_type: LedgerType
    replication: Replication
    ledger_id: int | None = None
    """None: a new one."""


def _noted(store: MetadataStore, given: int) -> int:
    """A user's id, once the store counts it: bookies have to know up to which id there were ledgers, also deleted ones."""
    store.note_given_id(given)
    return given


def _told(ledger_id: Future[int], seconds: float) -> int:
    """The new id. The store's own deadline begins only when a thread comes to ask it."""
    try:
        return ledger_id.result(seconds)
    except TimeoutError:
        ledger_id.cancel()
        raise MetadataStoreError(f"getting a ledger id: no answer from the metadata store in {seconds:g} s") from None


def create_ledger(context: ClientContext, new: NewLedger, kind: type[Handle]) -> Handle:
    """Create the ledger and return its one writer, a handle of this ``kind``. ``BookKeeper.create_ledger`` lists the errors."""
    check_choices(new.ensemble_size, new.write_quorum, new.ack_quorum, new.ledger_type, new.replication)
    check_digest(new.digest_type, new.ledger_type, new.replication)
    store = context.store
    given = new.ledger_id
    # A new id is asked for on another thread, while this one looks the bookies up.
    ledger_id = context.runtime.threads.submit(store.new_ledger_id if given is None else partial(_noted, store, given))
    topology = context.topology()
    ensemble = context.placement.choose_ensemble(
        topology,
        new.ensemble_size,
        new.write_quorum,
        random.Random(),
        new.write_quorum if context.config.opportunistic_striping else new.ensemble_size,
    )
    without_journal = sum(not topology.bookies[bookie].journal_write_data for bookie in ensemble)
    if risk := risk_of(new.ack_quorum, new.ledger_type, without_journal):
        log.warning("a ledger is created with %s", risk)
    metadata = LedgerMetadata(
        ledger_id=_told(ledger_id, context.config.metadata_timeout_seconds),
        ensemble_size=len(ensemble),
        write_quorum=new.write_quorum,
        ack_quorum=new.ack_quorum,
        fragments=(Fragment(0, ensemble),),
        digest_type=new.digest_type,
        master_key=master_key(new.password, new.digest_type),
        password=new.password if new.digest_type.bookkeepers else b"",
        ledger_type=new.ledger_type,
        replication=new.replication,
        ctime_ms=time.time_ns() // 1_000_000,
        c_token=random.getrandbits(63),
        custom_metadata=new.custom_metadata,
    )
    metadata, version = _create(store, metadata, again=new.ledger_id is None)
    return kind(context, metadata, version, new.password)


def _create(store: MetadataStore, metadata: LedgerMetadata, *, again: bool) -> tuple[LedgerMetadata, int]:
    """Write the record; returns it with its version. ``again``: a user may have given the id to a ledger of theirs, so another
    one is tried. Raises LedgerExistsError."""
    for _ in range(_IDS_TRIED if again else 1):
        try:
            return metadata, store.create_ledger(metadata)
        except LedgerExistsError as error:
            last = error
            if again:
                metadata = replace(metadata, ledger_id=store.new_ledger_id())
    raise last

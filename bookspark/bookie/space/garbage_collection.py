"""Garbage collection: finding the ledgers that were deleted, and forgetting them.

Law: as in ``protocol.bookie.garbage_collection``, which decides what may be forgotten. Here the metadata is asked, in a thread,
and its answers are sorted into what that module knows: a listing that came to its end or did not, a record that is gone or that
could not be read. Before a ledger is forgotten, a durable note says that it may have been fenced.

The bytes of a forgotten ledger come back later, with a pass of ``reclaiming``.

Source: BookKeeper's ``ScanAndCompareGarbageCollector``.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence
from functools import partial

from bookspark.bookie.commit.completions import Done
from bookspark.bookie.holdings.checkpointing import Checkpoints
from bookspark.bookie.holdings.holdings import Holdings
from bookspark.bookie.ledgers.control_records import ControlRecords
from bookspark.bookie.steps import WAIT, Steps
from bookspark.errors import BookKeeperError, NoSuchLedgerError
from bookspark.metadata.store import MetadataStore
from bookspark.protocol.bookie.garbage_collection import (
    Complete,
    Incomplete,
    Listing,
    collectable,
    note_collection,
    suspects,
)
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, Unknown, UnknownReason
from bookspark.wire.header import Status

_IDS_AT_ONCE = 1 << 16
"""A single call that makes a set of a million keeps the interpreter from the loop, in whatever thread it is made."""
_LEDGERS_A_STEP = 256
_FORGOTTEN_PART = 0.1
"""A new control log is written when the ledgers forgotten at once are more than this part of those that are left."""

log = logging.getLogger(__name__)


class GarbageCollection:
    """The garbage collection of one bookie. Owned by the loop, except the functions that its steps yield."""

    def __init__(self, holdings: Holdings, records: ControlRecords, checkpoints: Checkpoints) -> None:
        self._holdings = holdings
        self._records = records
        self._checkpoints = checkpoints

    def collect(self, store: MetadataStore) -> Steps[int]:
        """Forget every ledger that was deleted; returns how many. Their bytes come back when the logs are looked at next."""
        held = yield from self.held()
        listing: Listing = yield partial(list_ledgers, store)
        if isinstance(listing, Incomplete):
            log.warning("no ledger is collected, because the ledgers could not be listed: %s", listing.why)
        suspected: Sequence[int] = yield partial(suspects, held, listing)
        if not suspected:
            return 0
        records: dict[int, Response] = yield partial(read_records, store, suspected)
        gone: Sequence[int] = yield partial(collectable, suspected, records)
        if not gone:
            return 0
        noted: list[int] = []
        self.note(gone, noted.append)
        while not noted:
            yield WAIT
        if noted[0] != Status.OK:
            log.warning("no ledger is collected, because that could not be noted in a control log")
            return 0
        yield from self.forget(gone)
        log.info("%d deleted ledgers are collected", len(gone))
        return len(gone)

    def held(self) -> Steps[set[int]]:
        """Every ledger of which there were entries or control state at the first step."""
        held: set[int] = set()
        for ids in (list(self._holdings.ledgers), self._holdings.index.ledger_ids()):
            for start in range(0, len(ids), _IDS_AT_ONCE):
                held.update(ids[start : start + _IDS_AT_ONCE])
                yield None
        return held

    def note(self, ledger_ids: Collection[int], done: Done) -> None:
        """Before ``forget``: note that these ledgers may have been fenced. ``done``: OK once that is durable, or IO_ERROR."""
        control = self._holdings.control
        note = note_collection(control.collected, ledger_ids)
        if note == control.collected:
            done(Status.OK)
            return

        def noted(status: int) -> None:
            if status == Status.OK:
                control.collected = max(control.collected, note)
            done(status)

        self._records.write([note], noted)

    def forget(self, ledger_ids: Collection[int]) -> Steps[None]:
        """Forget deleted ledgers, with everything that is known of them."""
        ids = list(ledger_ids)
        for start in range(0, len(ids), _LEDGERS_A_STEP):
            part = ids[start : start + _LEDGERS_A_STEP]
            self._records.forget(part)
            for ledger_id in part:
                self._holdings.forget(ledger_id)
            self._checkpoints.outdated()
            yield None
        if len(ids) >= _FORGOTTEN_PART * len(self._holdings.ledgers):
            yield from self._records.rewrite()


def list_ledgers(store: MetadataStore) -> Listing:
    """All ledgers that the metadata knows, or why that can't be told."""
    try:
        ids = store.list_ledgers()
    except BookKeeperError as error:
        return Incomplete(str(error))
    listed: set[int] = set()
    for start in range(0, len(ids), _IDS_AT_ONCE):
        listed.update(ids[start : start + _IDS_AT_ONCE])
    return Complete(listed)


def read_records(store: MetadataStore, ledger_ids: Iterable[int]) -> dict[int, Response]:
    """The answer to the read of each ledger's record. The first read that fails is the last one."""
    answers: dict[int, Response] = {}
    for ledger_id in ledger_ids:
        try:
            store.read_ledger(ledger_id)
            answers[ledger_id] = Positive()
        except NoSuchLedgerError:
            answers[ledger_id] = Negative(NegativeReason.NO_SUCH_LEDGER)
        except BookKeeperError as error:
            answers[ledger_id] = Unknown(UnknownReason.UNREACHABLE, str(error))
            return answers
    return answers

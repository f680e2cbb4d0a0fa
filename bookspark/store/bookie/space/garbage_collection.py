"""Garbage collection: detection of deleted ledgers and of copies that the metadata does not name, and forgetting them.

Law: ``protocol.bookie.garbage_collection`` and ``protocol.bookie.unnamed_copies`` decide, by the metadata that a thread reads
here: a complete or incomplete listing, a missing or unreadable record. Before a ledger is forgotten, a durable note says that it
may have been fenced. A ledger with a request granted since the read of its record is kept for a later collection.

The bytes of forgotten entries return with a later pass of ``reclaiming``.

Source: BookKeeper's ``ScanAndCompareGarbageCollector``.
"""

from __future__ import annotations

import logging
import time
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import islice
from typing import TypeVar

from bookspark.errors import BookKeeperError, NoSuchLedgerError, UnreadableRecordError
from bookspark.protocol.bookie.garbage_collection import (
    Complete,
    Incomplete,
    Listing,
    Suspected,
    collectable,
    note_collection,
    sort_suspects,
    suspects,
)
from bookspark.protocol.bookie.lost_records import LostRecords
from bookspark.protocol.bookie.unnamed_copies import (
    bookies_to_ask,
    collectable_copies,
    may_be_spare,
    names,
    spare_copies,
)
from bookspark.protocol.ledger.entry_ranges import NO_RANGES, EntryRanges, covers, with_ranges
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, Unknown, UnknownReason
from bookspark.store.bookie.commit.completions import Done
from bookspark.store.bookie.disk.packed_dict import ascending
from bookspark.store.bookie.holdings.checkpointing import Checkpoints
from bookspark.store.bookie.holdings.holdings import Holdings
from bookspark.store.bookie.ledgers.control_records import ControlRecords
from bookspark.store.bookie.steps import Steps, awaited
from bookspark.store.metadata.lost_records import read_lost_records
from bookspark.store.metadata.records.versioned import VersionedLedger
from bookspark.store.metadata.store import MetadataStore
from bookspark.store.wire.header import Status
from bookspark.support.plain_text import counted

_IDS_A_STEP = 1 << 14
_LEDGERS_A_STEP = 256
_ROWS_A_STEP = 1 << 11
_FAILING_SECONDS_MAX = 30.0
_KEPT_TOLD = 3
"""Most kept ledgers named, with their reason, in the log message."""
_FORGOTTEN_PART = 0.1
"""A collection above this fraction of the remaining ledgers writes a new control log."""

log = logging.getLogger(__name__)
Value = TypeVar("Value")

AskOthers = Callable[[Iterable[tuple[str, int]]], Mapping[tuple[str, int], Sequence[tuple[int, int]]]]
"""Held ranges of each of these bookies and ledgers; without those whose bookie does not answer."""


class GarbageCollection:
    """The garbage collection of one bookie. Owned by the loop, except the functions that its steps yield."""

    def __init__(self, holdings: Holdings, records: ControlRecords, checkpoints: Checkpoints) -> None:
        self._holdings = holdings
        self._records = records
        self._checkpoints = checkpoints
        self.kept = ""
        """Ledgers that the last collection could not judge, with reasons; "": none."""
        self.collected = 0
        """Deleted ledgers forgotten since the start."""
        self.copies_collected = 0
        """Ledgers of which copies were forgotten that the metadata did not name, since the start."""

    def collect(self, store: MetadataStore) -> Steps[int]:
        """Forget every deleted ledger; returns their number. Their bytes return with the next pass over the logs. ``kept`` names
        ledgers neither known to exist nor known to be deleted."""
        self.kept = ""
        given_out = yield partial(_or_incomplete, store.highest_ledger_id)
        held = yield from self.held()
        listing: Listing = given_out if isinstance(given_out, Incomplete) else (yield partial(list_ledgers, store))
        if isinstance(listing, Incomplete):
            log.warning("no ledger is collected, because the ledgers could not be listed: %s", listing.why)
            return 0
        lost: tuple[LostRecords, ...] | Incomplete = yield partial(_or_incomplete, partial(read_lost_records, store))
        if isinstance(lost, Incomplete):
            log.warning("no ledger is collected, because it is not known whose records are lost: %s", lost.why)
            return 0
        suspected: Suspected = yield partial(_suspected, held, listing, given_out, lost)
        suspects = self._holdings.control.suspects
        suspects.clear()
        suspects.update(suspected.asked)
        records: dict[int, Response] = yield partial(read_records, store, suspected.asked)
        gone: Sequence[int] = yield partial(collectable, suspected.asked, records)
        self._tell_kept(suspected, records)
        if suspected.no_ledgers:
            log.warning(
                "%d ids that no ledger can have are forgotten: %s …", len(suspected.no_ledgers), suspected.no_ledgers[0]
            )
            yield from self.forget(suspected.no_ledgers)
        if not gone:
            return 0
        if (yield from awaited(partial(self.note, gone))) != Status.OK:
            log.warning("no ledger is collected, because that could not be noted in a control log")
            return 0
        collected = yield from self.forget(gone, suspects)
        suspects.clear()
        self.collected += collected
        log.info("%d deleted ledgers are collected", collected)
        return collected

    def _tell_kept(self, suspected: Suspected, records: Mapping[int, Response]) -> None:
        why = [
            f"ledger {ledger_id}: {answer.detail}"
            for ledger_id, answer in records.items()
            if isinstance(answer, Unknown)
        ]
        why += [f"ledger {ledger_id} was never given out" for ledger_id in suspected.not_given_out]
        why += [f"the record of ledger {ledger_id} is lost" for ledger_id in suspected.lost]
        unread = len(suspected.asked) - len(records)
        if why:
            more = len(why) + unread - _KEPT_TOLD
            self.kept = f"{counted(len(why) + unread, 'ledger')} kept, because nobody can say that they were deleted: "
            self.kept += "; ".join(why[:_KEPT_TOLD]) + (f"; and {more} more" if more > 0 else "")
            log.warning("%s", self.kept)

    def held(self) -> Steps[array[int]]:
        """Ids of all ledgers with entries or control state at the first step, most of them twice, and perhaps of later ledgers
        (the listing comes later)."""
        # An array, as a set of ten million ids grows in steps of 0.3 s.
        held = array("q")
        for ids in (self._holdings.index.ids(), ascending(self._holdings.ledgers.ids)):
            while part := list(islice(ids, _IDS_A_STEP)):
                held.extend(part)
                yield None
        return held

    def collect_copies(self, store: MetadataStore, bookie_id: str, ask: AskOthers) -> Steps[int]:
        """Forget copies on this bookie that the metadata does not name (``protocol.bookie.unnamed_copies``); returns the number
        of their ledgers."""
        held = yield from self.held()
        ids: list[int] = yield lambda: sorted(set(held))
        collected = 0
        for start in range(0, len(ids), _LEDGERS_A_STEP):
            collected += yield from self._collect_copies(store, bookie_id, ask, ids[start : start + _LEDGERS_A_STEP])
        if collected:
            log.info("of %d ledgers, copies are collected that the metadata does not name", collected)
        self.copies_collected += collected
        return collected

    def _collect_copies(
        self, store: MetadataStore, bookie_id: str, ask: AskOthers, ledger_ids: list[int]
    ) -> Steps[int]:
        index, suspects = self._holdings.index, self._holdings.control.suspects
        suspects.clear()
        suspects.update(ledger_ids)
        last_held = {one: NO_ENTRY if (rows := index.get(one)) is None else rows.last_entry_id for one in ledger_ids}
        found: list[VersionedLedger] = yield partial(_may_be_spare, store, bookie_id, last_held)
        spare: dict[int, EntryRanges] = {}
        for one in found:
            ranges = yield from self._held_ranges(one.value.ledger_id)
            spare[one.value.ledger_id] = spare_copies(one.value, bookie_id, ranges)
        collectable: dict[int, EntryRanges] = yield partial(_collectable, store, bookie_id, ask, found, spare)
        whole = []
        for one in found:
            ledger_id = one.value.ledger_id
            if ledger_id in collectable:
                yield from self._forget_copies(ledger_id, collectable[ledger_id])
                if not names(one.value, bookie_id) and not index.holds_any(ledger_id):
                    whole.append(ledger_id)
        if whole and (yield from awaited(partial(self.note, whole))) == Status.OK:
            yield from self.forget(whole, suspects)
        suspects.clear()
        return len(collectable)

    def _held_ranges(self, ledger_id: int) -> Steps[EntryRanges]:
        ranges, following = NO_RANGES, 0
        while (rows := self._holdings.index.get(ledger_id)) is not None:
            start = bisect_left(rows.first, following)
            part = range(start, min(len(rows), start + _ROWS_A_STEP))
            if not part:
                break
            ranges = with_ranges(ranges, rows.ids_of(part))
            following = rows.row(part[-1]).last + 1
            if len(part) == _ROWS_A_STEP:
                yield None
        return ranges

    def _forget_copies(self, ledger_id: int, ranges: EntryRanges) -> Steps[None]:
        """Forget the ledger's rows within ``ranges``, until a request for it is granted."""
        index, suspects, following = self._holdings.index, self._holdings.control.suspects, 0
        while ledger_id in suspects and (rows := index.changing(ledger_id)) is not None:
            start = bisect_left(rows.first, following)
            part = [rows.row(number) for number in range(start, min(len(rows), start + _ROWS_A_STEP))]
            if not part:
                break
            following = part[-1].last + 1
            rows.drop_numbered([n for n, row in enumerate(part, start) if covers(ranges, row.first, row.last)])
            self._checkpoints.outdated()
            yield None

    def note(self, ledger_ids: Collection[int], done: Done) -> None:
        """Note, before ``forget``, that these ledgers may have been fenced. ``done``: OK once that is durable, or IO_ERROR."""
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

    def forget(self, ledger_ids: Collection[int], suspects: Container[int] | None = None) -> Steps[int]:
        """Forget deleted ledgers and their state; returns their number. A ledger missing from ``suspects`` at its turn is
        kept."""
        ids, forgotten = list(ledger_ids), 0
        for start in range(0, len(ids), _LEDGERS_A_STEP):
            part = ids[start : start + _LEDGERS_A_STEP]
            if suspects is not None:
                part = [ledger_id for ledger_id in part if ledger_id in suspects]
            forgotten += len(part)
            self._records.forget(part)
            for ledger_id in part:
                self._holdings.forget(ledger_id)
            self._checkpoints.outdated()
            yield None
        if len(ids) >= _FORGOTTEN_PART * len(self._holdings.ledgers):
            yield from self._records.rewrite()
        return forgotten


class _Listed(Set[int]):
    """An ascending list of ids as a set. Building a real set of a million ids in one call blocks the interpreter, and so the
    loop."""

    def __init__(self, ids: Sequence[int]) -> None:
        self._ids = ids

    def __contains__(self, one: object) -> bool:
        assert isinstance(one, int)
        at = bisect_left(self._ids, one)
        return at < len(self._ids) and self._ids[at] == one

    def __iter__(self) -> Iterator[int]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


def list_ledgers(store: MetadataStore) -> Listing:
    """All ledgers in the metadata, or the reason of a failed listing."""
    return _or_incomplete(lambda: Complete(_Listed(store.list_ledgers())))


def _or_incomplete(read: Callable[[], Value]) -> Value | Incomplete:
    try:
        return read()
    except BookKeeperError as error:
        return Incomplete(str(error))


def _suspected(held: Iterable[int], listing: Complete, given_out: int, lost: Collection[LostRecords]) -> Suspected:
    # The note of ids that users gave may be lost with an older copy of the metadata; the listing holds the surviving ids.
    return sort_suspects(suspects(held, listing), max(given_out, max(listing.ledgers, default=given_out)), lost)


def read_records(
    store: MetadataStore, ledger_ids: Iterable[int], clock: Callable[[], float] = time.monotonic
) -> dict[int, Response]:
    """Read each ledger's record; returns the answers by ledger. A failed read counts for that ledger alone, but after half a
    minute of failed reads the store counts as down, and reading ends."""
    answers: dict[int, Response] = {}
    failing = 0.0
    for ledger_id in ledger_ids:
        begun = clock()
        try:
            store.read_ledger(ledger_id)
            answers[ledger_id] = Positive()
        except NoSuchLedgerError:
            answers[ledger_id] = Negative(NegativeReason.NO_SUCH_LEDGER)
        except UnreadableRecordError as error:
            # The ledger has a record, so it was not deleted.
            log.warning("ledger %d is kept: %s", ledger_id, error)
            answers[ledger_id] = Unknown(UnknownReason.UNREACHABLE, str(error))
        except Exception as error:
            answers[ledger_id] = Unknown(UnknownReason.UNREACHABLE, str(error) or repr(error))
            failing += clock() - begun
            if failing > _FAILING_SECONDS_MAX:
                break
    return answers


def _may_be_spare(store: MetadataStore, bookie_id: str, last_held: Mapping[int, int]) -> list[VersionedLedger]:
    try:
        if lost := read_lost_records(store):
            log.warning("no copies are collected now, because records are lost from ledger %d on", lost[0].first)
            return []
        found = list(store.read_ledgers(last_held, {}))
    except BookKeeperError as error:
        log.warning("no copies are collected now, because the ledgers' records can't be read: %s", error)
        return []
    return [one for one in found if may_be_spare(one.value, bookie_id, last_held[one.value.ledger_id])]


def _collectable(
    store: MetadataStore,
    bookie_id: str,
    ask: AskOthers,
    found: Sequence[VersionedLedger],
    spare: Mapping[int, EntryRanges],
) -> dict[int, EntryRanges]:
    """The copies to forget, by ledger. The record of each of these ledgers is written, unchanged."""
    wanted = [one for one in found if spare[one.value.ledger_id] or not names(one.value, bookie_id)]
    unreadable: dict[int, str] = {}
    try:
        tasks = store.underreplication.tasks([one.value.ledger_id for one in wanted], unreadable)
        repaired = {task.ledger_id for task in tasks} | unreadable.keys()
    except BookKeeperError as error:
        log.warning("no copies are collected now, because the tasks of autorecovery can't be read: %s", error)
        return {}
    wanted = [one for one in wanted if one.value.ledger_id not in repaired]
    asked = {one.value.ledger_id: bookies_to_ask(one.value, spare[one.value.ledger_id]) for one in wanted}
    answers = ask([(bookie, ledger_id) for ledger_id, bookies in asked.items() for bookie in bookies])
    result: dict[int, EntryRanges] = {}
    for metadata, version in wanted:
        ledger_id = metadata.ledger_id
        others = {bookie: answers[bookie, ledger_id] for bookie in asked[ledger_id] if (bookie, ledger_id) in answers}
        copies = collectable_copies(metadata, spare[ledger_id], others)
        if not copies and (spare[ledger_id] or names(metadata, bookie_id)):
            continue
        try:
            store.write_ledger(metadata, version)
        except BookKeeperError as error:
            log.info("copies of ledger %d are kept for now: %s", ledger_id, error)
            continue
        result[ledger_id] = copies
    return result

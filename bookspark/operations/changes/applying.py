"""Application of a cluster change: observe, decide, record, act; repeated until the change is complete.

Law: ``protocol.changes.planner`` decides each step from the cluster's state at that moment. Before a bookie goes down, the
records that name it and the indexes of the bookies that share its ledgers are read again. The record is written before the step,
so another process can continue after a kill at any moment. A lock allows one applying process; each step is fenced besides
(``change_record``), because a process that stands still loses the lock unnoticed. After ``stall_seconds`` without
progress an error names the awaited event, and the change stays under way.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self

import msgspec

from bookspark.errors import (
    BookieError,
    BookKeeperError,
    ConfigurationError,
    MetadataStoreError,
    MetadataVersionError,
    NoSuchLedgerError,
    NotEnoughBookiesError,
    RecordFullError,
)
from bookspark.operations.changes.change_record import (
    ChangeRecord,
    ChangeState,
    Kept,
    WantedDocument,
    new_record,
    taken_over,
)
from bookspark.operations.changes.hands import Hands, Request
from bookspark.operations.changes.looking import Looking
from bookspark.protocol.changes.observed import Observed, Placed, placed
from bookspark.protocol.changes.planner import decide, permitted
from bookspark.protocol.changes.safety import left_over
from bookspark.protocol.changes.steps import Decision, Forget, Move, Resume, SetReadOnly, Stop, Takes
from bookspark.protocol.changes.wanted import Progress, Wanted, begin
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.audit_plan import confirmed, mark_of_lacking, merged
from bookspark.protocol.repair.ledger_replication import LedgerReplication
from bookspark.protocol.repair.replication_plan import lacks
from bookspark.store.autorecovery.copying import RUN_ENTRIES_MAX, Copying, RepairDriver
from bookspark.store.autorecovery.decommission import decommission
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.held_ranges import Ranges, held_ranges
from bookspark.store.client.runtime.client_context import StoreAction, StoreAnswer
from bookspark.store.decisions.seam import made
from bookspark.store.metadata.documents.locks import Lock
from bookspark.store.metadata.records.versioned import RecordVersion
from bookspark.support.plain_text import counted

log = logging.getLogger(__name__)


# -- Copies check: do the indexes of the other bookies show enough copies?


_WHOLE_INDEX_LEDGERS = 32
"""A bookie with more shared ledgers is asked once for its whole index instead of once per ledger."""


class CopiesCheck:
    """One check of the copies that remain without ``bookie_id``. ``ledgers``: fresh records of the ledgers that name it.

    Law: metadata alone proves no copy. An ensemble change may leave entries with only an ack quorum of copies and no mark. So
    every fragment of the leaving bookie is compared with the indexes of its other bookies. A bookie that is silent or lacks an
    entry has no copy of the fragment. Entries lacking at two looks, with a pause between them, are marked for autorecovery. An
    open fragment is compared up to the last entry that its bookies had at the first look.

    Source: ``protocol.repair.audit_plan``, also used by the auditor's exact check.
    """

    def __init__(
        self,
        bookkeeper: BookKeeper,
        bookie_id: str,
        ledgers: Mapping[int, LedgerMetadata],
        observed: Observed,
        away: Collection[str],
    ) -> None:
        self._bookkeeper = bookkeeper
        self._bookie_id = bookie_id
        self._ledgers = ledgers
        self._observed = observed
        self._away = away
        self._silent: dict[str, str] = {}

    def problem(self, pause: Callable[[], None]) -> str:
        """The reason why the bookie must stay; empty if it may go. ``pause`` is called between the two looks. Raises
        MetadataStoreError."""
        held = self._held()
        ends = {one: self._end(one, held) for one in self._ledgers}
        lacking = dict(self._lacking(held, ends))
        if lacking:
            pause()
            again = dict(self._lacking(self._held(), ends))
            lacking = {key: both for key, ranges in lacking.items() if (both := confirmed(ranges, again.get(key, [])))}
            self._mark(lacking)
        for metadata in self._ledgers.values():
            for one in placed(metadata):
                if self._bookie_id in one.ensemble and (why := self._too_few(one, lacking)):
                    return why
        return ""

    def _mark(self, lacking: Mapping[tuple[int, str], Ranges]) -> None:
        """Mark the lacking entries for autorecovery, except in an open fragment, which belongs to its writer."""
        marks = []
        for (ledger_id, bookie), ranges in lacking.items():
            metadata = self._ledgers[ledger_id]
            closed = [(f.first_entry_id, last) for f, last in metadata.fragment_ranges() if last is not None]
            if found := confirmed(ranges, closed):
                marks.append(mark_of_lacking(ledger_id, bookie, found))
        if marks:
            self._bookkeeper.metadata.underreplication.mark(marks)

    def _too_few(self, fragment: Placed, lacking: Mapping[tuple[int, str], Ranges]) -> str:
        ledger_id = fragment.ledger_id
        gone = {
            bookie
            for bookie in fragment.ensemble
            if bookie == self._bookie_id
            or bookie in self._away
            or bookie in self._silent
            or (ledger_id, bookie) in lacking
            or not self._observed.counts(bookie, ledger_id)
        }
        left = left_over(fragment, gone)
        if left >= fragment.ack_quorum:
            return ""
        told = [f"{b} lacks {_told(lacking[ledger_id, b])}" for b in sorted(gone) if (ledger_id, b) in lacking] + [
            f"{b} {self._silent[b]}" for b in sorted(gone) if b in self._silent
        ]
        return (
            f"without {self._bookie_id}, entries of ledger {ledger_id} would have {left} of the {fragment.ack_quorum} copies "
            f"that are its ack quorum: {'; '.join(told) or 'others are down'}; autorecovery copies what is lacking, if it runs"
        )

    def _held(self) -> dict[tuple[int, str], Ranges]:
        """Held ranges of each other bookie, by ledger and bookie."""
        shared: dict[str, list[int]] = {}
        for ledger_id, metadata in self._ledgers.items():
            members = {b for f in metadata.fragments if self._bookie_id in f.ensemble for b in f.ensemble} - {
                self._bookie_id,
                *self._away,
            }
            for member in members:
                if self._observed.counts(member, ledger_id):
                    shared.setdefault(member, []).append(ledger_id)
        found: dict[tuple[int, str], Ranges] = {}
        for member, ledger_ids in sorted(shared.items()):
            try:
                wanted = set(ledger_ids)
                for ledger_id, ranges in self._ranges(member, ledger_ids):
                    if ledger_id in wanted:
                        found[ledger_id, member] = ranges
            except BookKeeperError as error:
                self._silent[member] = f"does not tell what it has ({error})"
        return found

    def _ranges(self, member: str, ledger_ids: list[int]) -> Iterator[tuple[int, Ranges]]:
        asked: list[int | None] = [None] if len(ledger_ids) > _WHOLE_INDEX_LEDGERS else [*ledger_ids]
        for one in asked:
            for ledger_id, ranges in held_ranges(self._bookkeeper, member, one).items():
                yield ledger_id, merged(ranges)

    def _end(self, ledger_id: int, held: Mapping[tuple[int, str], Ranges]) -> int:
        """The last entry of a ledger that is not closed, by its bookies' indexes; -1: none."""
        members = self._ledgers[ledger_id].bookies()
        return max((ranges[-1][1] for b in members if (ranges := held.get((ledger_id, b)))), default=-1)

    def _lacking(
        self, held: Mapping[tuple[int, str], Ranges], ends: Mapping[int, int]
    ) -> Iterator[tuple[tuple[int, str], Ranges]]:
        """Lacking entries of the other bookies, in the fragments of the leaving bookie."""
        for ledger_id, metadata in self._ledgers.items():
            shared = {b for f in metadata.fragments if self._bookie_id in f.ensemble for b in f.ensemble}
            for member in sorted(shared - {self._bookie_id, *self._away, *self._silent}):
                if not self._observed.counts(member, ledger_id):
                    continue
                ranges = held.get((ledger_id, member), [])
                missing = [(one.first, one.last) for one in lacks(metadata, member, ranges, ends[ledger_id])]
                if missing := confirmed(missing, self._shared(metadata, ends[ledger_id])):
                    yield (ledger_id, member), missing

    def _shared(self, metadata: LedgerMetadata, end: int) -> Ranges:
        return [
            (fragment.first_entry_id, end if last is None else last)
            for fragment, last in metadata.fragment_ranges()
            if self._bookie_id in fragment.ensemble
        ]


def _told(ranges: Ranges) -> str:
    first, *more = ranges
    return (f"entry {first[0]}" if first[0] == first[1] else f"entries {first[0]}..{first[1]}") + (
        f" and {len(more)} more ranges" if more else ""
    )


# -- Moves: copies go from one bookie to another


_GRACE_SECONDS = 0.0
"""A move ends instead of waiting for the writer of an open fragment."""


class Moving:
    """Moves fragments, several ledgers at a time. ``stopping`` ends it early.

    Law: ``protocol.repair.ledger_replication`` moves them, as in a replication worker: the copy is synced before a
    compare-and-set of the record names its bookie; an open fragment is left to its writer. The plan chooses the bookie. A
    repeated move, or a move of a changed fragment, does nothing.
    """

    def __init__(self, bookkeeper: BookKeeper, config: ChangesConfig, stopping: threading.Event) -> None:
        self._bookkeeper = bookkeeper
        self._config = config
        self._copying = Copying(config.copy_bytes_per_second, stopping)
        self._stopping = stopping

    @property
    def moved_bytes(self) -> int:
        return self._copying.progress.bytes_copied

    def move(self, moves: Sequence[Move], down: Collection[str], under: RecordVersion) -> dict[int, str]:
        """Make the moves. Returns the reasons of failures by ledger id. ``down``: bookies that are not asked for copies.
        ``under``: the change's record; a move fails once it has changed."""
        by_ledger: dict[int, list[Move]] = {}
        for one in moves:
            by_ledger.setdefault(one.ledger_id, []).append(one)
        with ThreadPoolExecutor(self._config.ledgers_at_once, thread_name_prefix="move") as pool:
            found = list(pool.map(partial(self._move_ledger, down, under), by_ledger.values()))
        return {ledger_id: why for ledger_id, why in zip(by_ledger, found, strict=True) if why}

    def _move_ledger(self, down: Collection[str], under: RecordVersion, moves: list[Move]) -> str:
        if self._stopping.is_set():
            return ""
        ledger_id = moves[0].ledger_id
        try:
            metadata, version = self._bookkeeper.metadata.read_ledger(ledger_id)
            sources = {one.source for one in moves}
            with self._copying.room(ledger_id) as room:
                lost = sources & set(down)
                machine = made(LedgerReplication, lost, _GRACE_SECONDS, RUN_ENTRIES_MAX, sources - lost, room)
                driver = _MoveDriver(self._bookkeeper, metadata, self._copying, _chosen(metadata, moves), under)
                driver.run(machine.step, machine.step(act.MetadataRead(metadata, version)))
        except (NoSuchLedgerError, NotEnoughBookiesError):
            # The ledger was deleted, or the next fragment is not part of these moves.
            return ""
        except BookKeeperError as error:
            return str(error)
        return ""


def _chosen(metadata: LedgerMetadata, moves: Sequence[Move]) -> dict[tuple[str, ...], dict[str, str]]:
    """The target of each source bookie, by ensemble."""
    by_first = {one.first_entry_id: one for one in moves}
    return {
        fragment.ensemble: {move.source: move.target}
        for fragment in metadata.fragments
        if (move := by_first.get(fragment.first_entry_id)) is not None and move.target not in fragment.ensemble
    }


class _MoveDriver(RepairDriver):
    def __init__(
        self,
        bookkeeper: BookKeeper,
        metadata: LedgerMetadata,
        copying: Copying,
        chosen: Mapping[tuple[str, ...], Mapping[str, str]],
        under: RecordVersion,
    ) -> None:
        super().__init__(bookkeeper, metadata, copying)
        self._store = bookkeeper.metadata
        self._chosen = chosen
        self._under = under

    def _ask_store(self, action: StoreAction) -> StoreAnswer:
        if isinstance(action, act.WriteMetadata):
            return self._write(action)
        if not isinstance(action, act.ChooseBookies):
            return super()._ask_store(action)
        targets = self._chosen.get(action.ensemble, {})
        if all(bookie in targets for bookie in action.replaced):
            return act.BookiesChosen(tuple(targets[bookie] for bookie in action.replaced))
        return act.NoBookies(NotEnoughBookiesError("this fragment is not moved now"))

    def _write(self, action: act.WriteMetadata) -> StoreAnswer:
        """Write the ledger's record while the change's record stands. If that has changed, a second attempt would fail, too."""
        try:
            return act.MetadataWritten(self._store.write_ledger(action.metadata, action.version, self._under))
        except MetadataVersionError:
            kind, name, version = self._under
            found = self._store.read_record(kind, name)
            stands = found is not None and found.version == version
            return act.MetadataConflict() if stands else act.MetadataFailed(taken_over())
        except RecordFullError as error:
            return act.RecordFull(error)
        except BookKeeperError as error:
            return act.MetadataFailed(error)


# -- Application of a change


class Applying:
    """The process that applies a change. ``with`` holds the lock. For one thread; ``stop`` may be called from any thread."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        hands: Hands,
        config: ChangesConfig | None = None,
        tell: Callable[[str], None] = log.info,
    ) -> None:
        """``tell`` gets a text for each step before it is made, and for each awaited event."""
        self._bookkeeper = bookkeeper
        self._hands = hands
        self._config = config or ChangesConfig()
        self._tell = tell
        self._kept = Kept(bookkeeper.metadata)
        self._looking = Looking(bookkeeper)
        self._stopping = threading.Event()
        self._moving = Moving(bookkeeper, self._config, self._stopping)
        self._change_lock, self._clock = bookkeeper.metadata.change_lock, bookkeeper.metadata.clock
        self._lock: Lock | None = None
        self._told: tuple[str, ...] = ()
        self._asked: Request | None = None
        self._asked_of = 0
        """The incarnation of the bookie at the time of the request."""
        self._ended: Request | None = None
        """The last request whose end the hands know."""

    # -- the lock

    def __enter__(self) -> Self:
        """Take the lock. Raises BookieError if another process holds it for twice the session timeout, so it is alive."""
        name = f"{socket.gethostname()}:{os.getpid()}"
        deadline = time.monotonic() + 2 * self._bookkeeper.context.config.metadata_session_timeout_seconds
        while True:
            self._lock = self._change_lock.take(name)
            if self._lock is not None:
                return self
            if time.monotonic() > deadline:
                raise BookieError(
                    f"{self._change_lock.holder() or 'somebody'} applies a change of this cluster; wait for its end, or end it"
                )
            self._stopping.wait(self._config.poll_seconds)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._lock is not None:
            self._change_lock.give_back(self._lock)

    def stop(self) -> None:
        """End ``run`` before its next step. The change stays under way."""
        self._stopping.set()

    # -- the record

    def begin(self, wanted: Wanted) -> ChangeRecord:
        """Record the wanted change; the same change continues. Raises ConfigurationError if another change is under way."""
        now = self._kept.own()
        record = new_record(wanted, begin(wanted, self._looking.look()), self._clock.known_ms())
        if now is not None and now.under_way:
            if now.wanted == record.wanted and now.state is ChangeState.UNDER_WAY:
                return now
            raise ConfigurationError(
                "another change of this cluster is under way; go on with it by `bookspark cluster apply` without options, or "
                "give it up by `bookspark cluster give-up`"
            )
        return self._kept.write(record)

    def give_up(self) -> None:
        """Give the change up. ``run`` then releases the bookies that the change made read-only or took down. Requests of earlier
        processes are taken back. Raises ConfigurationError if no change is under way."""
        record = self._under_way()
        wanted = record.wanted.wanted()
        for name in record.progress.away:
            if (request := wanted.taking(name)) is not None:
                self._hands.take_back(request, "the change is given up")
        self._kept.write(msgspec.structs.replace(record, wanted=WantedDocument(), state=ChangeState.GIVEN_UP))

    def run(self) -> ChangeRecord:
        """Continue the change until it is complete, and return its record.

        Raises BookieError if the change is impossible or makes no progress for ``stall_seconds``; it stays under way. Raises
        ConfigurationError if no change is under way, MetadataVersionError if another process took over.
        """
        record = self._under_way()
        try:
            return self._run(record)
        except MetadataVersionError as error:
            if self._asked is not None:
                self._hands.take_back(self._asked, str(error))
            raise

    def _run(self, record: ChangeRecord) -> ChangeRecord:
        since = time.monotonic()
        last: tuple[object, ...] = ()
        while not self._stopping.is_set():
            waits: tuple[str, ...]
            try:
                record, waits, sign = self._turn(record)
            except MetadataStoreError as error:
                # The write of the record may have succeeded or not: the stored record counts.
                waits, sign = (f"the metadata store: {error}",), (str(error),)
                with suppress(MetadataStoreError):
                    record = self._kept.own() or record
            if not record.under_way:
                return record
            if sign != last:
                since, last = time.monotonic(), sign
            if not waits and self._asked is None:
                continue
            self._say(waits)
            if time.monotonic() - since > self._config.stall_seconds:
                why = "; ".join(waits) or f"waited for this to be done: {self._asked}"
                raise BookieError(
                    f"nothing has happened for {self._config.stall_seconds:g} s: {why}. Go on by `bookspark cluster apply`, or "
                    "give the change up by `bookspark cluster give-up`"
                )
            self._stopping.wait(self._config.poll_seconds)
        return record

    def _turn(self, record: ChangeRecord) -> tuple[ChangeRecord, tuple[str, ...], tuple[object, ...]]:
        """Look once and act. Returns the new record, the awaited events, and a sign that differs after any progress."""
        observed = self._looking.look()
        obeyed = max((one.change_order for one in observed.bookies.values()), default=0)
        if obeyed > record.order:
            # The metadata store was restored from an older copy.
            record = self._kept.write(record, obeyed)
        wanted, progress = record.wanted.wanted(), record.progress.progress()
        decision = decide(wanted, progress, observed)
        if decision.refusals:
            raise BookieError("; ".join(decision.refusals))
        if decision.complete:
            state = ChangeState.COMPLETE if record.state is ChangeState.UNDER_WAY else record.state
            record = msgspec.structs.replace(record, state=state, ended_at_ms=self._clock.known_ms())
            return self._kept.write(record), (), ()
        record, problem = self._make(record, wanted, progress, observed, decision)
        waits = decision.waits if not decision.steps else ()
        if problem:
            waits = (problem, *decision.waits)
        return record, waits, (record.steps, record.moves, waits, tuple(sorted(observed.bookies.items())))

    def _under_way(self) -> ChangeRecord:
        record = self._kept.own()
        if record is None or not record.under_way:
            raise ConfigurationError("no change of this cluster is under way; name a change (see --help)")
        return record

    # -- one step

    def _make(
        self, record: ChangeRecord, wanted: Wanted, progress: Progress, observed: Observed, decision: Decision
    ) -> tuple[ChangeRecord, str]:
        """Make all moves, else the first step. Returns the new record, and the obstacle or ""."""
        moves = [step for step in decision.steps if isinstance(step, Move)]
        if moves:
            return self._move(record, moves, observed)
        if self._asked is not None and self._asked not in decision.steps:
            self._let_go(self._asked, observed, decision)
        if not decision.steps:
            return record, ""
        step = decision.steps[0]
        assert not isinstance(step, Move)
        if isinstance(step, Takes) and observed.bookies[step.bookie_id].registered:
            why = self._in_the_way(wanted, progress, observed, step)
            if why and self._asked == step:
                if self._is_ending(step):
                    return record, ""
                self._hands.take_back(step, why)
                self._asked, self._ended = None, step
            if why:
                return record, why
        if isinstance(step, Takes):
            incarnation = observed.bookies[step.bookie_id].incarnation
            if self._asked == step and incarnation in (0, self._asked_of):
                return record, ""
            self._asked_of = incarnation
        request = wanted.taking(step.bookie_id) if step.bookie_id in progress.away else None
        if isinstance(step, Resume | Forget) and request not in (None, self._ended):
            # An earlier process may still carry out the request: wait for its end, then look again.
            self._hands.seen(request)
            self._ended = request
            return record, ""
        begun = progress.begun(step)

        def note() -> None:
            nonlocal record
            record = self._kept.write(record.after(begun))

        self._tell(str(step))
        try:
            if isinstance(step, Takes):
                self._hands.do(step, note)
            else:
                note()
                self._do(step, begun, record.order)
        except (MetadataVersionError, MetadataStoreError):
            raise
        except BookKeeperError as error:
            return record, f"could not {step}: {error}"
        self._asked = step if isinstance(step, Takes) else None
        record = msgspec.structs.replace(record.after(begun.ended(step)), steps=record.steps + 1)
        return self._kept.write(record), ""

    def _let_go(self, request: Request, observed: Observed, decision: Decision) -> None:
        """End a request that is no step any more: seen done, or taken back. A bookie that is down for a restart is awaited."""
        bookie = observed.bookies.get(request.bookie_id)
        there = bookie is not None and bookie.registered
        if not there and not isinstance(request, Stop):
            return
        self._asked, self._ended = None, request
        if bookie is None or not there or bookie.incarnation != self._asked_of:
            self._hands.seen(request)
        else:
            self._hands.take_back(request, "; ".join(decision.waits) or "the cluster has changed")

    def _is_ending(self, request: Request) -> bool:
        """Did the bookie go down during the look? Then the request is being carried out."""
        bookie = self._looking.look().bookies.get(request.bookie_id)
        if bookie is None or not bookie.registered or bookie.incarnation != self._asked_of:
            return True
        return request.bookie_id not in self._looking.statuses

    def _move(self, record: ChangeRecord, moves: list[Move], observed: Observed) -> tuple[ChangeRecord, str]:
        before = self._moving.moved_bytes
        self._tell(f"{len(moves)} moves, the first one: {moves[0]}")
        down = [name for name, one in observed.bookies.items() if not one.registered]
        failed = self._moving.move(moves, down, self._kept.under)
        self._looking.changed(one.ledger_id for one in moves)
        made = sum(one.ledger_id not in failed for one in moves)
        record = msgspec.structs.replace(
            record, moves=record.moves + made, moved_bytes=record.moved_bytes + self._moving.moved_bytes - before
        )
        record = self._kept.write(record)
        if not failed:
            return record, ""
        ledger_id, why = next(iter(failed.items()))
        return record, f"{counted(len(failed), 'ledger')} could not be moved, as ledger {ledger_id}: {why}"

    def _in_the_way(self, wanted: Wanted, progress: Progress, observed: Observed, step: Request) -> str:
        """Read again everything that the step's safety depends on. Returns the obstacle, or ""."""
        name = step.bookie_id
        try:
            ledgers = self._looking.renew(name)
        except BookKeeperError as error:
            return f"not taken down: {error}"
        check = CopiesCheck(self._bookkeeper, name, ledgers, observed, progress.away - {name})
        # The cluster may change during the check: look once more.
        return check.problem(self._pause) or permitted(wanted, progress, self._looking.look(), step)

    def _pause(self) -> None:
        self._stopping.wait(self._config.confirm_seconds)

    def _do(self, step: SetReadOnly | Resume | Forget, progress: Progress, order: int) -> None:
        client = self._bookkeeper
        match step:
            case SetReadOnly():
                client.switch_read_only(step.bookie_id, True, order)
            case Resume():
                if step.bookie_id in progress.quieted:
                    client.switch_read_only(step.bookie_id, False, order)
            case Forget():
                if client.metadata.read_cookie(step.bookie_id) is not None:
                    seconds = self._config.stall_seconds
                    decommission(client, step.bookie_id, timeout_seconds=seconds, under=self._kept.under)

    def _say(self, waits: tuple[str, ...]) -> None:
        if waits != self._told:
            self._told = waits
            for one in waits:
                self._tell(f"waiting: {one}")

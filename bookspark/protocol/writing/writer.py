"""The writer of a ledger: pipelined adds, acknowledged in order, ensemble changes, and the close.

Law: an append is acknowledged once an ack quorum of its write set has it and every append before it is acknowledged. After the
first sign of a fence nothing is acknowledged. The LAC (last add confirmed) covers acknowledged and synced entries. The closed
ledger ends at the last confirmed entry, whichever client closed it, or ``close`` fails.

States (``TRANSITIONS`` lists the events of each, ``ANSWERS`` the answers of the metadata store and of placement)::

    OPEN ──Close──► CLOSING ──nothing pending──► WRITING ──compare-and-set──► CLOSED
      │                │                           │ conflict: read again; still OPEN → try again;
      ├── fenced, unauthorized, deadline ──► FAILED ◄─┘ CLOSED with our end → CLOSED; anything else → FAILED
      └── no bookies to go on with (best effort) ──► WRITING ──► FAILED, the ledger closed at the LAC,
                             or FAILED and left open, if that would cut off what a VD ledger acknowledged

Parts: ``Adds`` sends entries; ``writer_cursors`` holds the progress; the policies ``replication`` (best effort, guaranteed) and
``durability`` (PD: persistent, VD: volatile) differ from ledger to ledger; ``ensemble_change`` replaces bookies; ``explicit_lac``
sends the LAC.

A silent bookie delays nothing as long as an ack quorum of each write set answers. When it is back (``BookieBack``), it gets the
entries still pending. Autorecovery copies the rest.

Sources: bookkeeper-overview, "Writing" and "Closing"; ``PendingAddOp`` and ``LedgerHandle`` of BookKeeper;
docs/decisions/traps.md, trap 3 for ensemble changes, trap 4 for the three outcomes of a close.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from functools import lru_cache

from bookspark.errors import BookKeeperError, LedgerClosedError, NoSuchLedgerError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.actions import Action, AddAnswered, SendAdd, SyncAnswered, SyncReport
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import LATE, TAKEN, IllegalEventError, Table, cell_of, row
from bookspark.protocol.writing.durability import SYNC_BYTES, Volatile, durability_of
from bookspark.protocol.writing.ensemble_change import ChangeMode, EnsembleChanges, quorum_lost
from bookspark.protocol.writing.explicit_lac import EXPLICIT_LAC_INTERVAL_SECONDS, ExplicitLac
from bookspark.protocol.writing.replication import BestEffort, replication_of
from bookspark.protocol.writing.writer_cursors import Cursors
from bookspark.protocol.writing.writer_errors import late, left_open, refused_at, taken_over
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookieBack,
    BookiesChanged,
    Close,
    ExplicitLacAnswered,
    HeldUp,
    Idle,
    PassedOver,
    Sync,
    TellLac,
    WriterEvent,
)
from bookspark.protocol.writing.writer_state import Asked, PendingAdd, State

# -- Adds: sends, repetitions and syncs of entries. This part of a writer knows no metadata store.


NEVER_ASKED = "the bookie was never asked"
NOT_VOLATILE = "bookies are asked to sync a VD ledger, and no other"


@lru_cache(maxsize=256)
def _bookies_of(ensemble: tuple[str, ...]) -> frozenset[str]:
    """One shared set for all ledgers of an ensemble."""
    return frozenset(ensemble)


class Adds:
    """The adds of one writer. Bookies in arguments are in the ensemble.

    Law: a bookie gets again the pending entries that it has not acknowledged, and no others. An add carries the LAC (last add
    confirmed) of the moment, and the LAFR (last add fully replicated) of a guaranteed ledger."""

    __slots__ = ("cursors", "durability", "explicit_lac", "known")

    def __init__(
        self,
        metadata: LedgerMetadata,
        replication: BestEffort,
        sync_bytes: int,
        explicit_lac_interval_seconds: float,
    ) -> None:
        self.known = _bookies_of(metadata.last_fragment.ensemble)
        """Present and former bookies of the ensemble: all bookies ever asked."""
        self.cursors = Cursors(metadata, replication)
        self.durability = durability_of(metadata, sync_bytes)
        self.explicit_lac = ExplicitLac(explicit_lac_interval_seconds)

    def append(self, count: int, byte_length: int, write_set: tuple[str, ...], leaving: frozenset[str]) -> list[Action]:
        """Append the next ``count`` ids on ``write_set``; bookies ``leaving`` get nothing."""
        cursors = self.cursors
        self.explicit_lac.entry_told(cursors.last_add_confirmed, cursors.last_add_fully_replicated)
        add = cursors.push(count, byte_length, write_set)
        actions = self._send(add, tuple(b for b in write_set if b not in leaving) if leaving else write_set)
        self.durability.appended(add.last, add.length)
        return actions

    def _send(self, add: PendingAdd, bookies: tuple[str, ...]) -> list[Action]:
        lac, lafr = self.cursors.last_add_confirmed, self.cursors.last_add_fully_replicated
        if not isinstance(self.durability, Volatile):
            return [SendAdd(bookies, add.first, add.last, lac, None, lafr)]
        return [
            SendAdd(group, add.first, add.last, lac, None, lafr, mine)
            for mine, group in self.durability.grouped(bookies)
        ]

    def send_missed(self, bookies: Collection[str]) -> list[Action]:
        """Send ``bookies`` the pending entries that they have not acknowledged."""
        syncs = self._pass_over(bookies)
        sends = [send for add, missing in self.cursors.missed(bookies) for send in self._send(add, missing)]
        return sends + syncs

    def _pass_over(self, bookies: Iterable[str]) -> list[Action]:
        return self.durability.passed_over(bookies, self.cursors.released, self.cursors.pending.values())

    def dropped(self, bookie: str) -> list[Action]:
        """The driver dropped adds held back for ``bookie``, because they were released."""
        self.explicit_lac.missed((bookie,))
        return self._pass_over((bookie,))

    def send_again(self, bookie: str, incarnation: int) -> list[Action]:
        """``bookie`` is reachable again, and answers as ``incarnation`` (0: unknown)."""
        self.durability.back(bookie, incarnation, self.cursors.pending.values())
        return self.send_missed((bookie,))

    def replace(self, metadata: LedgerMetadata, swap: Mapping[str, str]) -> list[Action]:
        """The record names the new ensemble. ``swap``: old bookie → new bookie. Acks of the old ones are taken back, and the new
        ones get every pending entry."""
        self.known = self.known.union(swap.values())
        self.cursors.replace(swap)
        self.durability.joined(metadata, swap.values())
        self.explicit_lac.replace(swap)
        return self.send_missed(swap.values())

    def advance(self, leaving: frozenset[str]) -> list[Action]:
        """Move the cursors as far as the answers allow, without copies on bookies ``leaving``."""
        return self.cursors.advance(self.durability, leaving)

    # -- impossible content

    def misfit(self, event: AddAnswered) -> str | None:
        """The reason why ``event`` can't be an answer to an add, or None."""
        add = self.cursors.pending.get(event.first)
        sent = 0 <= event.first <= event.last <= self.cursors.released if add is None else event.last == add.last
        if not sent:
            return "these entries were not sent"
        if event.bookie not in self.known:
            return NEVER_ASKED
        if (event.synced is not None) is not (self.durability.volatile and isinstance(event.response, Positive)):
            return "an ack tells what is synced on a VD ledger, and nothing else does"
        return None if event.synced is None else self._misfit_report(event.bookie, event.synced)

    def misfit_sync(self, event: SyncAnswered) -> str | None:
        if not self.durability.volatile:
            return NOT_VOLATILE
        if event.bookie not in self.known:
            return NEVER_ASKED
        if (event.synced is not None) is not isinstance(event.response, Positive):
            return "a positive answer tells what is synced, and no other does"
        return None if event.synced is None else self._misfit_report(event.bookie, event.synced)

    def _misfit_report(self, bookie: str, report: SyncReport) -> str | None:
        """An id never sent can't be synced: such a report would confirm entries before any bookie has them."""
        return (
            "more is synced than was sent"
            if self.volatile.is_ahead(bookie, report, self.cursors.last_add_pushed)
            else None
        )

    # -- VD ledgers

    @property
    def volatile(self) -> Volatile:
        assert isinstance(self.durability, Volatile), "the ledger is a PD ledger"
        return self.durability

    def heard(self, bookie: str, report: SyncReport, add: PendingAdd | None) -> list[Action]:
        """A positive answer with ``report``; ``add``: the acknowledged add, if any. A restarted bookie gets its possibly lost
        entries again."""
        actions, restarted = self.volatile.heard(bookie, report, add, self.cursors.pending.values())
        return actions + self.send_missed((bookie,)) if restarted else actions

    def sync_rest(self, bookie: str) -> list[Action]:
        """Ask ``bookie`` to sync again if its last sync came too early for an entry."""
        return self.volatile.sync_rest(bookie, self.cursors.pending.values())

    def sync(self) -> list[Action]:
        self.durability.want(self.cursors.last_add_pushed, self.cursors.pushed_length)
        return self.durability.acknowledged(self.cursors.last_add_acknowledged)


# -- The machine: tables of states and answers, and the writer.


_ADDS = (act.AddAnswered, act.SyncAnswered, BookieBack, BookiesChanged, PassedOver, HeldUp)
_OTHERS = (TellLac, Idle, ExplicitLacAnswered, Abandon, act.DeadlinePassed)

TRANSITIONS: Table[State] = {
    State.OPEN: row(taken=(Append, Sync, Close, *_ADDS, *_OTHERS)),
    # A Sync is late while closing: the close asks for that sync itself.
    State.CLOSING: row(taken=(*_ADDS, *_OTHERS), late=(Sync,), refused=(Append,)),
    # Every add is released or given up. A bookie may still refuse an add as fenced, after reading of this very close.
    State.WRITING: row(taken=_OTHERS, late=(Sync, *_ADDS), refused=(Append,)),
    State.CLOSED: row(late=(Sync, *_ADDS, *_OTHERS), refused=(Append,)),
    State.FAILED: row(late=(Sync, *_ADDS, *_OTHERS), refused=(Append,)),
}
"""All events but those of ``ANSWERS``. ``SyncAnswered`` has a cell on a VD ledger only."""

ANSWERS: Table[Asked] = {
    Asked.NOTHING: row(),
    Asked.BOOKIES: row(taken=(act.BookiesChosen, act.NoBookies, act.MetadataFailed)),
    Asked.CHANGE_WRITE: row(taken=(act.MetadataWritten, act.MetadataConflict, act.MetadataFailed)),
    Asked.CHANGE_READ: row(taken=(act.MetadataRead, act.MetadataFailed)),
    Asked.CLOSE_WRITE: row(taken=(act.MetadataWritten, act.MetadataConflict, act.MetadataFailed)),
    Asked.CLOSE_READ: row(taken=(act.MetadataRead, act.MetadataFailed)),
}
"""Answers of the metadata store and of placement, by question. They are LATE once the writer has failed."""

_ANSWER_TYPES = frozenset().union(*ANSWERS.values())


class LedgerWriter:
    """One ledger's writer, from its creation on.

    ``sync_bytes``: a VD ledger is synced after this many bytes at the latest. ``replication``: replaces the ledger's own policy
    in the simulator, which takes protections away. ``explicit_lac_interval_seconds``: idle time before the writer sends its LAC.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        changes: ChangeMode = ChangeMode.OFF,
        sync_bytes: int = SYNC_BYTES,
        replication: BestEffort | None = None,
        explicit_lac_interval_seconds: float = EXPLICIT_LAC_INTERVAL_SECONDS,
    ) -> None:
        assert metadata.state is LedgerState.OPEN, "only the client that created a ledger writes it"
        self.metadata = metadata
        self.version = version
        self.state = State.OPEN
        self.asked = Asked.NOTHING
        self._replication = replication or replication_of(metadata)
        self._copies = self._replication.copies(metadata)
        self._adds = Adds(metadata, self._replication, sync_bytes, explicit_lac_interval_seconds)
        self._changes = EnsembleChanges(changes)
        self._given_up: BookKeeperError | None = None

    @property
    def cursors(self) -> Cursors:
        return self._adds.cursors

    @property
    def ended(self) -> bool:
        return self.state is State.CLOSED or self.state is State.FAILED

    @property
    def owes_explicit_lac(self) -> bool:
        """Would ``Idle`` send the LAC?"""
        return not self.ended and self._adds.explicit_lac.owes(self.cursors)

    def step(self, event: WriterEvent) -> list[Action]:
        """Raises LedgerClosedError for an append to a ledger that is not open, and IllegalEventError for an event that the tables
        do not allow; then nothing has changed."""
        if TRANSITIONS[self.state].get(type(event)) is not TAKEN:
            return self._not_taken(event)
        match event:
            case act.AddAnswered():
                return self._answered(event)
            case Append():
                return self._append(event)
            case act.SyncAnswered():
                return self._sync_answered(event)
            case BookieBack():
                return self._back(event)
            case PassedOver():
                return self._adds.dropped(event.bookie) if event.bookie in self._ensemble else []
            case HeldUp():
                self._changes.held_up(self.metadata, event.bookies, self.cursors.last_add_pushed)
                return self._change_if_due()
            case Sync():
                return self._adds.sync()
            case Close():
                self.state = State.CLOSING
                return [*self._adds.sync(), *self._close_when_idle()]
            case Abandon():
                return self._fail(event.error)
            case BookiesChanged():
                self._changes.news()
                return self._change_if_due()
            case act.DeadlinePassed():
                return self._late()
            case TellLac():
                return [*self._adds.explicit_lac.tell(self.cursors, self._ensemble)]
            case Idle():
                return [*self._adds.explicit_lac.idle(self.cursors, self._ensemble, event.now, event.quiet_seconds)]
            case ExplicitLacAnswered():
                if event.bookie not in self._adds.known:
                    raise IllegalEventError(self.state, event, NEVER_ASKED)
                if event.bookie in self._ensemble:
                    self._adds.explicit_lac.answered(event.bookie, event.response, event.now)
                return []
        raise AssertionError(f"{event!r} is taken, and nothing takes it")

    def _not_taken(self, event: WriterEvent) -> list[Action]:
        """An event without a TAKEN cell in ``TRANSITIONS``."""
        if isinstance(event, act.SyncAnswered) and not self._adds.durability.volatile:
            raise IllegalEventError(self.state, event, NOT_VOLATILE)
        if type(event) not in _ANSWER_TYPES:
            if cell_of(TRANSITIONS, self.state, event) is LATE:
                return []
            raise LedgerClosedError(f"ledger {self.metadata.ledger_id} is closed; append to a new one")
        cell_of(ANSWERS, self.asked, event)
        return [] if self.ended else self._store_answered(event)

    @property
    def _ensemble(self) -> tuple[str, ...]:
        return self.metadata.last_fragment.ensemble

    def _ask(self, asked: Asked, question: Action) -> list[Action]:
        self.asked = asked
        return [question]

    def _store_answered(self, event: WriterEvent) -> list[Action]:
        asked = self.asked
        match event:
            case act.BookiesChosen():
                return self._bookies_chosen(event)
            case act.NoBookies():
                return self._no_bookies(event)
            case act.MetadataConflict():
                read = Asked.CHANGE_READ if asked is Asked.CHANGE_WRITE else Asked.CLOSE_READ
                return self._ask(read, act.ReadMetadata())
            case act.MetadataWritten() if asked is Asked.CHANGE_WRITE:
                return self._changed(self._changes.written(event.version))
            case act.MetadataWritten():
                return self._closed(self._end(), event.version)
            case act.MetadataRead():
                if not event.metadata.is_same_ledger(self.metadata):
                    raise IllegalEventError(asked, event, f"it is not of ledger {self.metadata.ledger_id}")
                return self._change_read(event) if asked is Asked.CHANGE_READ else self._close_read(event)
            case act.MetadataFailed():
                return self._store_failed(event.error)
        raise AssertionError(f"{event!r} is an answer, and nothing takes it")

    def _store_failed(self, error: BookKeeperError) -> list[Action]:
        """The metadata store timed out. An ensemble change goes on once it answers, because appends have their own deadline. The
        writer fails if the ledger is gone, or in a close."""
        if self.asked is Asked.BOOKIES:
            return self._choose(self._changes.replaced | self._replaceable())
        if self.asked in (Asked.CHANGE_WRITE, Asked.CHANGE_READ) and not isinstance(error, NoSuchLedgerError):
            return self._ask(Asked.CHANGE_READ, act.ReadMetadata())
        self.asked = Asked.NOTHING
        return self._fail(error)

    # -- adds

    def _append(self, event: Append) -> list[Action]:
        m = self.metadata
        if event.count < 1 or (event.count > 1 and m.ensemble_size > m.write_quorum):
            raise IllegalEventError(self.state, event, "a run of entries has one write set")
        if event.byte_length < 0:
            raise IllegalEventError(self.state, event, "a ledger does not get shorter")
        write_set = m.write_set_of(self._adds.cursors.last_add_pushed + 1)
        return self._adds.append(event.count, event.byte_length, write_set, self._changes.replaced)

    def _answered(self, event: act.AddAnswered) -> list[Action]:
        if (why := self._adds.misfit(event)) is not None:
            raise IllegalEventError(self.state, event, why)
        if not isinstance(event.response, Positive):
            return self._refused(event.bookie, event.response, event.last)
        add, synced = self.cursors.pending.get(event.first), event.synced
        if self._changes.failed:
            self._changes.took(event.bookie, self.cursors.released)
        if synced is not None:
            heard = event.bookie in self._ensemble
            return self._adds.heard(event.bookie, synced, add) + self._advance() if heard else []
        if add is None or event.bookie not in add.bookies:
            return []
        add.acks.add(event.bookie)
        return self._advance() if len(add.acks) >= self.metadata.ack_quorum else []

    def _refused(self, bookie: str, response: Response, last: int) -> list[Action]:
        reason = response.reason if isinstance(response, Unknown) else None
        error = refused_at(bookie, reason, self.metadata.ledger_id, self.cursors.last_add_confirmed)
        if error is not None:
            return self._fail(error)
        # A bookie with too much to do has not failed: the driver tries again (``BookieBack``).
        if reason is UnknownReason.TOO_MANY_REQUESTS or bookie not in self._ensemble:
            return []
        self._changes.fail(bookie, last, read_only=reason is UnknownReason.READ_ONLY)
        return self._change_if_due()

    def _back(self, event: BookieBack) -> list[Action]:
        bookie, adds = event.bookie, self._adds
        if bookie not in self._ensemble:
            return []
        adds.explicit_lac.missed((bookie,))
        return adds.send_again(bookie, event.incarnation) if self._changes.back(bookie) else []

    def _advance(self) -> list[Action]:
        leaving, released = self._changes.replaced, self._adds.cursors.released
        if leaving and self._replication.withholds_adds:
            return []
        actions = self._adds.advance(leaving)
        if self._adds.cursors.released == released and not self._changes.failed:
            return actions
        # Pinned bookies may be replaced now: their entries have other copies, or are no longer awaited.
        return [*actions, *self._change_if_due(), *self._close_when_idle()]

    # -- VD ledgers

    def _sync_answered(self, event: act.SyncAnswered) -> list[Action]:
        if (why := self._adds.misfit_sync(event)) is not None:
            raise IllegalEventError(self.state, event, why)
        bookie = event.bookie
        if bookie not in self._ensemble:
            return []
        self._adds.volatile.sync_answered(bookie)
        if event.synced is None:
            return self._refused(bookie, event.response, self.cursors.last_add_pushed)
        return self._adds.heard(bookie, event.synced, None) + self._advance() + self._adds.sync_rest(bookie)

    # -- ensemble changes

    def _change_if_due(self) -> list[Action]:
        """Begin an ensemble change if one is due and none is under way."""
        if not self._changes.failed or self._changes.under_way or not (replaced := self._replaceable()):
            return []
        return self._choose(replaced)

    def _choose(self, replaced: frozenset[str]) -> list[Action]:
        return self._ask(Asked.BOOKIES, self._changes.choose(self.metadata, replaced))

    def _replaceable(self) -> frozenset[str]:
        if self.state not in (State.OPEN, State.CLOSING) or (self.state is State.CLOSING and not self.cursors.pending):
            return frozenset()
        due = self._changes.due(self.metadata, self._copies, self._replication.gives_up)
        holders = self.cursors.confirmed_holders(self._adds.durability, self._changes.replaced)
        return self._replication.replaceable(due, holders, self.metadata)

    def _bookies_chosen(self, event: act.BookiesChosen) -> list[Action]:
        if (why := self._changes.misfit(self.metadata, event.bookies)) is not None:
            raise IllegalEventError(self.asked, event, why)
        # Others failed meanwhile. One metadata write replaces all.
        if more := self._replaceable():
            return self._choose(self._changes.replaced | more)
        write = self._changes.write(self.metadata, self.version, self.cursors.released + 1, event.bookies)
        return self._ask(Asked.CHANGE_WRITE, write)

    def _no_bookies(self, event: act.NoBookies) -> list[Action]:
        if self._changes.outdated:
            return self._choose(self._changes.replaced)
        if kept := self._changes.keep_slow():
            return [*self._adds.send_missed(kept), *self._choose(self._changes.replaced - kept)]
        self.asked = Asked.NOTHING
        lost = quorum_lost(self.metadata, self._changes.unusable, self.metadata.ack_quorum)
        if self._replication.gives_up and lost:
            if self.cursors.last_add_acknowledged > self.cursors.last_add_confirmed:
                return self._fail(left_open(self.metadata.ledger_id, self.cursors.last_add_acknowledged, event.error))
            self._changes.abandon()
            self.cursors.pending.clear()
            self._given_up = event.error
            return self._write_end()
        stay = self._changes.abandon()
        return [*self._advance(), *self._adds.send_missed(stay), *self._close_when_idle()]

    def _change_read(self, event: act.MetadataRead) -> list[Action]:
        """The write of the new ensemble lost, or its outcome is unknown."""
        merged = self._changes.merge(self.metadata, event)
        if merged is None:
            self.asked = Asked.NOTHING
            return self._fail(taken_over(event.metadata, self.cursors.last_add_confirmed))
        return (
            self._changed(merged) if isinstance(merged, act.EnsembleChanged) else self._ask(Asked.CHANGE_WRITE, merged)
        )

    def _changed(self, change: act.EnsembleChanged) -> list[Action]:
        old = self._ensemble
        self.metadata, self.version, self.asked = change.metadata, change.version, Asked.NOTHING
        left = self._changes.finish()
        swap = {a: b for a, b in zip(old, self._ensemble, strict=True) if a in left}
        sends = self._adds.replace(self.metadata, swap)
        again = self._change_if_due()
        return [change, *sends, *again, *self._advance(), *self._close_when_idle()]

    # -- close

    def _close_when_idle(self) -> list[Action]:
        if self.state is not State.CLOSING or self.cursors.pending or self._changes.under_way:
            return []
        return self._write_end()

    def _write_end(self) -> list[Action]:
        self.state = State.WRITING
        return self._ask(Asked.CLOSE_WRITE, act.WriteMetadata(self._end(), self.version))

    def _end(self) -> LedgerMetadata:
        return self.metadata.close_at(self.cursors.last_add_confirmed, self.cursors.length)

    def _closed(self, metadata: LedgerMetadata, version: int) -> list[Action]:
        self.metadata, self.version, self.asked = metadata, version, Asked.NOTHING
        if self._given_up is not None:
            return self._fail(self._given_up)
        self.state = State.CLOSED
        return [act.Finish(metadata, version)]

    def _close_read(self, event: act.MetadataRead) -> list[Action]:
        """The write of the closed record lost."""
        found, cursors = event.metadata, self.cursors
        if found.state is LedgerState.OPEN:
            self.metadata, self.version = found, event.version
            return self._write_end()
        if found.closed and (found.last_entry_id, found.length) == (cursors.last_add_confirmed, cursors.length):
            return self._closed(found, event.version)
        self.asked = Asked.NOTHING
        return self._fail(taken_over(found, cursors.last_add_confirmed))

    # -- ends

    def _late(self) -> list[Action]:
        error = late(self.metadata, self.cursors, self._copies, self._adds.durability, self._changes.failed)
        return self._fail(self._given_up or error)

    def _fail(self, error: BookKeeperError) -> list[Action]:
        self.state = State.FAILED
        return [act.Fail(error)]

"""The writer of a ledger: pipelined adds, acknowledged in order, ensemble changes, and the close.

Law: an append is acknowledged once an ack quorum of its write set has it and every append before it is acknowledged;
from the first sign of a fence on nothing is acknowledged any more. The LAC covers what is acknowledged and synced. The
ledger that ``close`` leaves ends at the last confirmed entry, whoever closed it, or ``close`` fails.

States and what ends them::

    OPEN ──Close──► CLOSING ──nothing pending──► WRITING ──compare-and-set──► CLOSED
      │                │                           │ conflict: read again; still OPEN → try again;
      ├── fenced, unauthorized, deadline ──► FAILED ◄─┘ CLOSED with our end → CLOSED; anything else → FAILED
      └── no bookies to go on with (best effort) ──► WRITING ──► FAILED, the ledger closed at the LAC,
                             or FAILED and left open, if that would cut off what a VD ledger acknowledged

How far it is, ``writer_cursors`` knows. What differs between ledgers is for the policies, ``replication`` (best effort,
guaranteed) and ``durability`` (PD, VD); when bookies are replaced, for ``ensemble_change``.

A bookie that does not answer holds nothing up as long as an ack quorum of each write set does. What it missed is sent
again (``BookieBack``) only if it still counts, that is if it is pending; autorecovery copies the rest.

Sources: bookkeeper-overview, "Writing" and "Closing"; ``PendingAddOp`` and ``LedgerHandle`` of BookKeeper;
docs/decisions/traps.md, trap 3 for ensemble changes, trap 4 for the three outcomes of a close.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from bookspark.errors import BookKeeperError, LedgerClosedError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    BookiesChosen,
    DeadlinePassed,
    EnsembleChanged,
    Fail,
    Finish,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadMetadata,
    SendAdd,
    SendLac,
    SyncAnswered,
    SyncReport,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerState
from bookspark.protocol.ledger.responses import Positive, Response, Unknown, UnknownReason
from bookspark.protocol.writing.durability import SYNC_BYTES, Volatile, durability_of
from bookspark.protocol.writing.ensemble_change import ChangeMode, EnsembleChanges, quorum_lost
from bookspark.protocol.writing.replication import BestEffort, replication_of
from bookspark.protocol.writing.writer_cursors import Cursors
from bookspark.protocol.writing.writer_errors import late, left_open, refused_at, taken_over
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookieBack,
    BookiesChanged,
    Close,
    PassedOver,
    Sync,
    TellLac,
    WriterEvent,
)
from bookspark.protocol.writing.writer_state import PendingAdd, State

__all__ = [
    "SYNC_BYTES",
    "Abandon",
    "Append",
    "BookieBack",
    "BookiesChanged",
    "Close",
    "LedgerWriter",
    "PassedOver",
    "State",
    "Sync",
    "TellLac",
    "WriterEvent",
]


class LedgerWriter:
    """One ledger's writer, from its creation on.

    ``changes``: when failed bookies are replaced. ``sync_bytes``: after how many bytes a VD ledger is synced at the
    latest. ``replication`` in place of the ledger's own policy is for the simulator, which takes protections away.
    """

    def __init__(
        self,
        metadata: LedgerMetadata,
        version: int,
        changes: ChangeMode = ChangeMode.OFF,
        sync_bytes: int = SYNC_BYTES,
        replication: BestEffort | None = None,
    ) -> None:
        assert metadata.state is LedgerState.OPEN, "only the client that created a ledger writes it"
        self.metadata = metadata
        self.version = version
        self.state = State.OPEN
        self._replication = replication or replication_of(metadata)
        self._copies = self._replication.copies(metadata)
        self._durability = durability_of(metadata, sync_bytes)
        self.cursors = Cursors(metadata, self._replication)
        self._changes = EnsembleChanges(changes)
        self._given_up: BookKeeperError | None = None

    def step(self, event: WriterEvent) -> list[Action]:
        """The actions that follow from ``event``; a handle that has failed or is closed does nothing more."""
        if self.state in (State.CLOSED, State.FAILED):
            return []
        match event:
            case AddAnswered():
                return self._answered(event)
            case Append():
                return self._append(event)
            case SyncAnswered():
                return self._sync_answered(event)
            case BookieBack():
                return self._back(event)
            case PassedOver():
                return self._passed_over({event.bookie}.intersection(self.metadata.last_fragment.ensemble))
            case Sync():
                return self._sync()
            case Close():
                self.state = State.CLOSING
                return [*self._sync(), *self._close_when_idle()]
            case Abandon():
                return self._fail(event.error)
            case BookiesChosen():
                return self._bookies_chosen(event)
            case NoBookies():
                return self._no_bookies(event)
            case BookiesChanged():
                self._changes.news()
                return self._change_if_due()
            case DeadlinePassed():
                return self._late()
            case TellLac():
                lac, lafr = self.cursors.last_add_confirmed, self.cursors.last_add_fully_replicated
                return [SendLac(self.metadata.last_fragment.ensemble, lac, lafr)]
            case MetadataFailed():
                again = self._changes.unanswered(self.metadata, self._replaceable(), event.error)
                return again or self._fail(event.error)
            case MetadataWritten():
                if self._changes.target is not None:
                    return self._changed(EnsembleChanged(self._changes.target, event.version))
                return self._closed(self._end(), event.version)
            case MetadataConflict():
                return [ReadMetadata()]
            case MetadataRead():
                return self._metadata_read(event)

    # -- adds

    def _append(self, event: Append) -> list[Action]:
        if self.state is not State.OPEN:
            raise LedgerClosedError(f"ledger {self.metadata.ledger_id} is closed; append to a new one")
        m, cursors = self.metadata, self.cursors
        assert event.count == 1 or m.ensemble_size == m.write_quorum, "a run of entries has one write set"
        op = cursors.push(event.count, event.byte_length, m.write_set_of(cursors.last_add_pushed + 1))
        leaving = self._changes.replaced
        actions = self._send(op, tuple(b for b in op.bookies if b not in leaving) if leaving else op.bookies)
        self._durability.appended(op.last, op.length)
        return actions

    def _send(self, op: PendingAdd, bookies: tuple[str, ...]) -> list[Action]:
        lac, lafr = self.cursors.last_add_confirmed, self.cursors.last_add_fully_replicated
        if not isinstance(self._durability, Volatile):
            return [SendAdd(bookies, op.first, op.last, lac, None, lafr)]
        return [
            SendAdd(group, op.first, op.last, lac, None, lafr, mine)
            for mine, group in self._durability.grouped(bookies)
        ]

    def _send_missed(self, bookies: Collection[str]) -> list[Action]:
        """Send to ``bookies`` what they have not acknowledged and what still counts."""
        again = self._passed_over(bookies)
        sends = [send for op, missing in self.cursors.missed(bookies) for send in self._send(op, missing)]
        return sends + again

    def _passed_over(self, bookies: Iterable[str]) -> list[Action]:
        """``bookies`` may lack what is released, and are not sent it any more."""
        return self._durability.passed_over(bookies, self.cursors.released, self.cursors.pending.values())

    def _answered(self, event: AddAnswered) -> list[Action]:
        if not isinstance(event.response, Positive):
            return self._refused(event.bookie, event.response, event.last)
        if self._changes.failed:
            self._changes.took(event.bookie, self.cursors.released)
        op = self.cursors.pending.get(event.first)
        if event.synced is not None:
            return self._reported(event.bookie, event.synced, op)
        if op is None or event.bookie not in op.bookies:
            return []
        op.acks.add(event.bookie)
        return self._advance() if len(op.acks) >= self.metadata.ack_quorum else []

    def _refused(self, bookie: str, response: Response, last: int) -> list[Action]:
        reason = response.reason if isinstance(response, Unknown) else None
        error = refused_at(bookie, reason, self.metadata.ledger_id, self.cursors.last_add_confirmed)
        if error is not None and self.state is not State.WRITING:  # it may have read in the metadata of this very close
            return self._fail(error)
        # A bookie with too much to do has not failed: the driver tries again (``BookieBack``).
        if reason is UnknownReason.TOO_MANY_REQUESTS or bookie not in self.metadata.last_fragment.ensemble:
            return []
        self._changes.fail(bookie, last)
        return self._change_if_due()

    def _back(self, event: BookieBack) -> list[Action]:
        bookie = event.bookie
        if bookie not in self.metadata.last_fragment.ensemble or not self._changes.back(bookie):
            return []
        self._durability.back(bookie, event.incarnation, self.cursors.pending.values())
        return self._send_missed((bookie,))

    def _advance(self) -> list[Action]:
        """Move the cursors over all that the answers so far let pass."""
        cursors, leaving = self.cursors, self._changes.replaced
        if leaving and self._replication.withholds_adds:
            return []
        released = cursors.released
        actions = cursors.advance(self._durability, leaving)
        if cursors.released == released:
            return actions
        # Bookies that were pinned may be replaced now.
        return [*actions, *self._change_if_due(), *self._close_when_idle()]

    # -- VD ledgers

    def _reported(self, bookie: str, report: SyncReport, op: PendingAdd | None) -> list[Action]:
        """A positive answer of a bookie of a VD ledger, with what it has synced; ``op`` if it is an ack of it."""
        durability = self._durability
        assert isinstance(durability, Volatile), "only a VD ledger's answers report what is synced"
        if bookie not in self.metadata.last_fragment.ensemble:
            return []
        actions, restarted = durability.heard(bookie, report, op, self.cursors.pending.values())
        if restarted:
            actions += self._send_missed((bookie,))
        return actions + self._advance()

    def _sync_answered(self, event: SyncAnswered) -> list[Action]:
        durability, bookie = self._durability, event.bookie
        if not isinstance(durability, Volatile) or bookie not in self.metadata.last_fragment.ensemble:
            return []
        durability.sync_answered(bookie)
        if not isinstance(event.response, Positive) or event.synced is None:
            return self._refused(bookie, event.response, self.cursors.last_add_pushed)
        actions = self._reported(bookie, event.synced, None)
        return actions + durability.sync_rest(bookie, self.cursors.pending.values())

    def _sync(self) -> list[Action]:
        self._durability.want(self.cursors.last_add_pushed, self.cursors.pushed_length)
        return self._durability.acknowledged(self.cursors.last_add_acknowledged)

    # -- ensemble changes

    def _change_if_due(self) -> list[Action]:
        """Begin an ensemble change if there is reason for one and none is under way."""
        if not self._changes.failed or self._changes.under_way or not self._replaceable():
            return []
        return self._changes.choose(self.metadata, self._replaceable())

    def _replaceable(self) -> frozenset[str]:
        """The failed bookies that are to leave, besides those that already do."""
        if self.state not in (State.OPEN, State.CLOSING) or (self.state is State.CLOSING and not self.cursors.pending):
            return frozenset()
        due = self._changes.due(self.metadata, self._copies, self._replication.gives_up)
        leaving = self._changes.replaced
        holders = self.cursors.confirmed_holders(self._durability, leaving)
        return self._replication.replaceable(due - leaving, holders, self.metadata)

    def _bookies_chosen(self, event: BookiesChosen) -> list[Action]:
        if more := self._replaceable():  # others failed while bookies were being chosen: one metadata write for all
            return self._changes.choose(self.metadata, self._changes.replaced | more)
        return self._changes.write(self.metadata, self.version, self.cursors.released + 1, event.bookies)

    def _no_bookies(self, event: NoBookies) -> list[Action]:
        if self._changes.outdated:
            return self._changes.choose(self.metadata, self._changes.replaced)
        lost = quorum_lost(self.metadata, self._changes.failed, self.metadata.ack_quorum)
        if self._replication.gives_up and lost:
            if self.cursors.last_add_acknowledged > self.cursors.last_add_confirmed:
                return self._fail(left_open(self.metadata.ledger_id, self.cursors.last_add_acknowledged, event.error))
            self._changes.abandon()
            self.cursors.pending.clear()
            self.state, self._given_up = State.WRITING, event.error
            return [WriteMetadata(self._end(), self.version)]
        stay = self._changes.abandon()
        return [*self._advance(), *self._send_missed(stay), *self._close_when_idle()]

    def _changed(self, change: EnsembleChanged) -> list[Action]:
        """The record names the new ensemble: acks of those that left are taken back, and those that joined get all that
        counts."""
        old = self.metadata.last_fragment.ensemble
        self.metadata, self.version = change.metadata, change.version
        left = self._changes.finish()
        swap = {a: b for a, b in zip(old, self.metadata.last_fragment.ensemble, strict=True) if a in left}
        self.cursors.replace(swap)
        self._durability.joined(self.metadata, swap.values())
        sends = self._send_missed(swap.values())
        again = self._change_if_due()
        return [change, *sends, *again, *self._advance(), *self._close_when_idle()]

    # -- close

    def _close_when_idle(self) -> list[Action]:
        if self.state is not State.CLOSING or self.cursors.pending or self._changes.under_way:
            return []
        self.state = State.WRITING
        return [WriteMetadata(self._end(), self.version)]

    def _end(self) -> LedgerMetadata:
        return self.metadata.close_at(self.cursors.last_add_confirmed, self.cursors.length)

    def _closed(self, metadata: LedgerMetadata, version: int) -> list[Action]:
        self.metadata, self.version = metadata, version
        if self._given_up is not None:
            return self._fail(self._given_up)
        self.state = State.CLOSED
        return [Finish(metadata, version)]

    def _metadata_read(self, event: MetadataRead) -> list[Action]:
        """The record after a lost compare-and-set (or one whose outcome was not known)."""
        found = event.metadata
        if self._changes.target is not None:
            merged = self._changes.merge(self.metadata, event)
            if merged is None:
                return self._fail(taken_over(found, self.cursors.last_add_confirmed))
            return self._changed(merged) if isinstance(merged, EnsembleChanged) else [merged]
        if found.state is LedgerState.OPEN:
            self.metadata, self.version = found, event.version
            return [WriteMetadata(self._end(), self.version)]
        if found.closed and (found.last_entry_id, found.length) == (
            self.cursors.last_add_confirmed,
            self.cursors.length,
        ):
            return self._closed(found, event.version)
        return self._fail(taken_over(found, self.cursors.last_add_confirmed))

    # -- ends

    def _late(self) -> list[Action]:
        cursors, failed = self.cursors, self._changes.failed
        left = list(cursors.pending.values())
        error = late(self.metadata, left, cursors.last_add_acknowledged, self._copies, self._durability, failed)
        return self._fail(self._given_up or error)

    def _fail(self, error: BookKeeperError) -> list[Action]:
        self.state = State.FAILED
        return [Fail(error)]

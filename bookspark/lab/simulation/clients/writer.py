"""The application that created the ledger and appends to it.

Law: as in ``client``. ``choices`` lists the user's possible actions; nothing else starts an action.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import replace
from typing import Any

from bookspark.errors import BookKeeperError, MetadataStoreError, NotEnoughBookiesError
from bookspark.lab.simulation.clients.client import Client, Sends, Step, content_of
from bookspark.lab.simulation.messages import Add, Request, WriteLac
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.replication import GuaranteedWriteQuorum
from bookspark.protocol.writing.writer import SYNC_BYTES, LedgerWriter, State
from bookspark.protocol.writing.writer_events import (
    Abandon,
    Append,
    BookiesChanged,
    BookiesLost,
    Close,
    ExplicitLacAnswered,
    HeldUp,
    Idle,
    Sync,
    TellLac,
)

# -- Impossible events: without a cause in the world, handed to a machine anyway.
#
# Law: an answer from a bookie that was never asked, to a request that was never sent, or with a content that no bookie can
# give; an unexpected or unfitting answer of the metadata store or of placement; an append that can't be part of the ledger.
# Such an event has no effect: the machine raises or ignores it, and stays unchanged.
#
# The list comes from the writer's requests and results, not from its machine's checks.


STRANGER = "a stranger"
_OTHER = "another stranger"
_YES, _FENCED, _SILENT = Positive(), Unknown(UnknownReason.FENCED), Unknown(UnknownReason.TIMEOUT)
_VERSION = 1000


def for_a_writer(client: Client, pushed: int) -> list[Any]:
    """Impossible events for the machine of a writer that appended everything up to ``pushed``."""
    metadata: LedgerMetadata = client.machine.metadata
    volatile = metadata.ledger_type is LedgerType.VD_JOURNAL
    striped = metadata.ensemble_size > metadata.write_quorum
    return [
        *_of_bookies(client.machine, metadata, pushed, volatile),
        *_of_the_store(client, metadata),
        *_of_placement(client, metadata),
        Append(0, 0),
        Append(1, -1),
        *([Append(2, 2)] if striped else []),
    ]


def _of_bookies(machine: Any, metadata: LedgerMetadata, pushed: int, volatile: bool) -> Iterator[Any]:
    last = pushed + 1
    yield ExplicitLacAnswered(STRANGER, _SILENT, 0.0)
    for bookie in metadata.last_fragment.ensemble:
        mine = machine._adds.durability.grouped((bookie,))[0][0] if volatile else Assignment(0)
        said, ahead = act.SyncReport(NO_ENTRY, 1, mine), act.SyncReport(mine.next_held(last), 1, mine)
        ack = said if volatile else None
        yield act.AddAnswered(bookie, last, last, _YES, ack)
        yield act.AddAnswered(bookie, last, last, _FENCED)
        yield act.SyncAnswered(bookie, _YES, ahead)
        yield act.SyncAnswered(bookie, _YES)
        yield act.SyncAnswered(bookie, _FENCED, said)
        for add in machine.cursors.pending.values():
            first, end = add.first, add.last
            yield act.AddAnswered(STRANGER, first, end, _FENCED)
            yield act.AddAnswered(STRANGER, first, end, _YES, ack)
            yield act.AddAnswered(bookie, first, end + 1, _YES, ack)
            yield act.AddAnswered(bookie, first, end, _FENCED, said)
            yield act.AddAnswered(bookie, first, end, _YES, None if volatile else said)
            if volatile:
                yield act.AddAnswered(bookie, first, end, _YES, ahead)
    if not volatile:
        yield act.SyncAnswered(metadata.last_fragment.ensemble[0], _FENCED)
    yield act.SyncAnswered(STRANGER, _FENCED)


def _of_the_store(client: Client, metadata: LedgerMetadata) -> Iterator[Any]:
    reads = isinstance(client.store, act.ReadMetadata)
    if not reads:
        yield act.MetadataRead(metadata, _VERSION)
    if client.store is None or reads:
        yield act.MetadataWritten(_VERSION)
        yield act.MetadataConflict()
    if client.store is None and client.choosing is None:
        yield act.MetadataFailed(MetadataStoreError("nobody asked"))
    if reads:
        yield act.MetadataRead(replace(metadata, ledger_id=metadata.ledger_id + 1), _VERSION)


def _of_placement(client: Client, metadata: LedgerMetadata) -> Iterator[Any]:
    if client.choosing is None:
        yield act.BookiesChosen((STRANGER,))
        yield act.NoBookies(NotEnoughBookiesError("nobody asked"))
        return
    wanted = len(client.choosing.replaced)
    stays = [bookie for bookie in metadata.last_fragment.ensemble if bookie not in client.choosing.replaced]
    yield act.BookiesChosen((STRANGER,) * (wanted + 1))
    yield act.BookiesChosen((STRANGER, _OTHER)[: wanted - 1] if wanted < 3 else ())
    if wanted > 1:
        yield act.BookiesChosen((STRANGER,) * wanted)
    if stays:
        yield act.BookiesChosen((stays[0], *(f"{STRANGER} {i}" for i in range(wanted - 1))))


# -- The writer


_LAC_INTERVAL_SECONDS = 1.0
_LAC_STEP_SECONDS = 100.0
"""Time between two explicit LACs, in seconds. After it, a LAC that a bookie did not accept is due again."""
_APPEND, _SYNC, _CLOSE, _BOOKIES_CHANGED, _TELL_LAC = Append(1, 1), Sync(), Close(), BookiesChanged(), TellLac()
_ENDS = (Abandon(BookKeeperError("the simulation has the client end")), act.DeadlinePassed())


class WriterClient(Client):
    kind = "writer"
    seen = ("defect", "told_end", "last_add_confirmed", "last_add_fully_replicated", "cut_off", "outcome")

    def __init__(self, metadata: LedgerMetadata, version: int, options: SimulationOptions) -> None:
        super().__init__()
        unpinned = metadata.replication is Replication.GUARANTEED and not options.pinning
        replication = WithoutPinning() if unpinned else None
        sync_bytes = SYNC_BYTES if options.entries < 3 else 2
        self.machine = LedgerWriter(
            metadata, version, options.ensemble_changes, sync_bytes, replication, _LAC_INTERVAL_SECONDS
        )
        self.appends_left = options.entries
        self.may_close = options.closes
        self.may_abandon = options.abandons
        self.tells_left = options.explicit_lacs
        self.hold_ups_left = options.hold_ups
        self.lost_bookies_left = options.lost_bookies
        self.left: tuple[str, ...] = ()
        """Replaced bookies. A late report may still name them as holding the writer up."""
        self.failed: tuple[str, ...] = ()
        """If the writer may give up: the bookies that refused a request, or did not answer in time."""
        self.may_sync = metadata.ledger_type is LedgerType.VD_JOURNAL
        self.may_retry = False
        """Whether an ensemble change found no bookies."""
        self.last_add_confirmed = NO_ENTRY
        """Last confirmation for the user."""
        self.last_add_fully_replicated = NO_ENTRY
        self.told_end: tuple[int, int] | None = None
        """Last entry and length of the closed ledger, as reported to its user."""
        self.last_add_acknowledged = NO_ENTRY
        """The highest acknowledged id, as reported to the user."""
        self.last_add_pushed = NO_ENTRY
        self.cut_off = 0
        """Entries left out by the writer's own close: of the acknowledged entries, or after a successful close, of all."""

    @property
    def done_with(self) -> int:
        """Nothing up to this id is sent any more."""
        if self.machine is None:
            return NO_ENTRY
        guaranteed = self.machine.metadata.replication is Replication.GUARANTEED
        return self.last_add_fully_replicated if guaranteed else self.last_add_confirmed

    def choices(self) -> list[Any]:
        if self.outcome:
            return []
        machine = self.machine
        possible: list[Any] = []
        if self.appends_left > 0:
            possible.append(_APPEND)
        if self.may_sync and machine is not None and machine.cursors.last_add_pushed > NO_ENTRY:
            possible.append(_SYNC)
        if self.may_close:
            possible.append(_CLOSE)
        if self.may_retry:
            possible.append(_BOOKIES_CHANGED)
        if self.tells_left > 0 and self.last_add_confirmed > NO_ENTRY:
            possible.append(_TELL_LAC)
        if self.tells_left > 0 and machine is not None and machine.owes_explicit_lac:
            possible.append(self.idle())
        if self.may_abandon:
            possible += _ENDS
        if self.hold_ups_left and machine is not None and machine.cursors.pending:
            possible += [HeldUp((bookie,)) for bookie in (*machine.metadata.last_fragment.ensemble, *self.left)]
        if self.lost_bookies_left:
            possible += [BookiesLost((bookie,)) for bookie in self._ensemble]
        return possible

    def cannot_be(self) -> list[Any]:
        return [] if self.machine is None else for_a_writer(self, self.last_add_pushed)

    def step(self, event: Any, options: SimulationOptions) -> Step:
        match event:
            case Append():
                self.appends_left -= 1
                self.last_add_pushed += 1
            case Sync():
                self.may_sync = False
            case TellLac() | Idle():
                self.tells_left -= 1
            case HeldUp():
                self.hold_ups_left -= 1
            case BookiesLost():
                self.lost_bookies_left -= 1
                if options.ensemble_changes is not ChangeMode.OFF:
                    self.failed = tuple(sorted({*self.failed, *event.bookies}))
            case act.AddAnswered() | act.SyncAnswered() if not isinstance(event.response, Positive):
                if options.ensemble_changes is not ChangeMode.OFF:
                    self.failed = tuple(sorted({*self.failed, event.bookie}))
            case ExplicitLacAnswered():
                event = replace(event, now=self._now)
            case Close():
                self._no_more()
            case act.NoBookies():
                self.may_retry = True
            case BookiesChanged():
                self.may_retry = False
        before, ensemble = self.machine and self.machine.metadata, self._ensemble
        step = super().step(event, options)
        if self.outcome:
            self._may_have_given_up(before)
            self.failed = ()
        if self.machine is not None and self._ensemble != ensemble:
            if act.EnsembleChanged(self.machine.metadata, self.machine.version) not in step[1]:
                self.defect = "its ensemble is another one, and it told nobody"
            # Kept only while hold-ups are possible, so that other worlds do not depend on it.
            self.left = tuple(sorted({*self.left, *ensemble} - {*self._ensemble})) if self.hold_ups_left else ()
        if isinstance(event, TellLac | Idle) and self.machine is not None:
            self._tells_its_lac(event, step[0])
        if isinstance(event, Abandon | act.DeadlinePassed) and self.machine is not None:
            self.defect = f"it was told {type(event).__name__}, and has not ended"
        if isinstance(self.store, act.WriteMetadata) and self.store.metadata.closed:
            self._leaves_out(self.last_add_acknowledged - self.store.metadata.last_entry_id)
        if self.machine is not None and self.machine.state is not State.OPEN:
            # The writer gave up, and closes the ledger itself.
            self._no_more()
        return step

    @property
    def _ensemble(self) -> tuple[str, ...]:
        return () if self.machine is None else self.machine.metadata.last_fragment.ensemble

    @property
    def _now(self) -> float:
        """Time passes with the sending of explicit LACs."""
        return -_LAC_STEP_SECONDS * self.tells_left

    def idle(self) -> Idle:
        """An event to send the LAC. The clock makes a step, so that a LAC that was not accepted is due again."""
        return Idle(self._now + _LAC_STEP_SECONDS, _LAC_STEP_SECONDS)

    def _tells_its_lac(self, event: TellLac | Idle, sends: Sends) -> None:
        """Check that bookies get the user's LAC and LAFR, and that the user's request reaches all bookies."""
        now = WriteLac(self.last_add_confirmed, self.last_add_fully_replicated)
        told = {bookie for bookie, request in sends if isinstance(request, WriteLac)}
        if any(isinstance(request, WriteLac) and request != now for _, request in sends):
            self.defect = f"it tells bookies another LAC or LAFR than its user: {sends}"
        if isinstance(event, TellLac) and not told.issuperset(self._ensemble):
            self.defect = f"it was to tell its LAC, and told {', '.join(sorted(told)) or 'nobody'}"
        if isinstance(event, Idle) and self.machine.owes_explicit_lac:
            self.defect = "it was idle for long, and bookies that may not know the LAC were not told"

    def _add(self, action: act.SendAdd) -> Request:
        contents = tuple(content_of(i) for i in range(action.first, action.last + 1))
        lac, lafr = action.last_add_confirmed, action.last_add_fully_replicated
        if (lac, lafr) != (self.last_add_confirmed, self.last_add_fully_replicated):
            self.defect = (
                f"it told bookies LAC {lac} and LAFR {lafr} with entry {action.first}, and its user other ones"
            )
        return Add(action.first, action.last, lac, lafr, contents, recovery=False, assignment=action.assignment)

    def _told(self, action: act.Action) -> None:
        if isinstance(action, act.Acknowledge):
            self._is_news(action.last_add_acknowledged, self.last_add_acknowledged)
            self.last_add_acknowledged = action.last_add_acknowledged
        if isinstance(action, act.Confirm):
            self._is_news(action.last_add_confirmed, self.last_add_confirmed)
            self.last_add_confirmed = action.last_add_confirmed
            self.last_add_acknowledged = max(self.last_add_acknowledged, self.last_add_confirmed)
        if isinstance(action, act.Release):
            self._is_news(action.last_add_fully_replicated, self.last_add_fully_replicated)
            self.last_add_fully_replicated = action.last_add_fully_replicated

    def _end(self, action: act.Finish | act.Fail) -> None:
        super()._end(action)
        self.told_end = self._end_of(action)
        if self.told_end is not None:
            self._leaves_out(self.last_add_pushed - min(self.told_end[0], self.last_add_acknowledged))
        # The end is the only fact that stays.
        self.last_add_acknowledged = self.last_add_pushed = NO_ENTRY
        self._no_more()
        self.may_retry = self.may_abandon = False
        self.tells_left = self.hold_ups_left = self.lost_bookies_left = 0
        self.left = ()

    def _may_have_given_up(self, metadata: LedgerMetadata | None) -> None:
        """Check that a writer that gave up lacked an ack quorum of the bookies that it wrote to. Its final record may name
        others."""
        if metadata is None or self.outcome != NotEnoughBookiesError.__name__:
            return
        sets = [metadata.write_set_of(metadata.last_fragment.first_entry_id + i) for i in range(metadata.ensemble_size)]
        if all(len({*one} - {*self.failed}) >= metadata.ack_quorum for one in sets):
            self.defect = f"it gave up, and only {', '.join(self.failed) or 'nobody'} had failed"

    def _is_news(self, told: int, before: int) -> None:
        if told <= before:
            self.defect = f"it told its user {told}, after {before}"

    def _leaves_out(self, entries: int) -> None:
        self.cut_off = max(self.cut_off, entries)

    def _no_more(self) -> None:
        self.appends_left, self.may_close, self.may_sync = 0, False, False


class WithoutPinning(GuaranteedWriteQuorum):
    """The guaranteed policy with its protection switched off: every failed bookie is replaced."""

    __slots__ = ()

    def replaceable(
        self, failed: frozenset[str], confirmed: Iterable[Set[str]], metadata: LedgerMetadata
    ) -> frozenset[str]:
        return failed

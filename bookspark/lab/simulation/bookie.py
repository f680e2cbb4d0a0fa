"""A bookie in the simulation: the real decisions of ``bookie_ledger`` and ``bookie_boot`` over a disk that can forget.

Law: the protocol's functions decide every answer, and the syncs that must precede it; this module only stores. The disk has a
durable and a volatile part. Control records are durable before the answer that needs them, entries after the next ``sync``. A
crash loses the volatile part, or everything. The bookie does not know its name (``messages``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

from bookspark.lab.simulation import messages as msg
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.lab.simulation.values import clone
from bookspark.protocol.bookie.bookie_boot import (
    NO_LOSSY_BOOT,
    LossyBootNoted,
    PhaseOne,
    answer_unsure,
    first_contact,
    is_lossy,
    phase_one,
)
from bookspark.protocol.bookie.bookie_ledger import (
    BookieLedger,
    ControlRecord,
    EntriesLost,
    FenceNoted,
    LimboNoted,
    acked_after_sync,
    answer_absent,
    answer_last_add_confirmed,
    same_content,
)
from bookspark.protocol.bookie.garbage_collection import NOTHING_COLLECTED, CollectionNoted, note_collection
from bookspark.protocol.ledger.actions import SyncReport
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType
from bookspark.protocol.ledger.responses import Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment, SyncCursor
from bookspark.protocol.repair.bookie_healing import HeldListed, LimboIsCleared

LEDGER_ID = 7

_CONFLICT = Unknown(UnknownReason.CONFLICT)


class Found(NamedTuple):
    """Facts for a restarted bookie from beyond its own disk. ``ledgers``: the metadata of all ledgers."""

    ledgers: tuple[LedgerMetadata, ...]
    highest_ledger_id: int = LEDGER_ID
    """The highest assigned ledger id."""
    unclean: bool = False
    """Whether adds of other ledgers left the marker."""


class Row(NamedTuple):
    content: str
    last_add_confirmed: int
    last_add_fully_replicated: int


@dataclass(slots=True)
class Unsure:
    """An add that waits for the ledger's metadata. ``answer`` follows from the metadata; None until then."""

    message: msg.Message
    answer: Response | None = None


@dataclass(slots=True)
class SimulatedBookie:
    """A bookie's memory and disk, for one ledger."""

    ledger_id: ClassVar[int] = LEDGER_ID
    master_key: ClassVar[bytes] = b"key"

    ledger: BookieLedger | None = None
    rows: dict[int, Row] = field(default_factory=dict)
    unsynced: set[int] = field(default_factory=set)
    control: BookieLedger | None = None
    """The state rebuilt from the control log's records."""
    mark: LossyBootNoted = NO_LOSSY_BOOT
    collected: CollectionNoted = NOTHING_COLLECTED
    unclean: bool = False
    """The marker: adds were acked unsynced."""
    waiting: list[msg.Message] = field(default_factory=list)
    """Acks that wait for the sync, and sync requests."""
    unsure: list[Unsure] = field(default_factory=list)
    booting: PhaseOne | None = None
    """Phase one in progress; the bookie does not serve."""
    cursor: SyncCursor | None = None
    """The sync cursor of a written VD ledger (volatile durability); None for other ledgers."""
    incarnation: int = 1
    """Number of the bookie's process, counted only for VD ledgers."""
    lost_boots: int = 0
    """Times that the bookie may have lost entries; for the checkers."""
    gone: bool = False
    """Gone for good, with its disks."""
    defect: str = ""
    """Error raised by a decision."""

    # -- requests

    def deliver(self, message: msg.Message, options: SimulationOptions, sync_at_once: bool) -> list[msg.Message]:
        """Take a request. Returns the immediate answers."""
        request = message.body
        match request:
            case msg.Add():
                return self._add(message, request, self._met(), options, sync_at_once)
            case msg.Read():
                return _reply(message, self._read(request))
            case msg.ReadLac():
                return _reply(message, self._read_lac(request))
            case msg.HeldFrom():
                held = [i for i in self.rows if i >= request.first] if options.later_entries else []
                last = max(held, default=request.first - 1)
                return _reply(message, msg.HeldFromAnswer(request.first, last, Positive()))
            case msg.WriteLac():
                return _reply(message, self._write_lac(request))
            case msg.SyncLedger():
                return self._sync(message, request, sync_at_once)
            case msg.Held():
                return _reply(message, self._held())
            case msg.Clear():
                # Skipped if the ledger was deleted and collected meanwhile.
                if self.ledger is not None:
                    lost = [EntriesLost(self.ledger.ledger_id, first, last) for first, last in request.lost]
                    for record in lost:
                        self.ledger.replay(record)
                    self._keep((*lost, *self.ledger.clear_limbo(request.boot).records))
                return _reply(message, LimboIsCleared())
        raise AssertionError(f"{request} is no request")

    def _add(
        self,
        message: msg.Message,
        request: msg.Add,
        ledger: BookieLedger,
        options: SimulationOptions,
        sync_at_once: bool,
    ) -> list[msg.Message]:
        decision = ledger.admit_add(self.master_key, request.recovery)
        if decision.ask_metadata:
            self.unsure.append(Unsure(message))
            return []
        ids = range(request.first, request.last + 1)
        if not isinstance(decision.response, Positive):
            return _reply(message, msg.AddAnswer(request.first, request.last, decision.response))
        contents = dict(zip(ids, request.contents, strict=True))
        if not all(_same(self.rows[i].content, contents[i]) for i in ids if i in self.rows):
            return _reply(message, msg.AddAnswer(request.first, request.last, _CONFLICT))
        ledger.added(decision, request.last_add_confirmed, request.last_add_fully_replicated)
        self.ledger = ledger
        self._keep(decision.records)
        for i in ids:
            if i not in self.rows:
                self.rows[i] = Row(contents[i], request.last_add_confirmed, request.last_add_fully_replicated)
                self.unsynced.add(i)
        report = self._report(request.assignment)
        answer = _reply(message, msg.AddAnswer(request.first, request.last, Positive(), report))
        volatile = options.ledger_type is LedgerType.VD_JOURNAL
        recovery = request.recovery and options.sync_on_recovery_add
        if self.unsynced.isdisjoint(ids):
            return answer
        if acked_after_sync(recovery=recovery, volatile=volatile, journal_write_data=options.journal_write_data):
            self.waiting += answer
            return self.sync() if sync_at_once else []
        self.unclean = self.unclean or not volatile
        return answer + (self.sync() if sync_at_once else [])

    def _sync(self, message: msg.Message, request: msg.SyncLedger, sync_at_once: bool) -> list[msg.Message]:
        """Sync all data that has arrived, and answer then."""
        refusal = self._sync_answer(request)
        if not isinstance(refusal.response, Positive):
            return _reply(message, refusal)
        self.waiting += [msg.Message(message.client, request)]
        return self.sync() if sync_at_once or not self.unsynced else []

    def _sync_answer(self, request: msg.SyncLedger) -> msg.SyncAnswer:
        response = self._met().admit_sync(self.master_key).response
        return msg.SyncAnswer(response, self._report(request.assignment) if isinstance(response, Positive) else None)

    def _report(self, assignment: Assignment | None) -> SyncReport | None:
        """The sync report in every answer to the writer of a VD ledger."""
        if assignment is None:
            return None
        if self.cursor is None or self.cursor.assign(assignment):
            self.cursor = SyncCursor((i, i) for i in sorted(self.rows.keys() - self.unsynced))
            self.cursor.assign(assignment)
        return SyncReport(self.cursor.last_add_synced_for(assignment), self.incarnation, assignment)

    def _read(self, request: msg.Read) -> msg.Answer:
        if request.fence:
            self._fence()
        contents: list[str] = []
        for entry_id in range(request.first, request.last + 1):
            row = self.rows.get(entry_id)
            if row is None:
                break
            contents.append(row.content)
        last = request.first + len(contents) - 1
        following: Response = Positive()
        if last < request.last:
            following = answer_absent(self.ledger, last + 1, storage_damaged=False)
        return msg.ReadAnswer(request.first, last, following, tuple(contents))

    def _read_lac(self, request: msg.ReadLac) -> msg.Answer:
        if request.fence:
            self._fence()
        if self.ledger is None:
            return msg.LacAnswer(answer_absent(None, 0, storage_damaged=False))
        response = answer_last_add_confirmed(self.ledger)
        if not isinstance(response, Positive):
            return msg.LacAnswer(response)
        return msg.LacAnswer(response, self.ledger.last_add_confirmed, self.ledger.last_add_fully_replicated)

    def _fence(self) -> None:
        self.ledger = self._met()
        self._keep(self.ledger.fence(self.master_key).records)

    def _write_lac(self, request: msg.WriteLac) -> msg.WriteLacAnswer:
        ledger = self._met()
        decision = ledger.write_last_add_confirmed(self.master_key, request.last_add_confirmed)
        if isinstance(decision.response, Positive):
            ledger.note(NO_ENTRY, request.last_add_fully_replicated)
            self.ledger = ledger
            self._keep(decision.records)
        return msg.WriteLacAnswer(decision.response)

    def _met(self) -> BookieLedger:
        """The ledger's state, or a new state, which the caller keeps if it accepts the request."""
        return self.ledger or first_contact(self.ledger_id, self.mark, self.collected)

    def _held(self) -> HeldListed:
        synced = sorted(self.rows.keys() - self.unsynced)
        return HeldListed(tuple((i, i) for i in synced))

    def _keep(self, records: Iterable[ControlRecord]) -> None:
        for record in records:
            if self.control is None:
                self.control = BookieLedger(self.ledger_id)
            self.control.replay(record)

    # -- Adds that wait for the metadata

    def metadata_read(self, metadata: LedgerMetadata | None, name: str) -> None:
        """Give the oldest waiting add the present metadata."""
        waiting = next(unsure for unsure in self.unsure if unsure.answer is None)
        waiting.answer = answer_unsure(name, metadata)

    def metadata_told(self, options: SimulationOptions, sync_at_once: bool) -> list[msg.Message]:
        """Decide the oldest add with metadata, by the bookie's present knowledge."""
        unsure = next(unsure for unsure in self.unsure if unsure.answer is not None)
        self.unsure.remove(unsure)
        request = unsure.message.body
        assert isinstance(request, msg.Add) and unsure.answer is not None
        if not isinstance(unsure.answer, Positive):
            return _reply(unsure.message, msg.AddAnswer(request.first, request.last, unsure.answer))
        ledger = self._met()
        ledger.fence_is_sure()
        return self._add(unsure.message, request, ledger, options, sync_at_once)

    @property
    def owes_answers(self) -> bool:
        """Whether a client waits for a sync, or for metadata that the bookie reads."""
        return bool(self.waiting or self.unsure)

    def forget(self, client: int) -> None:
        self.waiting = [message for message in self.waiting if message.client != client]

    # -- The disk

    def sync(self) -> list[msg.Message]:
        """Make all written data durable. Returns the acks that waited for it."""
        waiting, self.waiting = self.waiting, []
        if self.cursor is not None:
            for entry_id in sorted(self.unsynced):
                self.cursor.synced(entry_id, entry_id)
        self.unsynced = set()
        self.unclean = False
        answers: list[msg.Message] = []
        for message in waiting:
            if isinstance(message.body, msg.SyncLedger):
                answers += _reply(message, self._sync_answer(message.body))
            else:
                answers.append(message)
        return answers

    def collect(self, options: SimulationOptions, ledger_ids: Collection[int]) -> None:
        """Forget these deleted ledgers, if they are on this disk."""
        if options.collection_mark:
            self.collected = note_collection(self.collected, ledger_ids)
        if self.ledger_id not in ledger_ids:
            return
        self.ledger = self.control = self.cursor = None
        self.rows = {}
        self.unsynced = set()

    def crash(self, found: Found, name: str, options: SimulationOptions) -> None:
        """End the process and start it again. The volatile part is lost, and a lossy boot begins phase one. An unfinished
        phase one starts over: its end removes the marker, and of its records only the mark may be durable already."""
        everything = options.crash_loses is CrashLoses.EVERYTHING
        unclean = self.unclean or found.unclean or self.booting is not None
        lossy = is_lossy(unclean=unclean, directory_lost=everything)
        kept = {} if everything else {i: row for i, row in self.rows.items() if i not in self.unsynced}
        control = None if everything else self.control
        mark = self.mark if self.booting is None or not options.lossy_boot_mark else self.booting.mark
        mark = NO_LOSSY_BOOT if everything else mark
        collected = NOTHING_COLLECTED if everything else self.collected
        lost_boots = self.lost_boots + (lossy and (everything or self.unclean) and self.booting is None)
        incarnation = self.incarnation + (options.ledger_type is LedgerType.VD_JOURNAL)
        self.__init__(  # type: ignore[misc]
            rows=kept,
            control=control,
            mark=mark,
            collected=collected,
            incarnation=incarnation,
            lost_boots=lost_boots,
        )
        self._replay()
        if lossy:
            self.booting = phase_one(name, found.ledgers, found.highest_ledger_id, mark)

    def depart(self) -> None:
        """Leave for good. Pending requests get no answer."""
        self.__init__(lost_boots=self.lost_boots + 1, incarnation=self.incarnation, gone=True)  # type: ignore[misc]

    def booted(self, options: SimulationOptions) -> None:
        """End phase one with its records durable, and serve. A protection that is switched off leaves no record."""
        assert self.booting is not None
        if options.lossy_boot_mark:
            self.mark = self.booting.mark
        self._keep(
            record
            for record in self.booting.records
            if record.ledger_id == self.ledger_id
            and (options.limbo or not isinstance(record, LimboNoted))
            and (options.boot_fencing or not isinstance(record, FenceNoted))
        )
        self.booting = None
        self._replay()

    def _replay(self) -> None:
        """Rebuild the ledger's state from the control log and the entries."""
        self.ledger = clone(self.control)
        if self.ledger is None and self.rows:
            self.ledger = self._met()
        if self.ledger is not None:
            for row in self.rows.values():
                self.ledger.note(row.last_add_confirmed, row.last_add_fully_replicated)


class SecondsBookie(SimulatedBookie):
    """A bookie's memory and disk, for the second ledger."""

    __slots__ = ()

    ledger_id = LEDGER_ID + 1
    master_key = b"other key"


def _reply(message: msg.Message, answer: msg.Answer) -> list[msg.Message]:
    return [] if message.client == msg.NOBODY else [msg.Message(message.client, answer)]


def _same(kept: str, added: str) -> bool:
    return same_content((1, kept.encode()), (1, added.encode()))

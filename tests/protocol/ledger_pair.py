"""A ledger's writer, recoverers, bookies and metadata, moved by hand: scenarios read like the papers.

Law: every decision is made by the real machines (``LedgerWriter``, ``LedgerRecovery``, ``BookieLedger``,
``SyncCursor``). This module carries requests and answers, one at a time and in the order of the test. Nothing
moves by itself.

::

    pair = LedgerPair(e=3, wq=3, aq=2)          # bookies b1, b2, b3; any other name is a spare
    pair.append()                               # e0 is sent to all three
    pair.writer.answers("b1", 0)                # b1 stores e0, and its answer arrives
    pair.writer.parks("b2", 0)                  # b2 stores e0, and its answer is delayed until ``releases``
    pair.writer.refuses("b3", 0)                # b3 does not store e0, and its refusal arrives
    pair.writer.chooses("b4")                   # in place of b3
    pair.writer.writes()                        # the compare-and-set
"""

from __future__ import annotations

from dataclasses import replace

from bookspark.errors import NotEnoughBookiesError
from bookspark.protocol.bookie.bookie_ledger import BookieLedger, answer_absent, answer_last_add_confirmed
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata, LedgerType, Replication
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import SyncCursor
from bookspark.protocol.reading.recovery import LedgerRecovery
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import SYNC_BYTES, Append, BookieBack, LedgerWriter
from tests.protocol.ledgers import metadata

KEY = b""
UNREACHABLE = Unknown(UnknownReason.UNREACHABLE)
IO_ERROR = Unknown(UnknownReason.IO_ERROR)


class Bookie:
    """A bookie. PD adds and recovery writes are synced at once, VD adds by ``sync``."""

    def __init__(self, name):
        self.name = name
        self.ledger = None
        self.entries = {}
        self.synced = set()
        self.cursor = SyncCursor()
        self.incarnation = 1

    def take(self, request, recovery):
        """Carry out a request; returns the answering event."""
        match request:
            case act.SendAdd():
                return self._add(request, recovery)
            case act.SendSync():
                response = (self.ledger or BookieLedger(7)).admit_sync(KEY).response
                if not isinstance(response, Positive):
                    return act.SyncAnswered(self.name, response)
                self._assign(request.assignment)
                self.sync()
                return act.SyncAnswered(self.name, response, self._report(request.assignment))
            case act.SendReadLac():
                ledger = self._fenced() if request.fence else self.ledger
                if ledger is None:
                    return act.LacAnswered(self.name, answer_absent(None, 0, storage_damaged=False))
                response = answer_last_add_confirmed(ledger)
                return act.LacAnswered(self.name, response, ledger.last_add_confirmed, ledger.last_add_fully_replicated)
            case act.SendRead():
                return self._read(request)
            case act.SendListHeld():
                last = max((i for i in self.entries if i >= request.first), default=request.first - 1)
                return act.HeldAnswered(self.name, request.first, last, Positive())
        raise AssertionError(request)

    def sync(self):
        """Sync all entries."""
        for entry_id in sorted(self.entries.keys() - self.synced):
            self.cursor.synced(entry_id, entry_id)
        self.synced = set(self.entries)

    def crash(self):
        """The process dies and starts again, without its unsynced entries."""
        self.entries = {i: content for i, content in self.entries.items() if i in self.synced}
        self.cursor = SyncCursor((i, i) for i in self.entries)
        self.incarnation += 1

    def _add(self, request, recovery):
        ledger = self.ledger or BookieLedger(7)
        decision = ledger.admit_add(KEY, recovery)
        answer = act.AddAnswered(self.name, request.first, request.last, decision.response)
        if not isinstance(decision.response, Positive):
            return answer
        self.ledger = ledger
        ledger.added(decision, request.last_add_confirmed, request.last_add_fully_replicated)
        contents = request.entries or [f"e{i}" for i in range(request.first, request.last + 1)]
        for entry_id, content in zip(range(request.first, request.last + 1), contents, strict=True):
            assert self.entries.setdefault(entry_id, content) == content, f"{self.name}: two contents of {entry_id}"
            if request.assignment is None:
                self.synced.add(entry_id)
            if entry_id in self.synced:
                self.cursor.synced(entry_id, entry_id)
        if request.assignment is None:
            return answer
        self._assign(request.assignment)
        return replace(answer, synced=self._report(request.assignment))

    def _assign(self, assignment):
        if self.cursor.assign(assignment):
            self.cursor = SyncCursor((i, i) for i in sorted(self.synced & self.entries.keys()))
            self.cursor.assign(assignment)

    def _report(self, assignment):
        return act.SyncReport(self.cursor.last_add_synced_for(assignment), self.incarnation, assignment)

    def _fenced(self):
        self.ledger = self.ledger or BookieLedger(7)
        self.ledger.fence(KEY)
        return self.ledger

    def _read(self, request):
        if request.fence:
            self._fenced()
        last = request.first - 1
        while last < request.last and last + 1 in self.entries:
            last += 1
        following = Positive() if last == request.last else answer_absent(self.ledger, last + 1, storage_damaged=False)
        contents = [self.entries[i] for i in range(request.first, last + 1)]
        return act.ReadAnswered(self.name, request.first, last, following, contents, 10 * (last + 1))


class Client:
    """A machine with its outstanding requests."""

    def __init__(self, pair, machine, recovery):
        self.pair = pair
        self.machine = machine
        self.recovery = recovery
        self.sent = []
        """Unanswered requests as (bookie, request), in the order of sending."""
        self.parked = []
        """Parked answers as (bookie, request, answer): the bookie has acted, but the client does not know."""
        self.wanted = []
        """Outstanding requests to the metadata store and to placement."""
        self.told = []
        """Actions for the machine's user."""

    def step(self, event):
        for action in self.machine.step(event):
            match action:
                case act.SendAdd() | act.SendSync():
                    self.sent += [(bookie, action) for bookie in action.bookies]
                case act.SendRead() | act.SendReadLac() | act.SendListHeld():
                    self.sent.append((action.bookie, action))
                case act.ReadMetadata() | act.WriteMetadata() | act.ChooseBookies():
                    self.wanted.append(action)
                case _:
                    self.told.append(action)

    # -- bookies

    def waits_for(self, bookie):
        """First ids of unanswered adds and reads of ``bookie``; −1 for a LAC read, "sync" for a sync."""
        return [_name(request) for name, request in self.sent if name == bookie]

    def answers(self, bookie, *entry_ids):
        """``bookie`` carries out its requests (for ``entry_ids``, or all), and the answers arrive."""
        for request in self._requests(bookie, entry_ids):
            self.step(self.pair.bookies(bookie).take(request, self.recovery))

    def parks(self, bookie, *entry_ids):
        """``bookie`` carries out its requests; the answers are delayed."""
        for request in self._requests(bookie, entry_ids):
            self.parked.append((bookie, request, self.pair.bookies(bookie).take(request, self.recovery)))

    def releases(self, bookie, *entry_ids):
        """Parked answers arrive."""
        arriving = [p for p in self.parked if p[0] == bookie and (not entry_ids or _name(p[1]) in entry_ids)]
        assert arriving, f"nothing of {bookie} is parked"
        self.parked = [p for p in self.parked if p not in arriving]
        for _, _, answer in arriving:
            self.step(answer)

    def refuses(self, bookie, *entry_ids, response=IO_ERROR):
        """``bookie`` does nothing, and ``response`` arrives."""
        for request in self._requests(bookie, entry_ids):
            self.step(answer_to(bookie, request, response))

    def all_answer(self, *but):
        """All bookies answer until no request is left; those in ``but`` are unreachable."""
        while self.sent:
            bookie, request = self.sent.pop(0)
            if bookie in but:
                self.step(answer_to(bookie, request, UNREACHABLE))
            else:
                self.step(self.pair.bookies(bookie).take(request, self.recovery))

    def _requests(self, bookie, entry_ids):
        found = [r for name, r in self.sent if name == bookie and (not entry_ids or _name(r) in entry_ids)]
        assert found, f"nothing was sent to {bookie} for {entry_ids or 'anything'}; outstanding: {self.sent}"
        for request in found:
            self.sent.remove((bookie, request))
        return found

    # -- placement and metadata

    def chooses(self, *bookies):
        """Placement answers with ``bookies``, or without any, that there are too few."""
        assert isinstance(self.wanted.pop(0), act.ChooseBookies)
        if bookies:
            self.step(act.BookiesChosen(bookies))
        else:
            self.step(act.NoBookies(NotEnoughBookiesError("no bookie left")))

    def writes(self):
        """The requested compare-and-set is made and answered."""
        write = self.wanted.pop(0)
        assert isinstance(write, act.WriteMetadata), write
        found, version = self.pair.store
        if write.version != version:
            self.step(act.MetadataConflict())
            return
        assert not found.closed, "a closed ledger's record is not changed"
        self.pair.store = (write.metadata, version + 1)
        self.step(act.MetadataWritten(version + 1))

    def reads_metadata(self):
        assert isinstance(self.wanted.pop(0), act.ReadMetadata)
        self.step(act.MetadataRead(*self.pair.store))

    def runs(self, *but, spares=()):
        """Run to the end: bookies answer (except ``but``), choices come from ``spares``, writes are made."""
        left = list(spares)
        while self.sent or self.wanted:
            self.all_answer(*but)
            if not self.wanted:
                break
            match self.wanted[0]:
                case act.ChooseBookies() as choice:
                    chosen = [left.pop(0) for _ in choice.replaced if left]
                    self.chooses(*(chosen if len(chosen) == len(choice.replaced) else ()))
                case act.WriteMetadata():
                    self.writes()
                case _:
                    self.reads_metadata()

    # -- outcomes

    @property
    def confirmed(self):
        return max((a.last_add_confirmed for a in self.told if isinstance(a, act.Confirm)), default=-1)

    @property
    def acknowledged(self):
        told = (a.last_add_acknowledged for a in self.told if isinstance(a, act.Acknowledge))
        return max(self.confirmed, *told, -1)

    @property
    def error(self):
        return next((a.error for a in self.told if isinstance(a, act.Fail)), None)

    @property
    def closed(self):
        """The metadata of its Finish."""
        return next((a.metadata for a in self.told if isinstance(a, act.Finish)), None)


class LedgerPair:
    """A ledger with all its participants."""

    def __init__(
        self,
        e=3,
        wq=3,
        aq=2,
        guaranteed=False,
        volatile=False,
        changes=ChangeMode.AT_ONCE,
        sync_bytes=SYNC_BYTES,
        policy=None,
    ):
        created = metadata(
            e,
            wq,
            aq,
            replication=Replication.GUARANTEED if guaranteed else Replication.BEST_EFFORT,
            ledger_type=LedgerType.VD_JOURNAL if volatile else LedgerType.PD_JOURNAL,
        )
        self.store: tuple[LedgerMetadata, int] = (created, 0)
        self._bookies = {}
        self.writer = Client(self, LedgerWriter(created, 0, changes, sync_bytes, policy), recovery=False)

    def bookies(self, name):
        return self._bookies.setdefault(name, Bookie(name))

    @property
    def metadata(self):
        return self.store[0]

    @property
    def ensemble(self):
        return self.metadata.last_fragment.ensemble

    def append(self, count=1):
        """The user appends ``count`` entries, one by one."""
        for _ in range(count):
            self.writer.step(Append(1, 10))

    def appended(self, count=1, but=()):
        """Append, and all bookies answer."""
        self.append(count)
        self.writer.all_answer(*but)

    def change_ensemble(self, *chosen):
        """Placement answers, and the metadata is changed."""
        self.writer.chooses(*chosen)
        self.writer.writes()

    def restart(self, name):
        """The bookie crashes and restarts, and the writer reconnects."""
        bookie = self.bookies(name)
        bookie.crash()
        self.writer.step(BookieBack(name, bookie.incarnation))

    def recoverer(self, **options):
        """A new recoverer that has read the metadata."""
        client = Client(self, LedgerRecovery(replaces_bookies=True, **options), recovery=True)
        client.step(act.MetadataRead(*self.store))
        return client

    def recover(self, *but, spares=(), **options):
        """A whole ledger recovery with the bookies ``but`` unreachable."""
        client = self.recoverer(**options)
        client.runs(*but, spares=spares)
        return client

    def holders(self, entry_id):
        """Bookies that hold an entry, whether the metadata names them or not."""
        return {name for name, bookie in self._bookies.items() if entry_id in bookie.entries}

    def replicas(self, entry_id):
        """Bookies of the write set that hold an entry: its replication factor."""
        return self.holders(entry_id) & set(self.metadata.write_set_of(entry_id))


def _name(request):
    match request:
        case act.SendReadLac():
            return -1
        case act.SendSync():
            return "sync"
    return request.first


def answer_to(bookie, request, response):
    match request:
        case act.SendAdd():
            return act.AddAnswered(bookie, request.first, request.last, response)
        case act.SendSync():
            return act.SyncAnswered(bookie, response)
        case act.SendReadLac():
            return act.LacAnswered(bookie, response)
        case act.SendListHeld():
            return act.HeldAnswered(bookie, request.first, request.first - 1, response)
    return act.ReadAnswered(bookie, request.first, request.first - 1, response)

"""Ledger recovery: fence the writer, find the last entry, write entries back, close the ledger.

Law: recovery closes a ledger at an entry only when no later entry can have been confirmed, and every entry up to it is on an ack
quorum, synced (of a guaranteed ledger: on its write quorum). If it can't know, it stops and changes nothing: the ledger stays
IN_RECOVERY and can be recovered again. ::

    NEW ──► STARTING ──► FENCING ──► READING ⇄ WRITING ⇄ CHOOSING     DONE: from any phase, with a Finish or a Fail
             ▲ compare-    ▲            │  ▲
             │ and-set     │            │  └──► LOOKING (only where a loss may be accepted)
             │ conflict    │            ▼          │
             ▼             │         MEASURING ◄───┘
           REREADING ──────┘ ◄────┐     │
                         conflict └─ CLOSING ──► DONE

``Fencing``, ``RunRead``, ``WriteBack`` and ``LaterEntries`` are one round of questions each. Reads of LACs (last add confirmed)
and recovery reads carry the fence flag (BookKeeper #2616, #2614). They go to the ensemble of the metadata with which recovery
began: the writer can't have written anywhere else. A lost compare-and-set makes recovery begin anew, without the replacements of
``WriteBack``.

A guaranteed ledger ("Guaranteeing write quorum", tweak 3) is read from the highest LAFR (last add fully replicated) on, because
confirmed entries after it may be on an ack quorum only. A seemingly absent entry up to the highest LAC stops the recovery.

An operator may *accept the loss* where recovery can never know enough (docs/decisions/without-the-journal.md). An entry still
unknown after all bookies were asked then counts as absent. Each bookie must have denied it, reported its loss, or be named as
lost for good (``LossNotes``). The ledger ends before it only if no bookie of the ensemble holds a later entry (``LaterEntries``).
Otherwise, or if it is known to be confirmed, it stays in the ledger, unreadable: no existing entry is cut off.

Sources: bookkeeper-overview, "Closing"; ``FencingPhase`` and ``ReadWritePhase`` of bookkeeper-tlaplus; BP-46 for the classes of
answers; BookKeeper's ``LedgerRecoveryOp``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from enum import Enum, auto

from bookspark.errors import BookKeeperError, LedgerRecoveryError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import LOSSES_MAX, AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    ChooseBookies,
    HeldAnswered,
    LacAnswered,
    ReadAnswered,
    SendAdd,
    SendListHeld,
    SendRead,
    SendReadLac,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.quorum import Verdict, fencing_verdict, read_verdict, recovery_read_verdict
from bookspark.protocol.ledger.responses import Negative, NegativeReason, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of, row
from bookspark.protocol.reading.answers import count_kinds, in_words, is_wrong_password, nothing_came, wrong_password
from bookspark.protocol.writing.replication import BestEffort, replication_of

# -- Questions asked so far: late answers and impossible answers.


class Asked:
    """Bookies asked for a LAC, for entries, for a write or for held entries, and the ids in these questions.

    Law: it only grows. An answer outside of it is a defect of the driver. The machine itself decides whether it still needs an
    answer."""

    __slots__ = ("for_lac", "listed_from", "read_to", "to_list", "to_read", "to_write", "written_to")

    def __init__(self) -> None:
        self.for_lac: frozenset[str] = frozenset()
        self.to_read: frozenset[str] = frozenset()
        self.read_to = NO_ENTRY
        """The highest first id of a read."""
        self.to_write: frozenset[str] = frozenset()
        self.written_to = NO_ENTRY
        """The highest id sent in an add."""
        self.to_list: frozenset[str] = frozenset()
        self.listed_from = NO_ENTRY
        """The highest first id of a question for held entries."""

    def note(self, actions: Iterable[object]) -> None:
        for action in actions:
            match action:
                case SendReadLac():
                    self.for_lac |= {action.bookie}
                case SendRead():
                    self.to_read |= {action.bookie}
                    self.read_to = max(self.read_to, action.first)
                case SendAdd():
                    self.to_write |= set(action.bookies)
                    self.written_to = max(self.written_to, action.last)
                case SendListHeld():
                    self.to_list |= {action.bookie}
                    self.listed_from = max(self.listed_from, action.first)

    def check(self, phase: Enum, event: object) -> None:
        """Raise IllegalEventError if ``event`` is a bookie's answer to a question never asked."""
        match event:
            case LacAnswered():
                known = event.bookie in self.for_lac
            case ReadAnswered():
                known = (
                    event.bookie in self.to_read and 0 <= event.first <= self.read_to and event.last >= event.first - 1
                )
            case AddAnswered():
                known = event.bookie in self.to_write and 0 <= event.first <= event.last <= self.written_to
            case HeldAnswered():
                known = (
                    event.bookie in self.to_list
                    and 0 <= event.first <= self.listed_from
                    and event.last >= event.first - 1
                )
            case _:
                known = True
        if not known:
            raise IllegalEventError(phase, event, "it was never asked for")


# -- Fencing: every bookie of the last ensemble is asked for its LAC, with the fence flag.


class Fencing:
    """The answers of one round. ``last_add_confirmed`` and ``last_add_fully_replicated``: the highest in them.

    Law: fencing is done once the answering bookies cover every ack quorum. From then on the old writer's adds can't reach an ack
    quorum, so it never confirms more than the highest LAC (last add confirmed) in the answers.

    Source: ``FencingPhase`` of bookkeeper-tlaplus."""

    __slots__ = ("_metadata", "answers", "last_add_confirmed", "last_add_fully_replicated")

    def __init__(self, metadata: LedgerMetadata) -> None:
        self.answers: dict[str, Response] = {}
        self.last_add_confirmed = NO_ENTRY
        self.last_add_fully_replicated = NO_ENTRY
        self._metadata = metadata

    def start(self) -> list[Action]:
        return [SendReadLac(bookie, fence=True) for bookie in self._ensemble]

    def concerns(self, event: LacAnswered) -> bool:
        return event.bookie in self._ensemble

    def heard(self, event: LacAnswered) -> None:
        self.answers[event.bookie] = event.response
        if isinstance(event.response, Positive):
            self.last_add_confirmed = max(self.last_add_confirmed, event.last_add_confirmed)
            self.last_add_fully_replicated = max(self.last_add_fully_replicated, event.last_add_fully_replicated)

    def verdict(self, lost: Collection[str] = ()) -> Verdict:
        """PRESENT: fenced. UNKNOWN: no further answer can complete the fence. ``lost``: bookies that can acknowledge no add any
        more, fenced or not."""
        m = self._metadata
        positives = [i for i, b in enumerate(self._ensemble) if b in lost or isinstance(self.answers.get(b), Positive)]
        others = [i for i, b in enumerate(self._ensemble) if b in self.answers and i not in positives]
        return fencing_verdict(m.ensemble_size, m.write_quorum, m.ack_quorum, positives, others)

    @property
    def all_answered(self) -> bool:
        return len(self.answers) == self._metadata.ensemble_size

    @property
    def _ensemble(self) -> tuple[str, ...]:
        return self._metadata.last_fragment.ensemble


# -- Later entries: does a bookie hold an entry behind an unknown one? Asked only where a loss may be accepted.


class LaterEntries:
    """The entries from ``first`` on. ``last``: the highest id in the answers; ``first − 1`` if there is none.

    Law: behind an unknown entry a later one may have been confirmed, and be whole on a bookie that never had the earlier one.
    Every bookie of the last ensemble has to answer, or to count as lost (``LossNotes``), before the ledger may end there. A
    bookie in limbo is asked, too: it still reports held entries.

    The question is for durably held entries, because a read ends at the first entry that a bookie in limbo lacks. One entry is
    enough to know that the ledger goes on.

    Source: docs/decisions/without-the-journal.md. BookKeeper's recovery accepts no loss and has no such question."""

    __slots__ = ("_ensemble", "answers", "first", "last")

    def __init__(self, metadata: LedgerMetadata, first: int) -> None:
        self.first = first
        self.last = first - 1
        self.answers: dict[str, Response] = {}
        """Negative if the bookie holds no entry from ``first`` on."""
        self._ensemble = metadata.last_fragment.ensemble

    def start(self) -> list[Action]:
        return [SendListHeld(bookie, self.first) for bookie in self._ensemble]

    def concerns(self, event: HeldAnswered) -> bool:
        return event.first == self.first and event.bookie in self._ensemble

    def heard(self, event: HeldAnswered) -> None:
        answer = event.response
        if isinstance(answer, Positive):
            self.last = max(self.last, event.last)
            if event.last < self.first:
                answer = Negative(NegativeReason.NO_SUCH_ENTRY)
        self.answers[event.bookie] = answer

    @property
    def all_answered(self) -> bool:
        return len(self.answers) == len(self._ensemble)


# -- Loss notes: facts that recovery could not establish, noted for the ledger's record.


_NOTES_MAX = 100
_SAY_THAT_THEY_LOST_IT = frozenset((UnknownReason.LIMBO, UnknownReason.LOST))


class LossNotes:
    """``accepted``: the operator and the bookies that they name; None if no loss is accepted.

    Law: only an operator accepts a loss (``accepted_loss``), and an answer counts as lost only if the bookie itself reports the
    loss, or if the operator named the bookie. An unreachable bookie may have everything, so recovery stops, and the error lists
    the bookies to bring back or to name."""

    __slots__ = ("_accepted", "_losses", "_not_known")

    def __init__(self, accepted: AcceptedLoss | None) -> None:
        self._accepted = accepted
        self._losses: tuple[Loss, ...] = ()
        self._not_known: tuple[str, ...] = ()

    @property
    def may_accept(self) -> bool:
        return self._accepted is not None

    def lost(self, answers: Mapping[str, Response]) -> tuple[str, ...]:
        """Bookies whose answer counts as lost."""
        if self._accepted is None:
            return ()
        named = self._accepted.named
        return tuple(
            bookie
            for bookie, answer in answers.items()
            if isinstance(answer, Unknown) and (bookie in named or answer.reason in _SAY_THAT_THEY_LOST_IT)
        )

    def accept_fence(self, what: str, answers: Mapping[str, Response]) -> None:
        """Note that the fence of bookies whose answer counts as lost is unknown."""
        bookies = tuple(sorted(self.lost(answers)))
        self._note(Loss(LossKind.FENCE, -1, -1, bookies), what, answers)

    def accept(self, kind: LossKind, entry_id: int, what: str, answers: Mapping[str, Response]) -> bool:
        """Note that ``what``, about an entry, is unknown. False if no loss is accepted, or a bookie may know the entry."""
        if self._accepted is None or self.may_know(answers):
            return False
        bookies = answers if kind is LossKind.ENTRIES else self.lost(answers)
        self._note(Loss(kind, entry_id, entry_id, tuple(sorted(bookies))), what, answers)
        return True

    def may_know(self, answers: Mapping[str, Response]) -> list[str]:
        """Bookies that did not deny the entry, and whose answer does not count as lost."""
        lost = self.lost(answers)
        return [bookie for bookie, answer in answers.items() if not isinstance(answer, Negative) and bookie not in lost]

    def advice(self, ledger_id: int, answers: Mapping[str, Response]) -> str:
        """Advice for an operator whose acceptance of a loss was not enough."""
        away = [bookie for bookie in self.may_know(answers) if not isinstance(answers[bookie], Positive)]
        if self._accepted is None or not away:
            return "try again when more of its bookies are up"
        named = " ".join((*self._accepted.named, *away))
        return (
            f"{', '.join(away)} did not say that it is lost, and may have it. If they are only stopped or cut off, bring them "
            f"back and recover the ledger again. If they are gone for good, name them: bookspark ledger recover {ledger_id} "
            f"--accept-loss {named}"
        )

    def forget(self) -> None:
        self._losses = self._not_known = ()

    @property
    def too_many(self) -> bool:
        return len(self._losses) > LOSSES_MAX

    def noted_in(self, closed: LedgerMetadata) -> LedgerMetadata:
        """The record of the closed ledger, with the notes if there are any."""
        if self._accepted is None or not self._losses:
            return closed
        losses = tuple(one for loss in self._losses for one in _by_fragment(loss, closed))
        return replace(closed, accepted_loss=replace(self._accepted, losses=losses, not_known=self._not_known))

    def _note(self, loss: Loss, what: str, answers: Mapping[str, Response]) -> None:
        if len(self._not_known) < _NOTES_MAX:
            self._not_known += (f"{what} ({in_words(answers)})",)
        if not self._losses:
            self._losses = (loss,)
            return
        last = self._losses[-1]
        if last.kind is loss.kind and last.bookies == loss.bookies and loss.first <= last.last + 1:
            self._losses = (*self._losses[:-1], last._replace(last=max(last.last, loss.last)))
        else:
            self._losses += (loss,)


def _by_fragment(loss: Loss, closed: LedgerMetadata) -> Iterator[Loss]:
    """The loss by fragments of the closed record: a replacement in this recovery lacks the same entries as its predecessor."""
    if loss.kind is not LossKind.ENTRIES:
        yield loss
        return
    for fragment, last in closed.fragment_ranges():
        first, end = max(loss.first, fragment.first_entry_id), min(loss.last, -1 if last is None else last)
        if first <= end:
            yield Loss(loss.kind, first, end, tuple(sorted(closed.write_set_of(first))))


# -- Recovery reads: a run of entries is asked of every bookie of its first entry's write set.


class RunRead:
    """The entries ``first..last``, as far as one answer carries them. ``fence``: this is a recovery read.

    Law: the round decides about its first entry only. The shortest run in the answers is written back. A bookie's answer for the
    id after its run is not used, because the next round asks every bookie of that id's write set. Striped ledgers are read entry
    by entry: consecutive entries lie on different bookies.

    Source: ``ReadWritePhase`` of bookkeeper-tlaplus; BP-46 for the classes of answers."""

    __slots__ = ("_fence", "_last", "_metadata", "answers", "first", "found")

    def __init__(self, metadata: LedgerMetadata, first: int, last: int, fence: bool) -> None:
        self.first = first
        self.answers: dict[str, Response] = {}
        """Each bookie's answer for the first entry."""
        self.found: ReadAnswered | None = None
        """The shortest run."""
        self._metadata = metadata
        self._last = last
        self._fence = fence

    def start(self) -> list[Action]:
        return [SendRead(bookie, self.first, self._last, fence=self._fence) for bookie in self._write_set()]

    def concerns(self, event: ReadAnswered) -> bool:
        return event.first == self.first and event.last <= self._last and event.bookie in self._write_set()

    def heard(self, event: ReadAnswered) -> None:
        present = event.last >= event.first
        self.answers[event.bookie] = Positive() if present else nothing_came(event.following)
        if present and (self.found is None or event.last < self.found.last):
            self.found = event

    @property
    def all_answered(self) -> bool:
        return len(self.answers) == self._metadata.write_quorum

    def recovery_verdict(self, ack_quorum_reads: bool) -> Verdict:
        """Is the first entry recovered, or does the ledger end before it?"""
        m = self._metadata
        needed = m.ack_quorum if ack_quorum_reads else 1
        return recovery_read_verdict(m.write_quorum, m.ack_quorum, *count_kinds(self.answers.values()), needed)

    def read_verdict(self) -> Verdict:
        """Does the first entry exist, by the rules of an ordinary read?"""
        return read_verdict(self._metadata.write_quorum, *count_kinds(self.answers.values()))

    def _write_set(self) -> tuple[str, ...]:
        return self._metadata.write_set_of(self.first)


# -- Phases and their events. A bookie's late answer may belong to an earlier phase, or to the round before a lost
# compare-and-set. The metadata store and placement answer in the phase that asked them, unless the deadline passes first.


class RecoveryPhase(Enum):
    NEW = auto()
    STARTING = auto()
    """The record is being set to IN_RECOVERY."""
    REREADING = auto()
    """The record is being read, after a lost compare-and-set."""
    FENCING = auto()
    READING = auto()
    LOOKING = auto()
    """Bookies are being asked for entries behind an unknown one."""
    WRITING = auto()
    CHOOSING = auto()
    """As WRITING, while replacements are being chosen for bookies that refused the run."""
    MEASURING = auto()
    """The last entry is being read, for the ledger's length."""
    CLOSING = auto()
    DONE = auto()


_BOOKIES = (act.LacAnswered, act.ReadAnswered, act.AddAnswered, act.HeldAnswered)
_WRITE = (act.MetadataWritten, act.MetadataConflict, act.RecordFull, act.MetadataFailed)
_CHOICE = (act.BookiesChosen, act.NoBookies, act.MetadataFailed)

TRANSITIONS = {
    RecoveryPhase.NEW: row(taken=(act.MetadataRead, act.MetadataFailed)),
    RecoveryPhase.STARTING: row(taken=(*_WRITE, act.DeadlinePassed)),
    RecoveryPhase.REREADING: row(taken=(act.MetadataRead, act.MetadataFailed, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.FENCING: row(taken=(act.LacAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.READING: row(taken=(act.ReadAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.LOOKING: row(taken=(act.HeldAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.WRITING: row(taken=(act.AddAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.CHOOSING: row(taken=(act.AddAnswered, *_CHOICE, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.MEASURING: row(taken=(act.ReadAnswered, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.CLOSING: row(taken=(*_WRITE, act.DeadlinePassed), late=_BOOKIES),
    RecoveryPhase.DONE: row(late=(*_BOOKIES, *_WRITE, *_CHOICE, act.MetadataRead, act.DeadlinePassed)),
}


# -- Write-back: one run of entries is written, and bookies that refuse it are replaced.


class WriteBack:
    """One run. ``copies``: the needed number of copies; ``target``: the ledger's metadata with this recovery's ensemble changes.

    Law: the run is written once enough bookies of its write set have it. Bookies that refuse it are replaced, from its first
    entry on, only if there would be too few copies without them. The changed ensemble stays here and goes into the closing
    compare-and-set only (BookKeeper #2615): written earlier, it would send another recoverer to bookies without the entries after
    the run."""

    __slots__ = ("_copies", "_last_add_confirmed", "_last_add_fully_replicated", "answers", "replaced", "run", "target")

    def __init__(
        self,
        run: ReadAnswered,
        target: LedgerMetadata,
        copies: int,
        last_add_confirmed: int,
        last_add_fully_replicated: int,
    ) -> None:
        self.run = run
        self.target = target
        self.answers: dict[str, Response] = {}
        self.replaced: tuple[str, ...] = ()
        """Bookies whose replacements are being chosen."""
        self._copies = copies
        self._last_add_confirmed = last_add_confirmed
        self._last_add_fully_replicated = last_add_fully_replicated

    def start(self) -> list[Action]:
        return self._send(self._write_set())

    def concerns(self, event: AddAnswered) -> bool:
        return (event.first, event.last) == (self.run.first, self.run.last) and event.bookie in self._write_set()

    def heard(self, event: AddAnswered) -> None:
        self.answers[event.bookie] = event.response

    def verdict(self) -> Verdict:
        """PRESENT: enough copies. UNKNOWN: other bookies are needed."""
        positives = sum(isinstance(answer, Positive) for answer in self.answers.values())
        if positives >= self._copies:
            return Verdict.PRESENT
        refused = len(self.answers) - positives
        return Verdict.PENDING if refused <= self.target.write_quorum - self._copies else Verdict.UNKNOWN

    # -- bookies that refuse

    def choose(self) -> list[Action]:
        ensemble = self.target.last_fragment.ensemble
        refused = self._refused()
        self.replaced = tuple(bookie for bookie in ensemble if bookie in refused)
        return [ChooseBookies(ensemble, self.replaced)]

    def may_be_chosen(self, bookies: tuple[str, ...]) -> bool:
        """Is this one new bookie for each replaced one?"""
        return replaces(bookies, self.replaced, self.target.last_fragment.ensemble)

    def chosen(self, bookies: tuple[str, ...]) -> list[Action]:
        """Send the run to ``bookies``, or choose again if others have refused it meanwhile."""
        if not self._refused() <= set(self.replaced):
            return self.choose()
        swap = dict(zip(self.replaced, bookies, strict=True))
        ensemble = tuple(swap.get(bookie, bookie) for bookie in self.target.last_fragment.ensemble)
        self.target = self.target.with_ensemble(self.run.first, ensemble)
        self.answers = {bookie: answer for bookie, answer in self.answers.items() if bookie not in swap}
        self.replaced = ()
        return self._send(bookies)

    def _refused(self) -> set[str]:
        return {bookie for bookie, answer in self.answers.items() if not isinstance(answer, Positive)}

    def _write_set(self) -> tuple[str, ...]:
        return self.target.write_set_of(self.run.first)

    def _send(self, bookies: tuple[str, ...]) -> list[Action]:
        lac, lafr = self._last_add_confirmed, self._last_add_fully_replicated
        return [SendAdd(bookies, self.run.first, self.run.last, lac, self.run.entries, lafr)]


def replaces(chosen: tuple[str, ...], replaced: tuple[str, ...], ensemble: tuple[str, ...]) -> bool:
    """Are there as many ``chosen`` as ``replaced``, all different and outside the ensemble?"""
    together = {*chosen, *ensemble}
    return len(chosen) == len(replaced) and len(together) == len(chosen) + len(ensemble)


# -- The machine: all phases of a recovery.


class LedgerRecovery:
    """One recoverer of one ledger. Start it with ``step(MetadataRead(…))``; it ends with a Finish or a Fail.

    ``run_entries_max``: most entries in one recovery read. ``replaces_bookies``: the driver answers ``ChooseBookies``; otherwise
    too many refused write-backs stop the recovery. ``ack_quorum_reads``: an entry is recovered once an ack quorum has it, as in
    the text of BP-46, and not at the first copy. ``accepted_loss``: the operator who counts unknown entries as lost, and the
    bookies that they name.
    """

    def __init__(
        self,
        run_entries_max: int = 10_000,
        replaces_bookies: bool = False,
        ack_quorum_reads: bool = False,
        accepted_loss: AcceptedLoss | None = None,
    ) -> None:
        self.phase = RecoveryPhase.NEW
        self.last_add_confirmed = NO_ENTRY
        """The highest in the answers to fencing; ``last_add_fully_replicated`` too."""
        self.last_add_fully_replicated = NO_ENTRY
        self.next_entry_id = 0
        """The first undecided id."""
        self._held_to: int
        """An id held by some bookie: the ledger does not end before it because of an unknown entry."""
        self._run_entries_max = run_entries_max
        self._replaces_bookies = replaces_bookies
        self._ack_quorum_reads = ack_quorum_reads
        self._loss = LossNotes(accepted_loss)
        self._policy = BestEffort()
        self._metadata: LedgerMetadata
        self._target: LedgerMetadata
        """``_metadata`` with the ensemble changes of this recovery."""
        self._version = 0
        self._length: int | None = None
        self._round: Fencing | RunRead | LaterEntries | WriteBack | None = None
        """The open question to bookies: the fence, entries (READING, MEASURING), later entries (LOOKING), or a write."""
        self._unknown: RunRead
        """LOOKING: the answers about the unknown entry."""
        self._asked = Asked()

    def step(self, event: act.Event) -> list[act.Action]:
        """Raises IllegalEventError, and changes nothing, for an answer to a question never asked."""
        cell = cell_of(TRANSITIONS, self.phase, event)
        self._asked.check(self.phase, event)
        if cell is LATE:
            return []
        actions = self._act(event)
        self._asked.note(actions)
        return actions

    def _act(self, event: act.Event) -> list[act.Action]:
        match event:
            case act.MetadataRead():
                if self.phase is not RecoveryPhase.NEW and not event.metadata.is_same_ledger(self._metadata):
                    raise IllegalEventError(self.phase, event, f"it is not of ledger {self._metadata.ledger_id}")
                return self._begin(event.metadata, event.version)
            case act.MetadataWritten():
                return (
                    self._marked(event.version) if self.phase is RecoveryPhase.STARTING else self._closed(event.version)
                )
            case act.MetadataConflict():
                self.phase = RecoveryPhase.REREADING
                return [act.ReadMetadata()]
            case act.MetadataFailed() | act.RecordFull():
                return self._fail(event.error)
            case act.LacAnswered():
                return self._fenced(event)
            case act.ReadAnswered():
                return self._recovery_read(event) if self.phase is RecoveryPhase.READING else self._measured(event)
            case act.AddAnswered():
                return self._written_back(event)
            case act.HeldAnswered():
                return self._looked(event)
            case act.BookiesChosen():
                return self._bookies_chosen(event)
            case act.NoBookies():
                return self._no_bookies(event)
            case act.DeadlinePassed():
                return self._stop("no decision before the deadline")

    # -- STARTING

    def _begin(self, metadata: LedgerMetadata, version: int) -> list[act.Action]:
        """Called at the start, and again after every lost compare-and-set."""
        self._metadata = self._target = metadata
        self._version = version
        self._policy = replication_of(metadata)
        if metadata.closed:
            return self._finish(metadata, version)
        if metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()
        self.phase = RecoveryPhase.STARTING
        return [act.WriteMetadata(metadata.in_recovery(), version)]

    def _marked(self, version: int) -> list[act.Action]:
        self._version = version
        self._metadata = self._target = self._metadata.in_recovery()
        return self._fence()

    # -- FENCING

    def _fence(self) -> list[act.Action]:
        self.phase = RecoveryPhase.FENCING
        self._length = None
        self._held_to = NO_ENTRY
        self._loss.forget()
        self._round = Fencing(self._metadata)
        return self._round.start()

    def _fenced(self, event: act.LacAnswered) -> list[act.Action]:
        fencing = self._round
        assert isinstance(fencing, Fencing)
        if not fencing.concerns(event):
            return []
        fencing.heard(event)
        verdict = fencing.verdict()
        if verdict is Verdict.PENDING or (
            verdict is Verdict.UNKNOWN and self._loss.may_accept and not fencing.all_answered
        ):
            return []
        if verdict is Verdict.UNKNOWN:
            if fencing.verdict(self._loss.lost(fencing.answers)) is not Verdict.PRESENT:
                return self._stop("too few bookies could be fenced")
            what = "whether the writer is fenced everywhere, and the last confirmed entry"
            self._loss.accept_fence(what, fencing.answers)
        self.last_add_confirmed, self.last_add_fully_replicated = (
            fencing.last_add_confirmed,
            fencing.last_add_fully_replicated,
        )
        after = self._policy.recover_after(self.last_add_confirmed, self.last_add_fully_replicated)
        self.next_entry_id = max(after, self._metadata.last_fragment.first_entry_id - 1) + 1
        return self._read()

    # -- READING

    def _read(self) -> list[act.Action]:
        self.phase = RecoveryPhase.READING
        m = self._metadata
        run = self._run_entries_max if m.ensemble_size == m.write_quorum else 1
        self._round = RunRead(m, self.next_entry_id, self.next_entry_id + run - 1, fence=True)
        return self._round.start()

    def _recovery_read(self, event: act.ReadAnswered) -> list[act.Action]:
        read, first = self._round, self.next_entry_id
        assert isinstance(read, RunRead)
        if not read.concerns(event):
            return []
        read.heard(event)
        verdict = read.recovery_verdict(self._ack_quorum_reads)
        if verdict is Verdict.PRESENT:
            assert read.found is not None
            return self._write_back(read.found)
        if verdict is Verdict.PENDING:
            return []
        seems = "may or may not exist" if verdict is Verdict.UNKNOWN else "seems absent"
        if first <= self.last_add_confirmed:
            # A confirmed entry is given up only after all bookies have answered.
            return [] if self._loss.may_accept and not read.all_answered else self._pass_over(first, seems)
        if verdict is not Verdict.UNKNOWN:
            return self._measure()
        if self._loss.may_know(read.answers):
            return self._stop(f"entry {first} {seems}")
        return self._pass_over(first, seems) if first <= self._held_to else self._look(read)

    # -- LOOKING

    def _look(self, read: RunRead) -> list[act.Action]:
        """The ledger may end before this entry, whose loss may be accepted."""
        self.phase = RecoveryPhase.LOOKING
        self._unknown = read
        self._round = LaterEntries(self._metadata, self.next_entry_id + 1)
        return self._round.start()

    def _looked(self, event: act.HeldAnswered) -> list[act.Action]:
        later, first = self._round, self.next_entry_id
        assert isinstance(later, LaterEntries)
        if not later.concerns(event):
            return []
        later.heard(event)
        if not later.all_answered:
            return []
        if later.last > first:
            self._held_to, self._round = later.last, self._unknown
            return self._pass_over(first, "may or may not exist")
        if self._loss.may_know(later.answers):
            return self._stop(f"entry {first} may or may not exist, and so may entries behind it")
        self._loss.accept(LossKind.END, first, f"whether there is an entry {first}", self._unknown.answers)
        return self._measure()

    def _pass_over(self, entry_id: int, how: str) -> list[act.Action]:
        """Keep an entry without a copy as unreadable, because it is confirmed or has a later one behind it."""
        if not self._loss.accept(LossKind.ENTRIES, entry_id, f"entry {entry_id}", self._answers()):
            return self._stop(f"entry {entry_id} is confirmed, but {how}")
        if self._loss.too_many:
            return self._stop(f"more than {LOSSES_MAX} separate losses are more than the ledger's record has room for")
        self.next_entry_id, self._length = entry_id + 1, None
        return self._read()

    # -- WRITING, CHOOSING

    def _write_back(self, run: act.ReadAnswered) -> list[act.Action]:
        self.phase = RecoveryPhase.WRITING
        copies = self._policy.copies(self._metadata)
        self._round = WriteBack(run, self._target, copies, self.last_add_confirmed, self.last_add_fully_replicated)
        return self._round.start()

    def _written_back(self, event: act.AddAnswered) -> list[act.Action]:
        writing = self._round
        assert isinstance(writing, WriteBack)
        if not writing.concerns(event):
            return []
        writing.heard(event)
        # While bookies are being chosen, answers are judged together with the choice.
        return [] if self.phase is RecoveryPhase.CHOOSING else self._go_on(writing)

    def _go_on(self, writing: WriteBack) -> list[act.Action]:
        run = writing.run
        match writing.verdict():
            case Verdict.PRESENT:
                self.next_entry_id, self._length = run.last + 1, run.length
                return self._read()
            case Verdict.PENDING:
                return []
        if self._replaces_bookies:
            self.phase = RecoveryPhase.CHOOSING
            return writing.choose()
        copies = self._policy.copies(self._metadata)
        return self._stop(f"entries {run.first}..{run.last} could not be written back to {copies} bookies")

    def _bookies_chosen(self, event: act.BookiesChosen) -> list[act.Action]:
        writing = self._round
        assert isinstance(writing, WriteBack)
        if not writing.may_be_chosen(event.bookies):
            raise IllegalEventError(
                self.phase, event, f"{len(writing.replaced)} bookies outside the ensemble were asked for"
            )
        if writing.verdict() is Verdict.PRESENT:
            return self._go_on(writing)
        actions = writing.chosen(event.bookies)
        self._target = writing.target
        self.phase = RecoveryPhase.CHOOSING if writing.replaced else RecoveryPhase.WRITING
        return actions

    def _no_bookies(self, event: act.NoBookies) -> list[act.Action]:
        writing = self._round
        assert isinstance(writing, WriteBack)
        return self._go_on(writing) if writing.verdict() is Verdict.PRESENT else self._stop(str(event.error))

    # -- MEASURING: the length of a ledger in which nothing had to be written back

    def _measure(self) -> list[act.Action]:
        last = self.next_entry_id - 1
        if last == NO_ENTRY:
            self._length = 0
        if self._length is not None:
            return self._close()
        self.phase = RecoveryPhase.MEASURING
        self._round = RunRead(self._metadata, last, last, fence=False)
        return self._round.start()

    def _measured(self, event: act.ReadAnswered) -> list[act.Action]:
        read = self._round
        assert isinstance(read, RunRead)
        if not read.concerns(event):
            return []
        if event.last >= event.first:
            self._length = event.length
            return self._close()
        read.heard(event)
        if read.read_verdict() is Verdict.PENDING:
            return []
        what = f"entry {event.first}, and with it the ledger's length"
        if not self._loss.accept(LossKind.ENTRIES, event.first, what, read.answers):
            return self._stop(f"entry {event.first} is confirmed, but no bookie returned it")
        self._length = 0
        return self._close()

    # -- CLOSING

    def _close(self) -> list[act.Action]:
        self.phase = RecoveryPhase.CLOSING
        return [act.WriteMetadata(self._end(), self._version)]

    def _closed(self, version: int) -> list[act.Action]:
        return self._finish(self._end(), version)

    def _end(self) -> LedgerMetadata:
        assert self._length is not None
        return self._loss.noted_in(self._target.close_at(self.next_entry_id - 1, self._length))

    # -- ends

    def _finish(self, metadata: LedgerMetadata, version: int) -> list[act.Action]:
        self.phase = RecoveryPhase.DONE
        return [act.Finish(metadata, version)]

    def _fail(self, error: BookKeeperError) -> list[act.Action]:
        self.phase = RecoveryPhase.DONE
        return [act.Fail(error)]

    def _answers(self) -> Mapping[str, Response]:
        return self._round.answers if self._round is not None else {}

    def _stop(self, why: str) -> list[act.Action]:
        if any(map(is_wrong_password, self._answers().values())):
            return self._fail(wrong_password(f"ledger {self._metadata.ledger_id}"))
        return self._fail(
            LedgerRecoveryError(
                f"ledger {self._metadata.ledger_id} was not recovered ({self.phase.name.lower()}): {why}; answers: "
                f"{in_words(self._answers())}. Nothing was truncated; "
                f"{self._loss.advice(self._metadata.ledger_id, self._answers())}"
            )
        )

"""Ledger recovery: fence the writer, find the last entry, write entries back, close the ledger.

Law: recovery closes a ledger at an entry only when no later entry can have been confirmed, and every entry up to it is on an
ack quorum, synced (of a guaranteed ledger: on its write quorum). If it can't know, it stops and changes nothing: the
ledger stays IN_RECOVERY and can be recovered again. ::

    NEW ──► STARTING ──► FENCING ──► READING ⇄ WRITING ⇄ CHOOSING     DONE: from any phase, with a Finish or a Fail
             ▲ compare-    ▲            │  ▲
             │ and-set     │            │  └──► LOOKING (only where a loss may be accepted)
             │ conflict    │            ▼          │
             ▼             │         MEASURING ◄───┘
           REREADING ──────┘ ◄────┐     │
                         conflict └─ CLOSING ──► DONE

Reads of LACs (last add confirmed) and recovery reads carry the fence flag (BookKeeper #2616, #2614). They go to the ensemble
of the metadata that recovery began with: the writer can't have written anywhere else. A bookie that refuses a write-back may
be replaced (``write_back``). A lost compare-and-set makes recovery begin anew, without these replacements.

A guaranteed ledger ("Guaranteeing write quorum", tweak 3) is read from the highest LAFR (last add fully replicated) on, because
confirmed entries after it may be on an ack quorum only. Its end is never below the highest LAC that was heard: an entry up to
that LAC which seems absent stops the recovery.

Recovery can never know enough of some ledgers (ack quorum 1 with a bookie in limbo, bookies that are gone for good). Then an
operator may *accept the loss*: an entry that stays unknown after all bookies were asked counts as "not there", if each bookie
that did not deny it says that it lost it or is named as lost for good (``loss_notes``). The ledger ends before it only if no
bookie of the ensemble holds a later entry, which may be a confirmed one (``later_entries``). Otherwise, and if the entry is
known to be confirmed, it stays in the ledger, unreadable: nothing that there is is cut off.

Sources: bookkeeper-overview, "Closing"; ``FencingPhase`` and ``ReadWritePhase`` of bookkeeper-tlaplus; BP-46 for the classes
of answers; BookKeeper's ``LedgerRecoveryOp``.
"""

from __future__ import annotations

from collections.abc import Mapping

from bookspark.errors import BookKeeperError, LedgerRecoveryError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import LOSSES_MAX, AcceptedLoss, LossKind
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.quorum import Verdict
from bookspark.protocol.ledger.responses import Response
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of
from bookspark.protocol.reading.answers import in_words, is_wrong_password, wrong_password
from bookspark.protocol.reading.asked import Asked
from bookspark.protocol.reading.fencing import Fencing
from bookspark.protocol.reading.later_entries import LaterEntries
from bookspark.protocol.reading.loss_notes import LossNotes
from bookspark.protocol.reading.recovery_phases import TRANSITIONS, RecoveryPhase
from bookspark.protocol.reading.run_read import RunRead
from bookspark.protocol.reading.write_back import WriteBack
from bookspark.protocol.writing.replication import BestEffort, replication_of


class LedgerRecovery:
    """One recoverer of one ledger. Start it with ``step(MetadataRead(…))``; it ends with a Finish or a Fail.

    ``run_entries_max``: how many entries one recovery read asks for at most. Striped ledgers, whose consecutive entries lie on
    different bookies, are read one by one. ``replaces_bookies``: the driver answers ``ChooseBookies``; otherwise too many
    refused write-backs stop the recovery. ``ack_quorum_reads``: an entry is recovered once an ack quorum of bookies has it, as
    the text of BP-46 says, and not at the first one. ``accepted_loss``: who counts what can't be known as lost, and which bookies
    they name.
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
        """The highest that was heard while fencing; ``last_add_fully_replicated`` too."""
        self.last_add_fully_replicated = NO_ENTRY
        self.next_entry_id = 0
        """The first id about which nothing is decided."""
        self._held_to: int
        """An id that some bookie holds. The ledger does not end before it for want of knowledge."""
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
        """What bookies are being asked: to be fenced, about entries (READING, MEASURING), about later ones (LOOKING), or to write
        (WRITING, CHOOSING)."""
        self._unknown: RunRead
        """LOOKING: the answers about the entry that can't be known."""
        self._asked = Asked()

    def step(self, event: act.Event) -> list[act.Action]:
        """The actions that follow from ``event``. Raises IllegalEventError, and changes nothing, for what was not asked."""
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
            case act.MetadataFailed():
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
        """The record as it is now: at the start, and again after every lost compare-and-set."""
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
        if is_wrong_password(event.response):
            return self._wrong_password()
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
            # Of a confirmed entry that may be given up, everybody is heard first.
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
        """An entry that no bookie returned, and that is confirmed or has a later one behind it."""
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
        if is_wrong_password(event.response):
            return self._wrong_password()
        writing.heard(event)
        # While bookies are being chosen, what is heard is decided with the choice.
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

    def _wrong_password(self) -> list[act.Action]:
        return self._fail(wrong_password(f"ledger {self._metadata.ledger_id}"))

    def _answers(self) -> Mapping[str, Response]:
        """The answers of the present round, or of the last one."""
        return self._round.answers if self._round is not None else {}

    def _stop(self, why: str) -> list[act.Action]:
        return self._fail(
            LedgerRecoveryError(
                f"ledger {self._metadata.ledger_id} was not recovered ({self.phase.name.lower()}): {why}; answers: "
                f"{in_words(self._answers())}. Nothing was truncated; "
                f"{self._loss.advice(self._metadata.ledger_id, self._answers())}"
            )
        )

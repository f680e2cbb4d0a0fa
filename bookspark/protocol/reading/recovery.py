"""Ledger recovery: fence, find the last entry, write back, close.

Law: recovery closes a ledger at an entry only when no later entry can have been confirmed, and every entry up to it is
on an ack quorum (of a guaranteed ledger: on its write quorum), synced. If it can't know, it stops and changes nothing:
the ledger stays IN_RECOVERY and can be recovered again.

Source: bookkeeper-overview, "Closing"; the ``FencingPhase`` and ``ReadWritePhase`` of bookkeeper-tlaplus; BP-46 for the
classes of answers; BookKeeper's ``LedgerRecoveryOp``. The phases::

    STARTING ──► FENCING ──► READING ⇄ WRITING ──► MEASURING ──► CLOSING ──► DONE
        ▲   metadata CAS     │ every read, of LACs and of entries, carries     │
        └────────────────────┴── the fence flag (#2616, #2614) ──── conflict ──┘

Entries are read and written back in runs: one answer holds as many consecutive entries as fit, and what it says of the
id after them is not used, as the next round asks every bookie of that id's write set.

Reads go to the ensemble of the metadata that recovery began with, since nowhere else can the writer have written. A
bookie that refuses a write-back without which there are too few copies is replaced, from the first entry of that run
on; this is kept here, and goes into the final compare-and-set only (#2615): written earlier, it would send another
recoverer to bookies that do not hold the entries after it. A lost compare-and-set forgets it with everything else.

A guaranteed ledger ("Guaranteeing write quorum", tweak 3) is read from the highest LAFR heard on, as confirmed entries
after it may lie on an ack quorum only. So its end is never below the highest LAC heard: an entry up to that one that
seems absent stops the recovery.

What can't be known stops a recovery, and there are ledgers of which it never will be (AQ 1 with a bookie in limbo, bookies
that are gone for good). Then an operator may *accept the loss*: what a bookie can't say after all were asked counts as "not
there", and what was not known is written into the metadata together with the close (``accepted_loss``). An entry that is
known to be confirmed is never cut off for it: it stays in the ledger, unreadable.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum, auto

from bookspark.errors import BookKeeperError, LedgerRecoveryError, UnauthorizedAccessError
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    BookiesChosen,
    ChooseBookies,
    DeadlinePassed,
    Event,
    Fail,
    Finish,
    LacAnswered,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadAnswered,
    ReadMetadata,
    SendAdd,
    SendRead,
    SendReadLac,
    WriteMetadata,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerState
from bookspark.protocol.ledger.quorum import Verdict, fencing_verdict, read_verdict, recovery_read_verdict
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.writing.replication import BestEffort, replication_of

_NOTES_MAX = 100


class Phase(Enum):
    STARTING = auto()
    FENCING = auto()
    READING = auto()
    WRITING = auto()
    MEASURING = auto()
    CLOSING = auto()
    DONE = auto()


class LedgerRecovery:
    """One recoverer of one ledger. Start it with ``step(MetadataRead(…))``; it ends with a Finish or a Fail.

    ``run_entries_max`` bounds how many ids one recovery read asks for; striped ledgers, whose consecutive entries lie
    on different bookies, are read one by one. ``replaces_bookies``: the driver answers ``ChooseBookies``; otherwise too
    many refused write-backs stop the recovery. ``ack_quorum_reads``: an entry is recovered once AQ bookies have it, as
    the text of BP-46 says, and not at the first one. ``accepted_loss``: who takes what can't be known for lost.
    ``replication`` in place of the ledger's own policy is for the simulator.
    """

    def __init__(
        self,
        run_entries_max: int = 10_000,
        replaces_bookies: bool = False,
        ack_quorum_reads: bool = False,
        replication: BestEffort | None = None,
        accepted_loss: AcceptedLoss | None = None,
    ) -> None:
        self.phase = Phase.STARTING
        self.last_add_confirmed = NO_ENTRY
        self.last_add_fully_replicated = NO_ENTRY
        self.next_entry_id = 0
        """The first id about which nothing is decided."""
        self._run_entries_max = run_entries_max
        self._replaces_bookies = replaces_bookies
        self._ack_quorum_reads = ack_quorum_reads
        self._replication = replication
        self._accepted_loss = accepted_loss
        self._not_known: list[str] = []
        """What the loss is that was accepted, so far."""
        self._policy = BestEffort()
        self._metadata: LedgerMetadata
        self._target: LedgerMetadata
        """``_metadata`` with the ensemble changes of this recovery."""
        self._version = 0
        self._length: int | None = None
        self._answers: dict[str, Response] = {}
        self._found: ReadAnswered | None = None
        """The shortest run that was read in this round."""
        self._writing: ReadAnswered | None = None
        self._replaced: tuple[str, ...] = ()
        """Bookies for which replacements are being chosen."""

    def step(self, event: Event) -> list[Action]:
        """The actions that follow from ``event``. Answers to questions of an earlier phase are ignored."""
        match self.phase, event:
            case Phase.DONE, _:
                return []
            case _, MetadataRead():
                return self._begin(event.metadata, event.version)
            case _, MetadataConflict():
                return [ReadMetadata()]
            case _, MetadataFailed():
                return self._fail(event.error)
            case _, DeadlinePassed():
                return self._stop("no decision before the deadline")
            case Phase.STARTING, MetadataWritten():
                self._version = event.version
                self._metadata = self._target = self._metadata.in_recovery()
                return self._fence()
            case Phase.CLOSING, MetadataWritten():
                return self._finish(self._closed(), event.version)
            case Phase.FENCING, LacAnswered():
                return self._fenced(event)
            case Phase.READING, ReadAnswered() if event.first == self.next_entry_id:
                return self._recovery_read(event)
            case Phase.WRITING, AddAnswered():
                return self._written_back(event)
            case Phase.WRITING, BookiesChosen():
                return self._bookies_chosen(event)
            case Phase.WRITING, NoBookies():
                return self._stop(str(event.error))
            case Phase.MEASURING, ReadAnswered() if event.last <= event.first == self.next_entry_id - 1:
                return self._measured(event)
        return []

    # -- STARTING

    def _begin(self, metadata: LedgerMetadata, version: int) -> list[Action]:
        """The record as it is now: at the start, and again after every lost compare-and-set."""
        self._metadata = self._target = metadata
        self._version = version
        self._policy = self._replication or replication_of(metadata)
        if metadata.closed:
            return self._finish(metadata, version)
        if metadata.state is LedgerState.IN_RECOVERY:
            return self._fence()
        self.phase = Phase.STARTING
        return [WriteMetadata(metadata.in_recovery(), version)]

    # -- FENCING

    def _fence(self) -> list[Action]:
        self.phase = Phase.FENCING
        self._answers = {}
        self._length = None
        self._writing, self._replaced, self._not_known = None, (), []
        self.last_add_confirmed = self.last_add_fully_replicated = NO_ENTRY
        return [SendReadLac(bookie, fence=True) for bookie in self._ensemble]

    def _fenced(self, event: LacAnswered) -> list[Action]:
        if _unauthorized(event.response):
            return self._fail(_wrong_password(self._metadata.ledger_id))
        self._answers[event.bookie] = event.response
        if isinstance(event.response, Positive):
            self.last_add_confirmed = max(self.last_add_confirmed, event.last_add_confirmed)
            self.last_add_fully_replicated = max(self.last_add_fully_replicated, event.last_add_fully_replicated)
        positives = [i for i, b in enumerate(self._ensemble) if isinstance(self._answers.get(b), Positive)]
        others = [i for i, b in enumerate(self._ensemble) if b in self._answers and i not in positives]
        m = self._metadata
        verdict = fencing_verdict(m.ensemble_size, m.write_quorum, m.ack_quorum, positives, others)
        if verdict is Verdict.PENDING:
            return []
        if verdict is Verdict.UNKNOWN:
            if self._accepted_loss is None:
                return self._stop("too few bookies could be fenced")
            if len(self._answers) < m.ensemble_size:
                return []
            self._accept("whether the writer is fenced everywhere, and the last confirmed entry")
        # No later LAC than the highest heard was ever acknowledged to a client that is still able to write.
        after = self._policy.recover_after(self.last_add_confirmed, self.last_add_fully_replicated)
        self.next_entry_id = max(after, m.last_fragment.first_entry_id - 1) + 1
        return self._read()

    # -- READING

    def _read(self) -> list[Action]:
        self.phase = Phase.READING
        self._answers, self._found = {}, None
        m = self._metadata
        run = self._run_entries_max if m.ensemble_size == m.write_quorum else 1
        last = self.next_entry_id + run - 1
        bookies = m.write_set_of(self.next_entry_id)
        return [SendRead(bookie, self.next_entry_id, last, fence=True) for bookie in bookies]

    def _recovery_read(self, event: ReadAnswered) -> list[Action]:
        present = event.last >= event.first
        self._answers[event.bookie] = Positive() if present else event.following
        if present and (self._found is None or event.last < self._found.last):
            self._found = event
        m = self._metadata
        needed = m.ack_quorum if self._ack_quorum_reads else 1
        verdict = recovery_read_verdict(m.write_quorum, m.ack_quorum, *_count(self._answers), needed)
        if verdict is Verdict.PRESENT:
            assert self._found is not None
            return self._write_back(self._found)
        if verdict is Verdict.PENDING:
            return []
        if event.first <= self.last_add_confirmed:
            return self._pass_over(
                event.first, "may or may not exist" if verdict is Verdict.UNKNOWN else "seems absent"
            )
        if verdict is Verdict.UNKNOWN:
            if self._accepted_loss is None:
                return self._stop(f"entry {event.first} may or may not exist")
            self._accept(f"whether there is an entry {event.first}")
        return self._measure()

    def _pass_over(self, entry_id: int, how: str) -> list[Action]:
        """A confirmed entry that no bookie returned."""
        if self._accepted_loss is None:
            return self._stop(f"entry {entry_id} is confirmed, but {how}")
        self._accept(f"entry {entry_id}")
        self.next_entry_id, self._length = entry_id + 1, None
        return self._read()

    # -- WRITING

    def _write_back(self, run: ReadAnswered) -> list[Action]:
        self.phase = Phase.WRITING
        self._answers, self._writing = {}, run
        return self._send(self._target.write_set_of(run.first), run)

    def _send(self, bookies: tuple[str, ...], run: ReadAnswered) -> list[Action]:
        lac, lafr = self.last_add_confirmed, self.last_add_fully_replicated
        return [SendAdd(bookies, run.first, run.last, lac, run.entries, lafr)]

    def _written_back(self, event: AddAnswered) -> list[Action]:
        run, bookies = self._writing, self._target.write_set_of(event.first)
        if run is None or (event.first, event.last) != (run.first, run.last) or event.bookie not in bookies:
            return []
        if _unauthorized(event.response):
            return self._fail(_wrong_password(self._metadata.ledger_id))
        self._answers[event.bookie] = event.response
        positives, negatives, unknowns = _count(self._answers)
        copies = self._policy.copies(self._metadata)
        if positives >= copies:
            self.next_entry_id, self._length = run.last + 1, run.length
            self._writing = None
            return self._read()
        if negatives + unknowns <= self._metadata.write_quorum - copies or self._replaced:
            return []
        if not self._replaces_bookies:
            return self._stop(f"entries {run.first}..{run.last} could not be written back to {copies} bookies")
        return self._replace()

    def _replace(self) -> list[Action]:
        """Choose bookies in place of all that refused the run."""
        ensemble = self._target.last_fragment.ensemble
        refused = {bookie for bookie, answer in self._answers.items() if not isinstance(answer, Positive)}
        self._replaced = tuple(bookie for bookie in ensemble if bookie in refused)
        return [ChooseBookies(ensemble, self._replaced)]

    def _bookies_chosen(self, event: BookiesChosen) -> list[Action]:
        run = self._writing
        if run is None or not self._replaced:
            return []
        if any(not isinstance(answer, Positive) for b, answer in self._answers.items() if b not in self._replaced):
            return self._replace()
        swap = dict(zip(self._replaced, event.bookies, strict=True))
        ensemble = tuple(swap.get(bookie, bookie) for bookie in self._target.last_fragment.ensemble)
        self._target = self._target.with_ensemble(run.first, ensemble)
        self._answers = {b: answer for b, answer in self._answers.items() if b not in swap}
        self._replaced = ()
        return self._send(event.bookies, run)

    # -- MEASURING: the length of a ledger in which nothing had to be written back

    def _measure(self) -> list[Action]:
        last = self.next_entry_id - 1
        if last == NO_ENTRY:
            self._length = 0
        if self._length is not None:
            return self._close()
        self.phase = Phase.MEASURING
        self._answers = {}
        return [SendRead(bookie, last, last) for bookie in self._metadata.write_set_of(last)]

    def _measured(self, event: ReadAnswered) -> list[Action]:
        if event.last >= event.first:
            self._length = event.length
            return self._close()
        self._answers[event.bookie] = event.following
        if read_verdict(self._metadata.write_quorum, *_count(self._answers)) is Verdict.PENDING:
            return []
        if self._accepted_loss is None:
            return self._stop(f"entry {event.first} is confirmed, but no bookie returned it")
        self._accept(f"entry {event.first}, and with it the ledger's length")
        self._length = 0
        return self._close()

    # -- CLOSING

    def _close(self) -> list[Action]:
        self.phase = Phase.CLOSING
        return [WriteMetadata(self._closed(), self._version)]

    def _closed(self) -> LedgerMetadata:
        assert self._length is not None
        closed = self._target.close_at(self.next_entry_id - 1, self._length)
        if self._accepted_loss is None or not self._not_known:
            return closed
        return replace(self._accepted_loss, not_known=tuple(self._not_known)).noted_in(closed)

    # -- ends

    def _finish(self, metadata: LedgerMetadata, version: int) -> list[Action]:
        self.phase = Phase.DONE
        return [Finish(metadata, version)]

    def _fail(self, error: BookKeeperError) -> list[Action]:
        self.phase = Phase.DONE
        return [Fail(error)]

    def _accept(self, what: str) -> None:
        """Note what is not known, as far as a record has room for it."""
        if len(self._not_known) < _NOTES_MAX:
            self._not_known.append(f"{what} ({self._answers_in_words()})")

    def _answers_in_words(self) -> str:
        return ", ".join(f"{bookie}: {_say(answer)}" for bookie, answer in self._answers.items()) or "none"

    def _stop(self, why: str) -> list[Action]:
        return self._fail(
            LedgerRecoveryError(
                f"ledger {self._metadata.ledger_id} was not recovered ({self.phase.name.lower()}): {why}; answers: "
                f"{self._answers_in_words()}. "
                "Nothing was truncated; try again when more of its bookies are up"
            )
        )

    @property
    def _ensemble(self) -> tuple[str, ...]:
        return self._metadata.last_fragment.ensemble


def _count(answers: dict[str, Response]) -> tuple[int, int, int]:
    """(positives, negatives, unknowns)."""
    kinds = [type(answer) for answer in answers.values()]
    return kinds.count(Positive), kinds.count(Negative), kinds.count(Unknown)


def _unauthorized(response: Response) -> bool:
    return isinstance(response, Unknown) and response.reason is UnknownReason.UNAUTHORIZED


def _wrong_password(ledger_id: int) -> UnauthorizedAccessError:
    return UnauthorizedAccessError(f"wrong password for ledger {ledger_id}; use the one it was created with")


def _say(response: Response) -> str:
    return (
        response.reason.value
        if isinstance(response, Negative)
        else str(response)
        if isinstance(response, Unknown)
        else "ok"
    )

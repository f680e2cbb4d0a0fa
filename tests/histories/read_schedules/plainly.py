"""The steps of ledger recovery, written without regard to time: one answer after the other, entry by entry.

Law: nothing here uses ``bookspark.protocol.reading`` or ``quorum``. Instead of counting, this checks the bookies left in each
write set.

``recovery`` is a generator: it is sent one event after the other, and yields the expected actions. For a Fail only the error's
type is given.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from bookspark.errors import LedgerRecoveryError, UnauthorizedAccessError
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.accepted_loss import LOSSES_MAX, AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState, Replication
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from tests.histories.read_schedules.bookies import ensemble_of, members

Answers = dict[str, Response]
Actions = list[Any]
Plain = Generator[Actions, Any, None]
_LOST = (UnknownReason.LIMBO, UnknownReason.LOST)


@dataclass(frozen=True)
class How:
    """Options of a recovery: see ``LedgerRecovery``."""

    run_entries_max: int = 10_000
    replaces_bookies: bool = False
    ack_quorum_reads: bool = False
    accepted_loss: AcceptedLoss | None = None


class Ends(Exception):
    """The recovery ends with an error of this type."""

    def __init__(self, error: type[Exception] = LedgerRecoveryError) -> None:
        self.error = error


class Latest:
    """The answers of the latest round of requests, by bookie."""

    def __init__(self) -> None:
        self.answers: Answers = {}


class Note(NamedTuple):
    """An unknown entry, or −1 for the fence, with the bookies in question."""

    kind: LossKind
    entry_id: int
    bookies: tuple[str, ...]


def recovery(how: How) -> Plain:
    """A generator that is first sent a MetadataRead."""
    event = yield []
    latest = Latest()
    try:
        yield from _from_the_record(event, how, latest)
    except Ends as end:
        # A bookie that refuses the password alone ends nothing: it may have a stranger's entry with another key.
        refused = end.error is LedgerRecoveryError and any(map(_refuses, latest.answers.values()))
        yield [act.Fail(UnauthorizedAccessError() if refused else end.error())]
    while True:
        yield []


def _from_the_record(event: Any, how: How, latest: Latest) -> Plain:
    while True:
        if isinstance(event, act.MetadataFailed):
            raise Ends(type(event.error))
        record, version = event.metadata, event.version
        if record.closed:
            yield [act.Finish(record, version)]
            return
        if record.state is LedgerState.OPEN:
            record = replace(record, state=LedgerState.IN_RECOVERY)
            event = yield from _hear([act.WriteMetadata(record, version)], _STORE)
            if isinstance(event, act.MetadataConflict):
                event = yield from _hear([act.ReadMetadata()], act.MetadataRead)
                continue
            version = event.version
        end = yield from _OneLedger(record, how, latest).end()
        event = yield from _hear([act.WriteMetadata(end, version)], _STORE)
        if isinstance(event, act.MetadataWritten):
            yield [act.Finish(end, event.version)]
            return
        event = yield from _hear([act.ReadMetadata()], act.MetadataRead)


_STORE = (act.MetadataWritten, act.MetadataConflict)


def _hear(
    asks: Actions, wanted: Any, concerns: Callable[[Any], bool] = lambda event: True
) -> Generator[Actions, Any, Any]:
    """Send requests, and wait for a matching answer."""
    while True:
        event = yield asks
        asks = []
        if isinstance(event, act.DeadlinePassed):
            raise Ends
        if isinstance(event, act.MetadataFailed):
            raise Ends(type(event.error))
        if isinstance(event, wanted) and concerns(event):
            return event


def _refuses(told: Response) -> bool:
    return isinstance(told, Unknown) and told.reason is UnknownReason.UNAUTHORIZED


class _OneLedger:
    """Recovery of a ledger in state IN_RECOVERY, to its end."""

    def __init__(self, record: LedgerMetadata, how: How, latest: Latest) -> None:
        self.record, self.how, self.latest = record, how, latest
        self.guaranteed = record.replication is Replication.GUARANTEED
        self.fragments = record.fragments
        self.notes: list[Note] = []
        self.length: int | None = None
        self.held_to = -1

    def end(self) -> Generator[Actions, Any, LedgerMetadata]:
        """The closing record of the ledger."""
        lac, lafr = yield from self._fence()
        at = max(lafr if self.guaranteed else lac, self.record.fragments[-1].first_entry_id - 1) + 1
        while (following := (yield from self._entry(at, lac, lafr))) is not None:
            at = following
        last = at - 1
        if last < 0:
            self.length = 0
        if self.length is None:
            self.length = yield from self._length_at(last)
        fragments = tuple(one for one in self.fragments if one.first_entry_id <= max(last, 0))
        record = replace(
            self.record, state=LedgerState.CLOSED, last_entry_id=last, length=self.length, fragments=fragments
        )
        if not self.notes:
            return record
        assert self.how.accepted_loss is not None
        losses = tuple(_as_recorded(self.notes, record))
        return replace(record, accepted_loss=replace(self.how.accepted_loss, losses=losses))

    def _fence(self) -> Generator[Actions, Any, tuple[int, int]]:
        """The highest LAC and LAFR reported until the writer can reach no ack quorum."""
        ensemble = self.record.fragments[-1].ensemble
        answers = self.latest.answers = {}
        lac = lafr = -1
        asks: Actions = [act.SendReadLac(name, fence=True) for name in ensemble]
        while True:
            event = yield from _hear(asks, act.LacAnswered, lambda event: event.bookie in ensemble)
            asks = []
            answers[event.bookie] = event.response
            if isinstance(event.response, Positive):
                lac, lafr = max(lac, event.last_add_confirmed), max(lafr, event.last_add_fully_replicated)
            fenced = {name for name, said in answers.items() if isinstance(said, Positive)}
            if not self._may_confirm(set(ensemble) - fenced):
                return lac, lafr
            if not self._may_confirm(set(answers) - fenced):
                continue
            if self.how.accepted_loss is None:
                raise Ends
            if len(answers) < len(ensemble):
                continue
            lost = set(self._lost(answers))
            if self._may_confirm(set(ensemble) - fenced - lost):
                raise Ends
            self.notes.append(Note(LossKind.FENCE, -1, tuple(sorted(lost))))
            return lac, lafr

    def _may_confirm(self, left: set[str]) -> bool:
        """Whether these bookies alone could confirm an entry."""
        ensemble = self.record.fragments[-1].ensemble
        sets = (members(self.record, ensemble, i) for i in range(self.record.ensemble_size))
        return any(len(left.intersection(one)) >= self.record.ack_quorum for one in sets)

    def _entry(self, at: int, lac: int, lafr: int) -> Generator[Actions, Any, int | None]:
        """The next entry to read, or None if the ledger ends before this entry."""
        record, how = self.record, self.how
        asked = members(record, record.fragments[-1].ensemble, at)
        last = at + (how.run_entries_max if record.ensemble_size == record.write_quorum else 1) - 1
        answers = self.latest.answers = {}
        runs: list[act.ReadAnswered] = []
        asks: Actions = [act.SendRead(name, at, last, fence=True) for name in asked]
        while True:
            event = yield from _hear(
                asks, act.ReadAnswered, lambda event: event.first == at and event.last <= last and event.bookie in asked
            )
            asks = []
            answers[event.bookie] = about_the_first(event)
            if event.last >= at:
                runs.append(event)
            if sum(isinstance(one, Positive) for one in answers.values()) >= (
                record.ack_quorum if how.ack_quorum_reads else 1
            ):
                run = min(runs, key=lambda run: run.last)
                yield from self._write_back(run, lac, lafr)
                self.length = run.length
                return run.last + 1
            denied = sum(isinstance(one, Negative) for one in answers.values())
            absent = len(asked) - denied < record.ack_quorum
            all_answered = len(answers) == len(asked)
            if at <= lac:
                if (absent or all_answered) and (all_answered or how.accepted_loss is None):
                    return self._pass_over(at, answers)
            elif absent:
                return None
            elif all_answered:
                if how.accepted_loss is None or self._may_know(answers):
                    raise Ends
                if at > self.held_to:
                    yield from self._look(at)
                    if at <= self.held_to:
                        self.latest.answers = answers
                if at <= self.held_to:
                    return self._pass_over(at, answers)
                self.notes.append(Note(LossKind.END, at, tuple(sorted(self._lost(answers)))))
                return None

    def _pass_over(self, at: int, answers: Answers) -> int:
        if self.how.accepted_loss is None or self._may_know(answers):
            raise Ends
        self.notes.append(Note(LossKind.ENTRIES, at, tuple(sorted(answers))))
        if len(list(_together(self.notes))) > LOSSES_MAX:
            raise Ends
        self.length = None
        return at + 1

    def _look(self, at: int) -> Generator[Actions, Any, None]:
        """Check whether any bookie holds an entry behind this one."""
        ensemble = self.record.fragments[-1].ensemble
        answers = self.latest.answers = {}
        held = -1
        asks: Actions = [act.SendListHeld(name, at + 1) for name in ensemble]
        while len(answers) < len(ensemble):
            event = yield from _hear(
                asks, act.HeldAnswered, lambda event: event.first == at + 1 and event.bookie in ensemble
            )
            asks = []
            none = isinstance(event.response, Positive) and event.last < event.first
            answers[event.bookie] = Negative() if none else event.response
            held = max(held, event.last if isinstance(event.response, Positive) else -1)
        if held > at:
            self.held_to = held
        elif self._may_know(answers):
            raise Ends

    def _write_back(self, run: act.ReadAnswered, lac: int, lafr: int) -> Generator[Actions, Any, None]:
        record = self.record
        copies = record.write_quorum if self.guaranteed else record.ack_quorum
        ensemble = self.fragments[-1].ensemble
        answers = self.latest.answers = {}
        replaced: tuple[str, ...] | None = None

        def sent(bookies: Sequence[str]) -> Actions:
            return [act.SendAdd(tuple(bookies), run.first, run.last, lac, run.entries, lafr)]

        def concerns(event: Any) -> bool:
            mine = not isinstance(event, act.AddAnswered) or (event.first, event.last) == (run.first, run.last)
            return mine and getattr(event, "bookie", ensemble[run.first % len(ensemble)]) in members(
                record, ensemble, run.first
            )

        asks = sent(members(record, ensemble, run.first))
        while True:
            event = yield from _hear(asks, (act.AddAnswered, act.BookiesChosen, act.NoBookies), concerns)
            asks = []
            if isinstance(event, act.AddAnswered):
                answers[event.bookie] = event.response
                if replaced is not None:
                    continue
            refused = {name for name, said in answers.items() if not isinstance(said, Positive)}
            if len(answers) - len(refused) >= copies:
                return
            if isinstance(event, act.NoBookies):
                raise Ends
            if isinstance(event, act.BookiesChosen) and replaced is not None and refused <= set(replaced):
                for gone, new in zip(replaced, event.bookies, strict=True):
                    ensemble = tuple(new if name == gone else name for name in ensemble)
                    del answers[gone]
                before = [one for one in self.fragments if one.first_entry_id < run.first]
                self.fragments = (*before, Fragment(run.first, ensemble))
                replaced, asks = None, sent(event.bookies)
                continue
            if isinstance(event, act.AddAnswered) and record.write_quorum - len(refused) >= copies:
                continue
            if not self.how.replaces_bookies:
                raise Ends
            replaced = tuple(name for name in ensemble if name in refused)
            asks = [act.ChooseBookies(ensemble, replaced)]

    def _length_at(self, last: int) -> Generator[Actions, Any, int]:
        asked = members(self.record, ensemble_of(self.record, last), last)
        answers = self.latest.answers = {}
        asks: Actions = [act.SendRead(name, last, last) for name in asked]
        while len(answers) < len(asked):
            event = yield from _hear(
                asks,
                act.ReadAnswered,
                lambda event: event.first == last and event.last <= last and event.bookie in asked,
            )
            asks = []
            if event.last == last:
                return event.length  # type: ignore[no-any-return]
            answers[event.bookie] = about_the_first(event)
        self._pass_over(last, answers)
        return 0

    def _lost(self, answers: Mapping[str, Response]) -> list[str]:
        """Bookies that report the loss, or are named as lost by the operator."""
        accepted = self.how.accepted_loss
        unknown = {name: said for name, said in answers.items() if isinstance(said, Unknown)}
        return [name for name, said in unknown.items() if accepted and (name in accepted.named or said.reason in _LOST)]

    def _may_know(self, answers: Mapping[str, Response]) -> bool:
        lost = self._lost(answers)
        return any(not isinstance(said, Negative) and name not in lost for name, said in answers.items())


def about_the_first(event: act.ReadAnswered) -> Response:
    """The answer that a read implies for its first entry."""
    if event.last >= event.first:
        return Positive()
    return Unknown(UnknownReason.BAD_REQUEST) if isinstance(event.following, Positive) else event.following


def _together(notes: Sequence[Note]) -> Iterator[tuple[Note, int]]:
    """The notes, joined for adjacent entries on the same bookies, each with its last entry."""
    first: Note | None = None
    last = -1
    for note in notes:
        same = first is not None and (note.kind, note.bookies) == (first.kind, first.bookies)
        if first is not None and same and note.kind is LossKind.ENTRIES and note.entry_id in (last, last + 1):
            last = note.entry_id
            continue
        if first is not None:
            yield first, last
        first, last = note, note.entry_id
    if first is not None:
        yield first, last


def _as_recorded(notes: Sequence[Note], record: LedgerMetadata) -> Iterator[Loss]:
    """Each loss on the bookies of the closed record's write sets, fragment by fragment."""
    for note, last in _together(notes):
        if note.kind is not LossKind.ENTRIES:
            yield Loss(note.kind, note.entry_id, note.entry_id, note.bookies)
            continue
        first = note.entry_id
        for at in range(note.entry_id, last + 1):
            ensemble = ensemble_of(record, at)
            starts_anew = any(one.first_entry_id == at + 1 for one in record.fragments)
            if at == last or starts_anew:
                yield Loss(note.kind, first, at, tuple(sorted(members(record, ensemble, first))))
                first = at + 1

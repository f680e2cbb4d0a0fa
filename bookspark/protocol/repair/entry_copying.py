"""Copying of entries from a ledger's bookies to others: the common part of re-replication and of a bookie's healing.

Law: a copy counts once its target has it synced, so it is written as a recoverer writes. Reads run ahead of writes, and the bytes
under way are bounded (``Room``), for several ledgers together if they share one. A copying with nothing under way may always
begin one run, so none waits for another. An entry for several targets is read once. An unreadable or refused entry stops nothing
else: the end lists such entries (``NotCopied``). The replica of the last delivery is asked first, so a dead one costs time once.
::

    NEW ──Start──► COPYING ──everything was tried──► DONE
                    │   ▲  entries came: write them; an ack, an entry that nobody gives: read on
                    └───┘

* After many missing answers running a bookie counts as unreachable: it is not asked for the rest.
* A striped ledger with short entries is read in *sweeps*, because one request for each entry would cost more than all else. One
  bookie is asked for all its entries of many runs (a sparse read), and the next bookie for the rest. Entries missing in a sweep
  of their bookie are read by themselves.
* A run refused because of some of its entries is halved until these are isolated. A target that refuses everything, or does not
  answer, gets nothing more.

The copies carry a LAC (last add confirmed) that is certainly confirmed: the end of a closed ledger, or the entry before the last
fragment. Source: ``LedgerFragmentReplicator`` of BookKeeper, which gives a fragment up at its first unreadable entry.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from itertools import islice
from typing import NamedTuple

from bookspark.errors import BookKeeperError, EntriesNotCopiedError, LedgerRecoveryError
from bookspark.protocol.ledger.actions import (
    Action,
    AddAnswered,
    DeadlinePassed,
    Deliver,
    Fail,
    Finish,
    ReadAnswered,
    SendAdd,
    SendRead,
    Start,
)
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown, UnknownReason
from bookspark.protocol.ledger.transitions import LATE, IllegalEventError, cell_of, row
from bookspark.protocol.reading.answers import in_words, is_wrong_password
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.reading.read_order import ReadOrder
from bookspark.protocol.repair.replication_plan import Copy, Piece, pieces, runs_of
from bookspark.protocol.repair.underreplication_task import NO_OTHER, Missed

# -- Runs: a *run* is read by one request to a bookie, and written by one request.
#
# Law: a run has about ``RUN_BYTES``, and at least one entry. With known ends of stored batches, it may be twice as long, and ends
# with a batch, if it contains an end. A run that ends inside of a batch costs more: its bookie splits the batch, with new
# checksums, and the copy stays split (docs/decisions/profile.md).


RUN_BYTES = 1 << 20
"""Approximate bytes of one read, if the entries' size is known."""
LONG_RUN_BYTES = 2 * RUN_BYTES
"""Approximate bytes of one read, if the ends of stored batches are known."""


def run_entries(metadata: LedgerMetadata, entries_max: int) -> int:
    """Entries in ``RUN_BYTES``, at most ``entries_max``; ``entries_max`` if their size is unknown."""
    entries = metadata.last_entry_id + 1
    if not metadata.closed or entries < 1 or metadata.length < 1:
        return entries_max
    return max(1, min(entries_max, RUN_BYTES * entries // metadata.length))


def run_end(first: int, entries: int, batch_ends: Sequence[int]) -> int:
    """The last entry of the run from ``first`` on. ``entries``: their number in ``RUN_BYTES``. ``batch_ends``: the last entry ids
    of stored batches, ascending; empty if unknown."""
    if batch_ends:
        before = bisect_right(batch_ends, first + entries * LONG_RUN_BYTES // RUN_BYTES - 1)
        if before and batch_ends[before - 1] >= first:
            return batch_ends[before - 1]
    return first + entries - 1


# -- Entries not copied: their ids, targets, and the bookies' answers.


_TOLD_MAX = 1000
"""Most ranges in a message."""
_NOT_GIVEN = frozenset((UnknownReason.DIGEST_MISMATCH, UnknownReason.LOST))
"""Answers of a bookie whose copy can't be read any more, some by our own check."""


class NotCopied(NamedTuple):
    """The entries ``first..last``, which ``targets`` did not get.

    Law: an entry is *lost* only if every bookie of its write set but the targets was reached, and each has no such entry, lost
    its copy, or gave bytes with a wrong digest. It is *unreached* if any such bookie could not be asked, is in limbo, or can't
    read now (an I/O error, as without a free file descriptor). The next attempt may read it, so nothing final may be written
    about it."""

    first: int
    last: int
    targets: tuple[str, ...]
    answers: Mapping[str, Response]
    """Each bookie's answer: to the reads, or to the write if the entries were ``refused``."""
    refused: bool = False
    """The entries were read, or would have been, and the targets refused them."""

    @property
    def unreached(self) -> tuple[str, ...]:
        """Bookies that may have the entries, and could not be asked or can't read them now."""
        if self.refused:
            return ()
        return tuple(b for b, answer in self.answers.items() if b not in self.targets and not is_not_given(answer))

    @property
    def lost(self) -> bool:
        """Was every bookie reached without a copy?"""
        return not self.refused and not self.unreached

    def missed(self) -> Missed:
        words = {bookie: in_words({bookie: answer}).partition(": ")[2] for bookie, answer in self.answers.items()}
        return Missed(self.first, self.last, self.lost, self.unreached, words)

    def __str__(self) -> str:
        what = f"entry {self.first}" if self.first == self.last else f"entries {self.first}..{self.last}"
        verb = f"could not be copied to {', '.join(self.targets)}" if self.refused else "could not be read"
        return f"{what} {verb} ({in_words(self.answers) if self.answers else NO_OTHER})"


def refusing_targets(entries: Iterable[NotCopied]) -> frozenset[str]:
    """Targets that refused the ledger's password."""
    refused = (item for one in entries if one.refused for item in one.answers.items())
    return frozenset(target for target, answer in refused if is_wrong_password(answer))


def is_not_given(answer: Response) -> bool:
    """Was the bookie reached, with the entry absent, or its copy lost or damaged for ever?"""
    return isinstance(answer, Negative) or (isinstance(answer, Unknown) and answer.reason in _NOT_GIVEN)


def joined(found: Iterable[NotCopied]) -> list[NotCopied]:
    """Ascending by id, with neighbours of the same answers as one range."""
    result: list[NotCopied] = []
    for one in sorted(found, key=lambda each: (each.targets, each.refused, each.first)):
        before = result[-1] if result else None
        if before is not None and before.last + 1 == one.first and _alike(before, one):
            result[-1] = before._replace(last=one.last)
        else:
            result.append(one)
    return sorted(result, key=lambda each: (each.first, each.last))


def _alike(one: NotCopied, other: NotCopied) -> bool:
    if (one.targets, one.refused) != (other.targets, other.refused) or one.answers.keys() != other.answers.keys():
        return False
    return all(_kind(answer) == _kind(other.answers[bookie]) for bookie, answer in one.answers.items())


def _kind(answer: Response) -> object:
    """Without words, which may name an entry."""
    return answer.reason if isinstance(answer, Negative | Unknown) else type(answer)


def not_copied_error(ledger_id: int, found: Iterable[NotCopied]) -> EntriesNotCopiedError:
    """The error that names all of ``found``; its ``entries`` are ``found``, joined."""
    entries = joined(found)
    told = "; ".join(str(one) for one in islice(entries, _TOLD_MAX))
    more = f"; and {len(entries) - _TOLD_MAX} more ranges" if len(entries) > _TOLD_MAX else ""
    hint = "no bookie gives them" if all(one.lost for one in entries) else "they are tried again"
    return EntriesNotCopiedError(f"ledger {ledger_id}: {told}{more}; {hint}", entries)


# -- The machine: reads and writes of a copying.


RUNS_MAX = 8
"""Most runs of ``RUN_BYTES`` under way in a copying with a room of its own."""
REQUESTS_MAX = 64
"""Most runs of any size: a striped ledger's have one entry."""
_SWEPT_MIN = 64
"""A striped ledger is swept if a run has at least this many entries."""
_SWEPT_MAX = 256
_SWEPT_BYTES = 8 << 10
"""A sweep covers at most ``_SWEPT_MAX`` entries. Each counts as at least ``_SWEPT_BYTES`` under way: it is a separate request to
its target, which takes only some thousand requests at a time."""
_SILENT_MAX = 16
"""Missing answers running after which a bookie is not asked for the rest."""
_REFUSED_MAX = 64
"""Entries refused one by one after which a target gets nothing more."""
_SILENCE = frozenset((UnknownReason.UNREACHABLE, UnknownReason.TIMEOUT))
_OF_ENTRIES = frozenset((UnknownReason.IO_ERROR, UnknownReason.CONFLICT))
"""Reasons for which a target may refuse some entries and take others."""


class CopyingPhase(Enum):
    NEW = auto()
    COPYING = auto()
    DONE = auto()


CopyingEvent = ReadAnswered | AddAnswered | DeadlinePassed

TRANSITIONS = {
    CopyingPhase.NEW: row(taken=(Start,)),
    CopyingPhase.COPYING: row(taken=(ReadAnswered, AddAnswered, DeadlinePassed)),
    # The requests under way at the deadline are answered later.
    CopyingPhase.DONE: row(late=(ReadAnswered, AddAnswered, DeadlinePassed)),
}


@dataclass(frozen=True, slots=True)
class Room:
    """Bound on the bytes under way."""

    bytes_max: int = RUNS_MAX * RUN_BYTES

    def fits(self, held: int, size: int) -> bool:
        """May a copying with ``held`` bytes under way begin a run of ``size``? Asked again after each answer."""
        return not held or held + size <= self.bytes_max


ALONE = Room()


@dataclass(slots=True)
class _Reading:
    """A run whose first entry is being read."""

    piece: Piece
    read: RangeRead
    asked: SendRead
    size: int


class _Sweep(NamedTuple):
    """Entries of a striped ledger in one request to a bookie."""

    ids: list[int]
    targets: tuple[str, ...]
    asked: SendRead
    size: int


class _Writing(NamedTuple):
    """Runs in one request to a target, and their approximate bytes."""

    runs: list[tuple[int, int]]
    size: int


class EntryCopying:
    """Makes ``copies``, whose entries are all confirmed. It ends with a Finish, or, once all was tried, with an
    EntriesNotCopiedError that lists the rest."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        copies: Iterable[Copy],
        run_entries_max: int,
        doubtful: Collection[str] = (),
        room: Room = ALONE,
        batch_ends: Sequence[int] = (),
    ) -> None:
        """``doubtful``: bookies to ask last, because they are probably lost, or lack the entries. ``batch_ends``: as for
        ``run_end``."""
        self.phase = CopyingPhase.NEW
        self._metadata = metadata
        self._left = list(reversed(pieces(copies)))
        """Pieces without a read so far, in reverse order."""
        self._run_entries = run_entries(metadata, run_entries_max)
        self._batch_ends = batch_ends
        self._order = ReadOrder(doubtful=frozenset(doubtful))
        striped = metadata.ensemble_size > metadata.write_quorum
        self._sweeps = striped and self._run_entries >= _SWEPT_MIN
        self._alone: set[int] = set()
        """Entries to read by themselves: a sweep did not bring them, or their target refused them."""
        self._readings: dict[int, _Reading | _Sweep] = {}
        """By the first entry."""
        self._writing: dict[tuple[str, int, int], _Writing] = {}
        """By target, first and last entry."""
        self._room = room
        self._bytes_under_way = 0
        self._silent: dict[str, int] = {}
        """Missing answers since the last answer."""
        self._unreachable: dict[str, Unknown] = {}
        """Bookies not asked any more, with their last answer."""
        self._refused: dict[str, int] = {}
        """Entries refused one by one, by target."""
        self._dropped: dict[str, Response] = {}
        """Targets that get nothing more, with the deciding answer."""
        self._not_copied: list[NotCopied] = []

    def start(self) -> list[Action]:
        return self.step(Start())

    def step(self, event: Start | CopyingEvent) -> list[Action]:
        """Raises IllegalEventError, and changes nothing, for an answer to a question never asked."""
        if cell_of(TRANSITIONS, self.phase, event) is LATE:
            return []
        if isinstance(event, ReadAnswered | AddAnswered) and not self.awaits(event):
            raise IllegalEventError(self.phase, event, "it does not answer a request that is under way")
        match event:
            case Start():
                self.phase = CopyingPhase.COPYING
                return self._go_on()
            case ReadAnswered():
                self._note_silence(event)
                reading = self._readings.pop(event.first)
                self._bytes_under_way -= reading.size
                actions = (
                    self._swept(reading, event) if isinstance(reading, _Sweep) else self._hand_over(reading, event)
                )
                return actions + self._go_on()
            case AddAnswered():
                self._written(event)
                return self._go_on()
            case DeadlinePassed():
                what = f"entries of ledger {self._metadata.ledger_id} were not copied in time"
                return self._fail(LedgerRecoveryError(f"{what}; they are tried again"))

    def awaits(self, event: ReadAnswered | AddAnswered) -> bool:
        """Does this answer a request under way?"""
        if isinstance(event, AddAnswered):
            return (event.bookie, event.first, event.last) in self._writing
        reading = self._readings.get(event.first)
        return (
            reading is not None
            and event.bookie == reading.asked.bookie
            and event.first - 1 <= event.last <= reading.asked.last
            and all(event.last < entry_id <= reading.asked.last for entry_id, _ in event.ahead)
        )

    # -- reading

    def _go_on(self) -> list[Action]:
        """Begin as many reads as may be under way; end if everything was tried."""
        actions: list[Action] = []
        while self._left and self._has_room() and self._left[-1].first not in self._readings:
            actions += self._begin(self._left.pop())
        if self._left or self._readings or self._writing:
            return actions
        if self._not_copied:
            return self._fail(not_copied_error(self._metadata.ledger_id, self._not_copied))
        self.phase = CopyingPhase.DONE
        return [Finish(self._metadata)]

    def _has_room(self) -> bool:
        requests = len(self._readings) + len(self._writing)
        return requests < REQUESTS_MAX and self._room.fits(
            self._bytes_under_way, LONG_RUN_BYTES if self._batch_ends else RUN_BYTES
        )

    def _size(self, count: int) -> int:
        return max(_SWEPT_BYTES * count if self._sweeps else 1, RUN_BYTES * count // self._run_entries)

    def _begin(self, piece: Piece) -> list[Action]:
        """Read the first run of the piece, and leave the rest."""
        targets = tuple(target for target in piece.targets if target not in self._dropped)
        self._note_refused(piece, [target for target in piece.targets if target in self._dropped])
        if not targets:
            return []
        piece = piece._replace(targets=targets)
        others = [bookie for bookie in self._metadata.write_set_of(piece.first) if bookie not in targets]
        if all(bookie in self._unreachable for bookie in others):
            run = piece._replace(last=self._end_of_write_set(piece))
            self._leave(piece, run.last)
            self._not_copied.append(NotCopied(*run, {bookie: self._unreachable[bookie] for bookie in others}))
            return []
        run = piece._replace(last=min(piece.last, run_end(piece.first, self._run_entries, self._batch_ends)))
        self._leave(piece, run.last)
        if self._sweeps and piece.first not in self._alone:
            return self._sweep(run, [bookie for bookie in others if bookie not in self._unreachable])
        read = RangeRead(self._metadata, run.first, run.last, self._order)
        return self._read_on(run, read, read.start())

    def _end_of_write_set(self, piece: Piece) -> int:
        """The last entry of the piece that surely shares the first one's write set."""
        if self._metadata.ensemble_size > self._metadata.write_quorum:
            return piece.first
        following = (f.first_entry_id for f in self._metadata.fragments if f.first_entry_id > piece.first)
        return min(piece.last, next(following, piece.last + 1) - 1)

    def _leave(self, piece: Piece, done: int) -> None:
        """Queue the rest of the piece, behind entry ``done``, as the next one."""
        if done < piece.last:
            self._left.append(piece._replace(first=done + 1))

    def _hand_over(self, reading: _Reading, event: ReadAnswered) -> list[Action]:
        piece, read, asked = reading.piece, reading.read, reading.asked
        actions = read.step(event)
        if event.last < asked.last and event.last >= event.first and isinstance(event.following, Positive):
            # The answer was full. A run that is not longer than an answer needs no second one.
            self._run_entries = min(self._run_entries, event.last - event.first + 1)
        return self._read_on(piece, read, actions)

    def _read_on(self, piece: Piece, read: RangeRead, actions: list[Action]) -> list[Action]:
        """The next request of the read, or the write of its delivered entries."""
        while True:
            match actions:
                case [Deliver(first, last, entries), *_]:
                    self._order = replace(self._order, first=read.delivered_by)
                    # The read's other requests are dropped: the next run starts after these entries.
                    self._leave(piece, last)
                    return self._write(piece.targets, [(first, last)], entries)
                case [SendRead() as request]:
                    if request.bookie not in self._unreachable:
                        size = self._size(piece.last - piece.first + 1)
                        self._readings[piece.first] = _Reading(piece, read, request, size)
                        self._bytes_under_way += size
                        return actions
                    why = self._unreachable[request.bookie]
                    actions = read.step(ReadAnswered(request.bookie, piece.first, piece.first - 1, why))
                case _:
                    self._not_copied.append(NotCopied(piece.first, piece.first, piece.targets, dict(read.answers)))
                    self._leave(piece, piece.first)
                    return []

    def _sweep(self, piece: Piece, bookies: Sequence[str]) -> list[Action]:
        """Ask the bookie with the most entries for this piece and those after it."""
        ids = list(range(piece.first, piece.last + 1))
        while self._left and len(ids) < _SWEPT_MAX:
            more = self._left[-1]
            # Entries behind a gap belong to another sweep; this one would bring them once more.
            if more.targets != piece.targets or not ids[-1] < more.first <= ids[-1] + 2 * self._metadata.ensemble_size:
                break
            self._left.pop()
            ids += range(more.first, more.last + 1)
        near = [self._metadata.write_set_of(entry_id) for entry_id in ids[: 2 * self._metadata.ensemble_size]]
        doubtful = self._order.doubtful
        bookie = max(bookies, key=lambda one: (one not in doubtful, sum(one in write_set for write_set in near)))
        request = SendRead(bookie, ids[0], ids[-1], sparse=True)
        self._readings[ids[0]] = sweep = _Sweep(ids, piece.targets, request, self._size(len(ids)))
        self._bytes_under_way += sweep.size
        return [request]

    def _swept(self, sweep: _Sweep, event: ReadAnswered) -> list[Action]:
        """Write the sweep's entries. The rest goes to another bookie, or, if this bookie should hold it, to a read of its own.

        The entries of the first run can't be separated, so it is of use only if all of it is wanted."""
        wanted, came = set(sweep.ids), dict(event.ahead)
        run = range(event.first, event.last + 1)
        whole = run if wanted.issuperset(run) else ()
        content = list(event.entries) if whole else []
        ids = [*whole, *(entry_id for entry_id in sweep.ids if entry_id in came)]
        for entry_id in ids[len(whole) :]:
            content += came[entry_id]
        looked_to = max((event.first, event.last, *came))
        rest = sorted(wanted.difference(ids))
        for entry_id in rest:
            if entry_id <= looked_to and sweep.asked.bookie in self._metadata.write_set_of(entry_id):
                self._alone.add(entry_id)
        self._left += reversed([Piece(*each, sweep.targets) for each in runs_of(rest)])
        return self._write(sweep.targets, runs_of(ids), content) if ids else []

    def _note_silence(self, event: ReadAnswered) -> None:
        bookie, answer = event.bookie, event.following
        if event.last >= event.first or not isinstance(answer, Unknown) or answer.reason not in _SILENCE:
            self._silent.pop(bookie, None)
            return
        self._silent[bookie] = self._silent.get(bookie, 0) + 1
        if self._silent[bookie] >= _SILENT_MAX:
            self._unreachable[bookie] = answer

    # -- writing

    def _write(self, wanted_by: tuple[str, ...], runs: list[tuple[int, int]], entries: object) -> list[Action]:
        first, last = runs[0][0], runs[-1][1]
        targets = tuple(target for target in wanted_by if target not in self._dropped)
        for run in runs:
            self._note_refused(Piece(*run, wanted_by), [t for t in wanted_by if t in self._dropped])
        writing = _Writing(runs, self._size(sum(end - start + 1 for start, end in runs)))
        for target in targets:
            self._writing[target, first, last] = writing
            self._bytes_under_way += writing.size
        return [SendAdd(targets, first, last, self._confirmed(), entries)] if targets else []

    def _written(self, event: AddAnswered) -> None:
        target, first, last, answer = event.bookie, event.first, event.last, event.response
        runs, size = self._writing.pop((target, first, last))
        self._bytes_under_way -= size
        if isinstance(answer, Positive):
            return
        if not (isinstance(answer, Unknown) and answer.reason in _OF_ENTRIES):
            self._dropped.setdefault(target, answer)
        elif first < last and target not in self._dropped:
            if self._sweeps:
                self._alone.update(i for start, end in runs for i in range(start, end + 1))
            middle = (first + last) // 2
            parts = runs if len(runs) > 1 else [(first, middle), (middle + 1, last)]
            self._left += reversed([Piece(*part, (target,)) for part in parts])
            return
        else:
            self._refused[target] = self._refused.get(target, 0) + 1
            if self._refused[target] >= _REFUSED_MAX:
                self._dropped.setdefault(target, answer)
        self._not_copied += (NotCopied(*run, (target,), {target: answer}, refused=True) for run in runs)

    def _note_refused(self, piece: Piece, targets: Iterable[str]) -> None:
        """These targets get nothing more, so they lack this piece too."""
        for target in targets:
            why = {target: self._dropped[target]}
            self._not_copied.append(NotCopied(piece.first, piece.last, (target,), why, refused=True))

    def _fail(self, error: BookKeeperError) -> list[Action]:
        self.phase = CopyingPhase.DONE
        self._readings, self._writing = {}, {}
        return [Fail(error)]

    def _confirmed(self) -> int:
        m = self._metadata
        return m.last_entry_id if m.closed else m.last_fragment.first_entry_id - 1

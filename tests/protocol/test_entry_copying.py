"""Copying of entries: many in parallel, within bounds, and past entries that cannot be copied."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from bookspark.protocol.ledger.actions import AddAnswered, Fail, Finish, ReadAnswered, SendAdd, SendRead
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.repair.entry_copying import REQUESTS_MAX, RUN_BYTES, RUNS_MAX, EntryCopying
from bookspark.protocol.repair.replication_plan import Copy, pieces, stripe
from tests.protocol.ledgers import LOST, NO, OK, metadata

BROKEN = Unknown(UnknownReason.IO_ERROR)


def closed(last, entry_bytes=100, e=3, wq=3):
    return metadata(e, wq, 2, LedgerState.CLOSED, last_entry_id=last, length=entry_bytes * (last + 1))


class Bookies:
    """Carries out the requests of a copying in a random order."""

    def __init__(self, copying, absent=(), refuses=(), away=(), seed=0):
        self.copying, self.absent, self.refuses, self.away = copying, set(absent), set(refuses), away
        self.random = random.Random(seed)
        self.copied: dict[str, list[int]] = {}
        self.record = copying._metadata
        self.full = 10_000
        """Number of entries in an answer to a sparse read."""
        self.requests = self.under_way_max = self.sent = 0

    def run(self):
        todo = self.copying.start()
        while True:
            self.under_way_max = max(self.under_way_max, len(todo))
            action = todo.pop(self.random.randrange(len(todo)))
            self.requests += 1
            match action:
                case SendRead():
                    todo += self.copying.step(self.read(action))
                case SendAdd(bookies, first, last, entries=entries):
                    ids = range(first, last + 1) if entries == "entries" else entries
                    assert (ids[0], ids[-1]) == (first, last)
                    for bookie in bookies:
                        todo += self.copying.step(AddAnswered(bookie, first, last, self.add(bookie, ids)))
                case Finish() | Fail():
                    assert todo == []
                    return action

    def read(self, read):
        if read.bookie in self.away:
            return ReadAnswered(read.bookie, read.first, read.first - 1, LOST)
        ids = range(read.first, read.last + 1)
        if read.sparse:
            held = [i for i in ids if read.bookie in self.record.write_set_of(i) and i not in self.absent][: self.full]
            self.sent += len(held)
            run = [i for k, i in enumerate(held) if i == read.first + k]
            ahead = tuple((i, [i]) for i in held[len(run) :])
            return ReadAnswered(read.bookie, read.first, read.first - 1 + len(run), OK, run, ahead=ahead)
        last = next((i - 1 for i in ids if i in self.absent), read.last)
        return ReadAnswered(read.bookie, read.first, last, OK if last == read.last else NO, "entries")

    def add(self, bookie, ids):
        if self.refuses & set(ids):
            return BROKEN
        self.copied.setdefault(bookie, []).extend(ids)
        return OK


def test_several_runs_are_copied_in_parallel_within_a_bound():
    """A single request at a time copied at a seventh of the speed of a plain copy."""
    found = closed(100 * RUNS_MAX - 1, entry_bytes=RUN_BYTES // 10)
    bookies = Bookies(EntryCopying(found, [Copy(0, found.last_entry_id, "b9")], 10_000))
    assert isinstance(bookies.run(), Finish)
    assert bookies.under_way_max == RUNS_MAX
    assert sorted(bookies.copied["b9"]) == list(range(100 * RUNS_MAX))


def test_single_entries_are_copied_in_parallel_within_a_bound():
    found = closed(999, entry_bytes=RUN_BYTES // 50, e=5, wq=2)
    copies = [Copy(*run, "b9") for run in stripe(found, 0, 0, 999)]
    bookies = Bookies(EntryCopying(found, copies, 10_000))
    assert isinstance(bookies.run(), Finish)
    assert bookies.under_way_max == REQUESTS_MAX
    assert sorted(bookies.copied["b9"]) == [i for first, last, _ in copies for i in range(first, last + 1)]


@pytest.mark.parametrize("wq", [2, 3, 4])
def test_short_entries_of_a_striped_ledger_share_requests(wq):
    """A request for each made the copying of striped ledgers thirty times slower."""
    found = closed(9_999, e=5, wq=wq)
    copies = [Copy(*run, "b9") for run in stripe(found, 0, 0, 9_999)]
    bookies = Bookies(EntryCopying(found, copies, 1_000, {"b1"}))
    bookies.full = 400
    assert isinstance(bookies.run(), Finish)
    wanted = [i for first, last, _ in copies for i in range(first, last + 1)]
    assert sorted(bookies.copied["b9"]) == wanted
    assert bookies.requests < len(wanted) / 10
    assert bookies.sent <= 2.5 * len(wanted), "what is not needed comes along, but no more than that"


def test_sweep_sends_its_target_a_bounded_number_of_entries():
    """Each entry of a striped ledger is a separate request to its target."""
    found = closed(99_999, entry_bytes=1, e=5, wq=3)
    copying = EntryCopying(found, [Copy(*run, "b9") for run in stripe(found, 0, 0, 99_999)], 10_000)
    reads = copying.start()
    bookies = Bookies(copying)
    adds = [add for read in reads for add in copying.step(bookies.read(read)) if isinstance(add, SendAdd)]
    assert 100 < sum(len(add.entries) for add in adds) < 2_000


def test_replacements_of_two_lost_bookies_get_their_own_entries():
    found = closed(999, e=6, wq=3)
    copies = [Copy(*run, target) for at, target in ((1, "b8"), (2, "b9")) for run in stripe(found, at, 0, 999)]
    bookies = Bookies(EntryCopying(found, copies, 10_000, {"b2", "b3"}))
    assert isinstance(bookies.run(), Finish)
    for at, target in ((1, "b8"), (2, "b9")):
        assert sorted(bookies.copied[target]) == [i for a, b in stripe(found, at, 0, 999) for i in range(a, b + 1)]


def test_entries_for_several_targets_are_read_once():
    found = closed(9)
    bookies = Bookies(EntryCopying(found, [Copy(0, 9, "b8"), Copy(4, 9, "b9")], 10_000))
    assert isinstance(bookies.run(), Finish)
    assert sorted(bookies.copied["b8"]) == list(range(10)) and sorted(bookies.copied["b9"]) == list(range(4, 10))
    assert bookies.requests == 5, "two reads, two writes, and the end"


@pytest.mark.parametrize("seed", range(20))
def test_each_entry_is_copied_or_reported_despite_failures(seed):
    rng = random.Random(seed)
    found = closed(199, e=rng.choice((3, 5)), wq=3)
    absent, refuses = rng.sample(range(200), rng.randrange(6)), rng.sample(range(200), rng.randrange(6))
    run_entries_max = rng.choice((7, 10_000))
    copies = [Copy(*run, "b9") for run in stripe(found, 1, 0, 199)]
    bookies = Bookies(EntryCopying(found, copies, run_entries_max), absent, refuses, seed=seed)
    match bookies.run():
        case Fail(error):
            told = {i for one in error.entries for i in range(one.first, one.last + 1)}
            assert {i for one in error.entries if one.lost for i in range(one.first, one.last + 1)} <= set(absent)
        case _:
            told = set()
    wanted = {i for first, last, _ in copies for i in range(first, last + 1)}
    assert told == wanted & (set(absent) | set(refuses))
    assert sorted(bookies.copied.get("b9", ())) == sorted(wanted - told)


def test_copies_of_an_open_ledger_carry_a_certainly_confirmed_lac():
    """The writer may have confirmed more: only entries before the last fragment are certain."""
    found = metadata(fragments=(Fragment(0, ("b1", "b2", "b3")), Fragment(8, ("b1", "b2", "b4"))))
    copying = EntryCopying(found, [Copy(2, 5, "b4")], 10_000, {"b3"})
    (read,) = copying.start()
    assert copying.step(ReadAnswered(read.bookie, 2, 5, OK, "e")) == [SendAdd(("b4",), 2, 5, 7, "e")]


class ShortAnswers(Bookies):
    """Bookies whose answers are full after ten entries."""

    def __init__(self, copying):
        super().__init__(copying)
        self.asked = []

    def read(self, read):
        self.asked.append(read)
        return ReadAnswered(read.bookie, read.first, min(read.last, read.first + 9), OK, "entries")


def test_runs_are_no_longer_than_an_answer_after_a_full_answer():
    """A longer run needs a second request, which waits for the answer to the first."""
    entry_bytes = RUN_BYTES // 100
    bookies = ShortAnswers(EntryCopying(closed(1999, entry_bytes), [Copy(0, 1999, "b9")], 10_000))
    assert isinstance(bookies.run(), Finish)
    assert sorted(bookies.copied["b9"]) == list(range(2000))
    begun = 100 * RUNS_MAX
    assert begun < 1000 and any(read.last - read.first >= 10 for read in bookies.asked)
    assert all(read.last - read.first < 10 for read in bookies.asked if read.first >= begun)


def test_silent_bookies_are_not_asked_for_every_entry():
    found = closed(99_999)
    copying = EntryCopying(found, [Copy(0, 99_999, "b9")], 10_000)
    bookies = Bookies(copying, away=("b1", "b2", "b3"))
    fail = bookies.run()
    assert bookies.requests < 200
    (told,) = fail.error.entries
    assert (told.first, told.last, told.unreached) == (0, 99_999, ("b1", "b2", "b3"))
    assert not told.lost, "they may be back tomorrow"


@pytest.mark.parametrize("e", [3, 4])
def test_uncopied_entries_are_reported_with_the_answers_of_their_write_set(e):
    """Silent bookies are not asked again, and answers about an entry hold only for its write set."""
    ensembles = [tuple(f"b{i + k}" for i in range(1, e + 1)) for k in (0, 10)]
    found = closed(9, e=e)
    found = replace(found, fragments=(Fragment(0, ensembles[0]), Fragment(6, ensembles[1])))
    fail = Bookies(EntryCopying(found, [Copy(0, 9, "b99")], 10_000), away=(*ensembles[0], *ensembles[1])).run()
    told = {i: one.answers.keys() for one in fail.error.entries for i in range(one.first, one.last + 1)}
    assert told == {i: set(found.write_set_of(i)) for i in range(10)}


def test_target_that_refuses_everything_is_not_tried_with_every_entry():
    found = closed(99_999)
    bookies = Bookies(EntryCopying(found, [Copy(0, 99_999, "b9")], 10_000), refuses=range(100_000))
    fail = bookies.run()
    assert bookies.requests < 2000
    assert sum(one.last - one.first + 1 for one in fail.error.entries) == 100_000
    assert all(one.refused and not one.lost for one in fail.error.entries)


@pytest.mark.parametrize("seed", range(10))
def test_pieces_contain_each_entry_once_with_all_its_targets(seed):
    rng = random.Random(seed)
    copies = [Copy(a, a + rng.randrange(8), t) for t in "xyz" for a in range(0, 40, 9) if rng.random() < 0.8]
    wanted = {(i, one.target) for one in copies for i in range(one.first, one.last + 1)}
    found = pieces(copies)
    assert {(i, t) for one in found for i in range(one.first, one.last + 1) for t in one.targets} == wanted
    ids = [i for one in found for i in range(one.first, one.last + 1)]
    assert ids == sorted(set(ids))

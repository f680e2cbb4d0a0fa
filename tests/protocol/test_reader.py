"""Reads: the first positive answer, absence only by all, the next replica otherwise."""

from __future__ import annotations

from bookspark.errors import (
    MetadataStoreError,
    NoSuchEntryError,
    NoSuchLedgerError,
    ReadError,
    TooManyRequestsError,
    UnauthorizedAccessError,
)
from bookspark.protocol.ledger.actions import (
    DeadlinePassed,
    Deliver,
    Fail,
    Finish,
    LacAnswered,
    MetadataFailed,
    MetadataRead,
    ReadAnswered,
    ReadIsLate,
    ReadMetadata,
    SendRead,
    SendReadLac,
)
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerState
from bookspark.protocol.ledger.responses import Unknown, UnknownReason
from bookspark.protocol.reading.lac_read import LacRead
from bookspark.protocol.reading.lac_wait import LacWait
from bookspark.protocol.reading.range_read import RangeRead
from bookspark.protocol.reading.read_order import ReadOrder
from tests.protocol.ledgers import LOST, NO, OK, metadata


def answer(bookie, first, last, following=OK):
    return ReadAnswered(bookie, first, last, following, f"{first}..{last}")


def test_a_range_comes_from_one_replica_as_long_as_it_delivers():
    read = RangeRead(metadata(), 0, 99)
    assert read.start() == [SendRead("b1", 0, 99)]
    assert read.step(answer("b1", 0, 49)) == [Deliver(0, 49, "0..49"), SendRead("b1", 50, 99)]
    assert read.step(answer("b1", 50, 99)) == [Deliver(50, 99, "50..99"), Finish()]


def test_the_next_replica_is_asked_for_what_one_does_not_have():
    read = RangeRead(metadata(), 0, 9)
    read.start()
    assert read.step(answer("b1", 0, 4, NO)) == [Deliver(0, 4, "0..4"), SendRead("b3", 5, 9)]
    assert read.step(answer("b3", 5, 9)) == [Deliver(5, 9, "5..9"), Finish()]


def test_preference_rotates_the_first_replica():
    orders = [ReadOrder(rotation=turn) for turn in range(4)]
    assert [RangeRead(metadata(), 0, 0, order).start()[0].bookie for order in orders] == ["b1", "b2", "b3", "b1"]


def test_near_replicas_come_first_and_doubtful_ones_last():
    near = ReadOrder(near=frozenset({"b3"}))
    assert RangeRead(metadata(), 0, 0, near).start()[0].bookie == "b3"
    doubtful = RangeRead(metadata(), 0, 0, ReadOrder(near=frozenset({"b3"}), doubtful=frozenset({"b3", "b1"})))
    assert doubtful.start()[0].bookie == "b2"
    assert doubtful.step(answer("b2", 0, -1, LOST))[0].bookie == "b3"
    assert doubtful.step(answer("b3", 0, -1, LOST))[0].bookie == "b1", "each is asked in the end"


def test_the_replica_that_delivered_before_this_read_is_asked_first():
    read = RangeRead(metadata(), 0, 9, ReadOrder(first="b2"))
    assert read.start() == [SendRead("b2", 0, 9)]
    read.step(answer("b2", 0, -1, LOST))
    read.step(answer("b1", 0, 9))
    assert read.delivered_by == "b1"


def test_without_stickiness_each_request_goes_to_the_next_replica():
    """The write sets of entries 0, 9 and 18 begin with the same bookie, so the order is that of the deliveries alone."""
    read = RangeRead(metadata(), 0, 99, ReadOrder(sticky=False, first="b3"))
    asked = [read.start()[0].bookie]
    for first in (0, 9, 18):
        asked.append(read.step(answer(asked[-1], first, first + 8))[1].bookie)
    assert asked == ["b1", "b2", "b3", "b1"]


def test_absent_only_if_every_replica_denies():
    read = RangeRead(metadata(), 3, 3)
    read.start()
    read.step(answer("b1", 3, 2, NO))
    read.step(answer("b2", 3, 2, NO))
    (fail,) = read.step(answer("b3", 3, 2, NO))
    assert isinstance(fail.error, NoSuchEntryError)


def test_one_unknown_answer_makes_it_a_read_error():
    read = RangeRead(metadata(), 3, 3)
    read.start()
    read.step(answer("b1", 3, 2, NO))
    read.step(answer("b2", 3, 2, LOST))
    (fail,) = read.step(answer("b3", 3, 2, NO))
    assert isinstance(fail.error, ReadError)
    assert "b2: not reachable" in str(fail.error)


def test_a_positive_answer_without_entries_is_no_answer():
    read = RangeRead(metadata(), 3, 3)
    read.start()
    assert read.step(answer("b1", 3, 2, OK)) == [SendRead("b2", 3, 3)]


def test_too_many_requests_everywhere_is_an_error_of_its_own():
    busy = Unknown(UnknownReason.TOO_MANY_REQUESTS)
    for others, error in ((busy, TooManyRequestsError), (LOST, ReadError)):
        read = RangeRead(metadata(), 3, 3)
        read.start()
        read.step(answer("b1", 3, 2, busy))
        read.step(answer("b2", 3, 2, others))
        (fail,) = read.step(answer("b3", 3, 2, busy))
        assert isinstance(fail.error, error)


def test_a_wrong_password_is_named():
    read = RangeRead(metadata(e=1, wq=1, aq=1), 0, 0)
    read.start()
    (fail,) = read.step(answer("b1", 0, -1, Unknown(UnknownReason.UNAUTHORIZED)))
    assert isinstance(fail.error, UnauthorizedAccessError)


def test_a_request_stays_within_a_fragment():
    two = (Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b4", "b5", "b6")))
    read = RangeRead(metadata(fragments=two), 2, 8)
    assert read.start() == [SendRead("b3", 2, 4)]
    assert read.step(answer("b3", 2, 4))[1] == SendRead("b6", 5, 8)


def test_striped_entries_are_asked_of_their_own_write_set():
    read = RangeRead(metadata(e=3, wq=1, aq=1), 0, 2)
    assert read.start() == [SendRead("b1", 0, 0)]
    assert read.step(answer("b1", 0, 0))[1] == SendRead("b2", 1, 1)


class TestStripedReadAhead:
    """E 4, WQ 2: entries 0, 4, … are on b1 and b2, 1, 5, … on b2 and b3, and so on."""

    def read(self, last=5):
        read = RangeRead(metadata(e=4, wq=2), 0, last, reads_ahead=True)
        assert read.start() == [SendRead("b1", 0, last, sparse=True)]
        return read

    def test_what_a_bookie_holds_of_the_rest_comes_along_and_waits_for_its_turn(self):
        read = self.read()
        came = ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"), (4, "4")))
        assert read.step(came) == [Deliver(0, 0, "0"), SendRead("b2", 1, 5, sparse=True)]
        came = ReadAnswered("b2", 1, 1, NO, "1", ahead=((4, "4"), (5, "5")))
        assert read.step(came) == [Deliver(1, 1, "1"), SendRead("b3", 2, 5, sparse=True)]
        came = ReadAnswered("b3", 2, 2, NO, "2", ahead=((5, "5"),))
        assert read.step(came) == [Deliver(i, i, str(i)) for i in (2, 3, 4, 5)] + [Finish()]

    def test_one_that_has_not_the_next_entry_is_used_for_what_it_has(self):
        read = self.read(last=3)
        assert read.step(ReadAnswered("b1", 0, -1, NO, ahead=((3, "3"),))) == [SendRead("b2", 0, 3, sparse=True)]
        read.step(ReadAnswered("b2", 0, 1, NO, "0..1"))
        assert read.step(ReadAnswered("b3", 2, 2, NO, "2")) == [Deliver(2, 2, "2"), Deliver(3, 3, "3"), Finish()]

    def test_what_is_said_of_an_id_that_came_before_its_turn_counts_for_no_other(self):
        read = self.read()
        read.step(ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"), (4, "4"))))
        read.step(ReadAnswered("b2", 1, 1, NO, "1"))
        *delivered, again = read.step(ReadAnswered("b3", 2, 2, LOST, "2"))
        assert delivered == [Deliver(i, i, str(i)) for i in (2, 3, 4)]
        assert again == SendRead("b3", 5, 5, sparse=True), "it said nothing of entry 5"

    def test_an_entry_that_no_bookie_has_is_absent_for_all_that_came_ahead(self):
        read = self.read(last=4)
        read.step(ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"), (4, "4"))))
        read.step(ReadAnswered("b2", 1, 1, NO, "1"))
        assert read.step(ReadAnswered("b3", 2, 1, LOST)) == [SendRead("b4", 2, 4, sparse=True)]
        (fail,) = read.step(ReadAnswered("b4", 2, 1, NO))
        assert isinstance(fail.error, ReadError)
        assert "entry 2" in str(fail.error)

    def test_nothing_that_was_delivered_is_kept(self):
        read = self.read(last=99)
        read.step(ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"),)))
        read.step(ReadAnswered("b2", 1, 4, NO, "1..4"))
        assert read._ahead == {}


def test_an_empty_range_needs_no_request():
    assert RangeRead(metadata(), 0, -1).start() == [Finish()]


class TestLacRead:
    def test_the_highest_of_a_coverage(self):
        read = LacRead(metadata())
        read.start()
        assert read.step(LacAnswered("b1", OK, 4)) == []
        assert isinstance(read.step(LacAnswered("b3", OK, 9))[0], Finish)
        assert read.last_add_confirmed == 9

    def test_one_bookie_is_enough_when_the_others_have_failed(self):
        read = LacRead(metadata())
        read.start()
        read.step(LacAnswered("b1", LOST))
        read.step(LacAnswered("b2", OK, 4))
        assert isinstance(read.step(LacAnswered("b3", LOST))[0], Finish)
        assert read.last_add_confirmed == 4

    def test_a_bookie_without_the_ledger_says_that_it_is_empty_there(self):
        read = LacRead(metadata())
        read.start()
        read.step(LacAnswered("b1", NO))
        assert isinstance(read.step(LacAnswered("b2", NO))[0], Finish)
        assert read.last_add_confirmed == -1

    def test_no_answer_at_all_is_an_error(self):
        read = LacRead(metadata())
        read.start()
        for bookie in ("b1", "b2"):
            assert read.step(LacAnswered(bookie, LOST)) == []
        (fail,) = read.step(LacAnswered("b3", LOST))
        assert isinstance(fail, Fail)
        assert isinstance(fail.error, ReadError)

    def test_at_the_deadline_what_one_bookie_told_is_enough(self):
        read = LacRead(metadata())
        read.start()
        read.step(LacAnswered("b2", OK, 4))
        assert isinstance(read.step(DeadlinePassed())[0], Finish)
        assert read.last_add_confirmed == 4
        read = LacRead(metadata())
        read.start()
        (fail,) = read.step(DeadlinePassed())
        assert isinstance(fail.error, ReadError)

    def test_when_the_others_are_late_one_is_enough(self):
        """At AQ 1 a coverage takes the answers of all."""
        read = LacRead(metadata(aq=1))
        read.start()
        assert read.step(LacAnswered("b1", OK, 4)) == []
        assert read.step(LacAnswered("b3", OK, 5)) == []
        assert isinstance(read.step(ReadIsLate())[0], Finish)
        assert read.last_add_confirmed == 5

    def test_when_all_are_late_the_first_one_ends_it(self):
        read = LacRead(metadata())
        read.start()
        assert read.step(ReadIsLate()) == []
        assert read.step(LacAnswered("b1", LOST)) == []
        assert isinstance(read.step(LacAnswered("b2", OK, 4))[0], Finish)

    def test_all_before_the_last_fragment_is_confirmed(self):
        two = (Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b2", "b4")))
        assert LacRead(metadata(fragments=two)).last_add_confirmed == 4


class TestSpeculativeRead:
    def read(self):
        read = RangeRead(metadata(), 0, 9)
        read.start()
        return read

    def test_a_late_answer_lets_the_next_replica_be_asked_beside_it(self):
        read = self.read()
        assert read.step(ReadIsLate(0)) == [SendRead("b2", 0, 9)]
        assert read.step(answer("b2", 0, 9)) == [Deliver(0, 9, "0..9"), Finish()]
        assert read.step(answer("b1", 0, 9)) == [], "delivered once"

    def test_one_that_was_late_is_asked_last_until_it_delivers(self):
        read = RangeRead(metadata(), 0, 99, ReadOrder(sticky=False))
        read.start()
        read.step(ReadIsLate(0))
        asked = [read.step(answer("b2", 0, 9))[1].bookie]
        for first in (10, 20, 30, 40):
            asked.append(read.step(answer(asked[-1], first, first + 9))[1].bookie)
        assert "b1" not in asked
        (last_but_one,) = read.step(answer(asked[-1], 50, 49, LOST))
        assert read.step(answer(last_but_one.bookie, 50, 49, LOST))[0].bookie == "b1"

    def test_whichever_answers_first_is_delivered(self):
        read = self.read()
        read.step(ReadIsLate(0))
        assert read.step(answer("b1", 0, 4)) == [Deliver(0, 4, "0..4"), SendRead("b1", 5, 9)]

    def test_a_failure_waits_for_the_ones_that_were_asked(self):
        read = self.read()
        read.step(ReadIsLate(0))
        read.step(ReadIsLate(0))
        assert read.step(ReadIsLate(0)) == [], "there is no further replica"
        assert read.step(answer("b1", 0, -1, LOST)) == []
        assert read.step(answer("b3", 0, -1, NO)) == []
        assert read.step(answer("b2", 0, 9)) == [Deliver(0, 9, "0..9"), Finish()]

    def test_a_delay_of_what_was_read_since_asks_nothing(self):
        read = self.read()
        read.step(answer("b1", 0, 4))
        assert read.step(ReadIsLate(0)) == []


class TestMetadataReadAgain:
    """An entry of a ledger that changed since its metadata was read."""

    def absent(self):
        read = RangeRead(metadata(), 5, 9, rereads_metadata=True)
        read.start()
        read.step(answer("b3", 5, 4, NO))
        read.step(answer("b1", 5, 4, NO))
        assert read.step(answer("b2", 5, 4, NO)) == [ReadMetadata()]
        return read

    def test_absent_only_if_the_metadata_names_no_other_bookies(self):
        (fail,) = self.absent().step(MetadataRead(metadata(), 1))
        assert isinstance(fail.error, NoSuchEntryError)

    def test_bookies_that_came_since_are_asked(self):
        read = self.absent()
        found = metadata(fragments=(Fragment(0, ("b4", "b5", "b3")),))
        assert read.step(MetadataRead(found, 1)) == [SendRead("b4", 5, 9)]
        assert read.step(answer("b4", 5, 4, LOST)) == [SendRead("b5", 5, 9)]
        assert read.step(answer("b5", 5, 9)) == [Deliver(5, 9, "5..9"), Finish()]

    def test_a_ledger_that_was_closed_before_it(self):
        (fail,) = self.absent().step(MetadataRead(metadata(state=LedgerState.CLOSED, last_entry_id=4, length=50), 1))
        assert isinstance(fail.error, NoSuchEntryError)
        assert "closed at entry 4" in str(fail.error)

    def test_without_metadata_nothing_is_absent(self):
        (fail,) = self.absent().step(MetadataFailed(MetadataStoreError("no answer from ZooKeeper")))
        assert isinstance(fail.error, ReadError)
        assert "no answer from ZooKeeper" in str(fail.error)

    def test_a_ledger_that_was_deleted(self):
        (fail,) = self.absent().step(MetadataFailed(NoSuchLedgerError("there is no ledger 7")))
        assert isinstance(fail.error, NoSuchLedgerError)


class TestLongPoll:
    def test_every_bookie_holds_the_answer_and_the_first_that_knows_ends_it(self):
        wait = LacWait(metadata(), 5)
        assert wait.start() == [SendReadLac(b, wait_for=5) for b in ("b1", "b2", "b3")]
        assert wait.step(LacAnswered("b2", OK, 5, entries="5")) == [Finish(metadata())]
        assert (wait.last_add_confirmed, wait.entries) == (5, "5")

    def test_one_that_held_it_in_vain_is_asked_again(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(LacAnswered("b2", OK, 4)) == [SendReadLac("b2", wait_for=5)]
        assert wait.last_add_confirmed == 4

    def test_it_ends_at_the_deadline(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(DeadlinePassed()) == [Finish(metadata())]

    def test_a_close_ends_it(self):
        closed = metadata(state=LedgerState.CLOSED, last_entry_id=3, length=40)
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(MetadataRead(closed, 1)) == [Finish(closed)]
        assert wait.last_add_confirmed == 3

    def test_a_new_ensemble_is_asked_too(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        found = metadata().with_ensemble(3, ("b1", "b4", "b3"))
        assert wait.step(MetadataRead(found, 1)) == [SendReadLac("b4", wait_for=5)]
        assert wait.last_add_confirmed == 2, "a fragment starts behind a confirmed entry"

    def test_it_fails_when_no_bookie_tells(self):
        wait = LacWait(metadata(), 5)
        asked = wait.start()
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3")] == [[], [], asked]
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3")] == [[], [], [ReadMetadata()]]
        (fail,) = wait.step(MetadataRead(metadata(), 0))
        assert isinstance(fail.error, ReadError)

    def of_lost_bookies(self):
        """All have failed twice, and the metadata is asked for."""
        wait = LacWait(metadata(), 5)
        wait.start()
        *_, asks = [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3") * 2]
        assert asks == [ReadMetadata()]
        return wait

    def test_it_goes_over_to_new_bookies_of_which_the_watch_has_not_told_yet(self):
        """Each of the old ones was replaced, and the reader heard first that they were gone."""
        wait = self.of_lost_bookies()
        found = metadata().with_ensemble(3, ("b4", "b5", "b6"))
        assert wait.step(MetadataRead(found, 1)) == [SendReadLac(b, wait_for=5) for b in ("b4", "b5", "b6")]
        assert wait.step(LacAnswered("b5", OK, 5)) == [Finish(found)]

    def test_new_bookies_have_two_rounds_and_a_look_of_their_own(self):
        wait = self.of_lost_bookies()
        found = metadata().with_ensemble(3, ("b1", "b2", "b4"))
        assert wait.step(MetadataRead(found, 1)) == [SendReadLac("b4", wait_for=5)]
        again = wait.step(LacAnswered("b4", LOST))
        assert again == [SendReadLac(b, wait_for=5) for b in ("b1", "b2", "b4")]
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b4")] == [[], [], [ReadMetadata()]]
        assert isinstance(wait.step(MetadataRead(found, 1))[0], Fail)

    def test_a_bookie_that_left_and_came_back_is_asked_again(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        wait.step(LacAnswered("b1", LOST))
        for ensemble, asked in ((("b4", "b2", "b3"), "b4"), (("b1", "b2", "b3"), "b1")):
            changed = MetadataRead(metadata().with_ensemble(3, ensemble), 1)
            assert wait.step(changed) == [SendReadLac(asked, wait_for=5)]

    def test_a_watch_that_tells_of_nothing_new_ends_nothing(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(MetadataRead(metadata(), 0)) == []

    def test_it_fails_when_others_can_not_be_looked_up(self):
        (fail,) = self.of_lost_bookies().step(MetadataFailed(MetadataStoreError("no answer from ZooKeeper")))
        assert isinstance(fail.error, ReadError)
        assert "no answer from ZooKeeper" in str(fail.error)

    def test_it_fails_when_the_ledger_was_deleted(self):
        (fail,) = self.of_lost_bookies().step(MetadataFailed(NoSuchLedgerError("there is no ledger 7")))
        assert isinstance(fail.error, NoSuchLedgerError)

    def test_it_outlasts_a_restart_of_one_bookie_after_the_other(self):
        """Each of them failed once, although all but one served at any time."""
        wait = LacWait(metadata(), 5)
        asked = wait.start()
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3")] == [[], [], asked]
        assert wait.step(LacAnswered("b3", LOST)) == [], "it is the one that restarts"
        assert wait.step(LacAnswered("b1", OK, 4)) == [SendReadLac("b1", wait_for=5)]
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2")] == [[], asked], (
            "once more, as one has told since"
        )
        assert wait.step(LacAnswered("b1", OK, 5)) == [Finish(metadata())]

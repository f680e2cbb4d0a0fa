"""Reads: the first positive answer, absence only if all replicas deny, otherwise the next replica."""

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


def test_delivering_replica_serves_the_whole_range():
    read = RangeRead(metadata(), 0, 99)
    assert read.start() == [SendRead("b1", 0, 99)]
    assert read.step(answer("b1", 0, 49)) == [Deliver(0, 49, "0..49"), SendRead("b1", 50, 99)]
    assert read.step(answer("b1", 50, 99)) == [Deliver(50, 99, "50..99"), Finish()]


def test_next_replica_is_asked_for_missing_entries():
    read = RangeRead(metadata(), 0, 9)
    read.start()
    assert read.step(answer("b1", 0, 4, NO)) == [Deliver(0, 4, "0..4"), SendRead("b3", 5, 9)]
    assert read.step(answer("b3", 5, 9)) == [Deliver(5, 9, "5..9"), Finish()]


def test_rotation_selects_the_first_replica():
    orders = [ReadOrder(rotation=turn) for turn in range(4)]
    assert [RangeRead(metadata(), 0, 0, order).start()[0].bookie for order in orders] == ["b1", "b2", "b3", "b1"]


def test_near_replicas_come_first_and_doubtful_replicas_last():
    near = ReadOrder(near=frozenset({"b3"}))
    assert RangeRead(metadata(), 0, 0, near).start()[0].bookie == "b3"
    doubtful = RangeRead(metadata(), 0, 0, ReadOrder(near=frozenset({"b3"}), doubtful=frozenset({"b3", "b1"})))
    assert doubtful.start()[0].bookie == "b2"
    assert doubtful.step(answer("b2", 0, -1, LOST))[0].bookie == "b3"
    assert doubtful.step(answer("b3", 0, -1, LOST))[0].bookie == "b1", "each is asked in the end"


def test_read_starts_with_the_replica_that_delivered_before():
    read = RangeRead(metadata(), 0, 9, ReadOrder(first="b2"))
    assert read.start() == [SendRead("b2", 0, 9)]
    read.step(answer("b2", 0, -1, LOST))
    read.step(answer("b1", 0, 9))
    assert read.delivered_by == "b1"


def test_non_sticky_read_asks_the_next_replica_for_each_request():
    """The write sets of entries 0, 9 and 18 begin with the same bookie, so only the deliveries decide the order."""
    read = RangeRead(metadata(), 0, 99, ReadOrder(sticky=False, first="b3"))
    asked = [read.start()[0].bookie]
    for first in (0, 9, 18):
        asked.append(read.step(answer(asked[-1], first, first + 8))[1].bookie)
    assert asked == ["b1", "b2", "b3", "b1"]


def test_entry_is_absent_only_if_every_replica_denies():
    read = RangeRead(metadata(), 3, 3)
    read.start()
    read.step(answer("b1", 3, 2, NO))
    read.step(answer("b2", 3, 2, NO))
    (fail,) = read.step(answer("b3", 3, 2, NO))
    assert isinstance(fail.error, NoSuchEntryError)


def test_unknown_answer_makes_a_read_error():
    read = RangeRead(metadata(), 3, 3)
    read.start()
    read.step(answer("b1", 3, 2, NO))
    read.step(answer("b2", 3, 2, LOST))
    (fail,) = read.step(answer("b3", 3, 2, NO))
    assert isinstance(fail.error, ReadError)
    assert "b2: not reachable" in str(fail.error)


def test_positive_answer_without_entries_counts_as_no_answer():
    read = RangeRead(metadata(), 3, 3)
    read.start()
    assert read.step(answer("b1", 3, 2, OK)) == [SendRead("b2", 3, 3)]


def test_too_many_requests_on_all_replicas_has_its_own_error():
    busy = Unknown(UnknownReason.TOO_MANY_REQUESTS)
    for others, error in ((busy, TooManyRequestsError), (LOST, ReadError)):
        read = RangeRead(metadata(), 3, 3)
        read.start()
        read.step(answer("b1", 3, 2, busy))
        read.step(answer("b2", 3, 2, others))
        (fail,) = read.step(answer("b3", 3, 2, busy))
        assert isinstance(fail.error, error)


def test_wrong_password_raises_unauthorized_access():
    read = RangeRead(metadata(e=1, wq=1, aq=1), 0, 0)
    read.start()
    (fail,) = read.step(answer("b1", 0, -1, Unknown(UnknownReason.UNAUTHORIZED)))
    assert isinstance(fail.error, UnauthorizedAccessError)


def test_request_stays_within_a_fragment():
    two = (Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b4", "b5", "b6")))
    read = RangeRead(metadata(fragments=two), 2, 8)
    assert read.start() == [SendRead("b3", 2, 4)]
    assert read.step(answer("b3", 2, 4))[1] == SendRead("b6", 5, 8)


def test_striped_entries_are_read_from_their_own_write_sets():
    read = RangeRead(metadata(e=3, wq=1, aq=1), 0, 2)
    assert read.start() == [SendRead("b1", 0, 0)]
    assert read.step(answer("b1", 0, 0))[1] == SendRead("b2", 1, 1)


class TestStripedReadAhead:
    """E 4, WQ 2: entries 0, 4, … are on b1 and b2, 1, 5, … on b2 and b3, and so on."""

    def read(self, last=5):
        read = RangeRead(metadata(e=4, wq=2), 0, last, reads_ahead=True)
        assert read.start() == [SendRead("b1", 0, last, sparse=True)]
        return read

    def test_later_entries_of_a_bookie_come_along_and_wait_for_delivery(self):
        read = self.read()
        came = ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"), (4, "4")))
        assert read.step(came) == [Deliver(0, 0, "0"), SendRead("b2", 1, 5, sparse=True)]
        came = ReadAnswered("b2", 1, 1, NO, "1", ahead=((4, "4"), (5, "5")))
        assert read.step(came) == [Deliver(1, 1, "1"), SendRead("b3", 2, 5, sparse=True)]
        came = ReadAnswered("b3", 2, 2, NO, "2", ahead=((5, "5"),))
        assert read.step(came) == [Deliver(i, i, str(i)) for i in (2, 3, 4, 5)] + [Finish()]

    def test_bookie_without_the_next_entry_still_delivers_later_entries(self):
        read = self.read(last=3)
        assert read.step(ReadAnswered("b1", 0, -1, NO, ahead=((3, "3"),))) == [SendRead("b2", 0, 3, sparse=True)]
        read.step(ReadAnswered("b2", 0, 1, NO, "0..1"))
        assert read.step(ReadAnswered("b3", 2, 2, NO, "2")) == [Deliver(2, 2, "2"), Deliver(3, 3, "3"), Finish()]

    def test_answer_about_a_prefetched_entry_counts_for_no_other_entry(self):
        read = self.read()
        read.step(ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"), (4, "4"))))
        read.step(ReadAnswered("b2", 1, 1, NO, "1"))
        *delivered, again = read.step(ReadAnswered("b3", 2, 2, LOST, "2"))
        assert delivered == [Deliver(i, i, str(i)) for i in (2, 3, 4)]
        assert again == SendRead("b3", 5, 5, sparse=True), "it said nothing of entry 5"

    def test_absent_entry_fails_the_read_despite_prefetched_entries(self):
        read = self.read(last=4)
        read.step(ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"), (4, "4"))))
        read.step(ReadAnswered("b2", 1, 1, NO, "1"))
        assert read.step(ReadAnswered("b3", 2, 1, LOST)) == [SendRead("b4", 2, 4, sparse=True)]
        (fail,) = read.step(ReadAnswered("b4", 2, 1, NO))
        assert isinstance(fail.error, ReadError)
        assert "entry 2" in str(fail.error)

    def test_delivered_entries_are_not_kept(self):
        read = self.read(last=99)
        read.step(ReadAnswered("b1", 0, 0, NO, "0", ahead=((3, "3"),)))
        read.step(ReadAnswered("b2", 1, 4, NO, "1..4"))
        assert read._ahead == {}


def test_empty_range_sends_no_request():
    assert RangeRead(metadata(), 0, -1).start() == [Finish()]


class TestLacRead:
    def test_lac_read_takes_the_highest_answer_of_a_coverage(self):
        read = LacRead(metadata())
        read.start()
        assert read.step(LacAnswered("b1", OK, 4)) == []
        assert isinstance(read.step(LacAnswered("b3", OK, 9))[0], Finish)
        assert read.last_add_confirmed == 9

    def test_lac_read_accepts_a_single_answer_if_the_others_failed(self):
        read = LacRead(metadata())
        read.start()
        read.step(LacAnswered("b1", LOST))
        read.step(LacAnswered("b2", OK, 4))
        assert isinstance(read.step(LacAnswered("b3", LOST))[0], Finish)
        assert read.last_add_confirmed == 4

    def test_bookie_without_the_ledger_counts_as_empty(self):
        read = LacRead(metadata())
        read.start()
        read.step(LacAnswered("b1", NO))
        assert isinstance(read.step(LacAnswered("b2", NO))[0], Finish)
        assert read.last_add_confirmed == -1

    def test_lac_read_without_any_answer_fails(self):
        read = LacRead(metadata())
        read.start()
        for bookie in ("b1", "b2"):
            assert read.step(LacAnswered(bookie, LOST)) == []
        (fail,) = read.step(LacAnswered("b3", LOST))
        assert isinstance(fail, Fail)
        assert isinstance(fail.error, ReadError)

    def test_single_answer_suffices_at_the_deadline(self):
        read = LacRead(metadata())
        read.start()
        read.step(LacAnswered("b2", OK, 4))
        assert isinstance(read.step(DeadlinePassed())[0], Finish)
        assert read.last_add_confirmed == 4
        read = LacRead(metadata())
        read.start()
        (fail,) = read.step(DeadlinePassed())
        assert isinstance(fail.error, ReadError)

    def test_single_answer_suffices_when_the_others_are_late(self):
        """At AQ 1 a coverage needs the answers of all bookies."""
        read = LacRead(metadata(aq=1))
        read.start()
        assert read.step(LacAnswered("b1", OK, 4)) == []
        assert read.step(LacAnswered("b3", OK, 5)) == []
        assert isinstance(read.step(ReadIsLate())[0], Finish)
        assert read.last_add_confirmed == 5

    def test_first_positive_answer_ends_a_read_on_which_all_were_late(self):
        read = LacRead(metadata())
        read.start()
        assert read.step(ReadIsLate()) == []
        assert read.step(LacAnswered("b1", LOST)) == []
        assert isinstance(read.step(LacAnswered("b2", OK, 4))[0], Finish)

    def test_lac_starts_before_the_last_fragment(self):
        two = (Fragment(0, ("b1", "b2", "b3")), Fragment(5, ("b1", "b2", "b4")))
        assert LacRead(metadata(fragments=two)).last_add_confirmed == 4


class TestSpeculativeRead:
    def read(self):
        read = RangeRead(metadata(), 0, 9)
        read.start()
        return read

    def test_late_answer_starts_a_parallel_request_to_the_next_replica(self):
        read = self.read()
        assert read.step(ReadIsLate(0)) == [SendRead("b2", 0, 9)]
        assert read.step(answer("b2", 0, 9)) == [Deliver(0, 9, "0..9"), Finish()]
        assert read.step(answer("b1", 0, 9)) == [], "delivered once"

    def test_late_replica_is_asked_last(self):
        read = RangeRead(metadata(), 0, 99, ReadOrder(sticky=False))
        read.start()
        read.step(ReadIsLate(0))
        asked = [read.step(answer("b2", 0, 9))[1].bookie]
        for first in (10, 20, 30, 40):
            asked.append(read.step(answer(asked[-1], first, first + 9))[1].bookie)
        assert "b1" not in asked
        (last_but_one,) = read.step(answer(asked[-1], 50, 49, LOST))
        assert read.step(answer(last_but_one.bookie, 50, 49, LOST))[0].bookie == "b1"

    def test_first_of_two_parallel_answers_is_delivered(self):
        read = self.read()
        read.step(ReadIsLate(0))
        assert read.step(answer("b1", 0, 4)) == [Deliver(0, 4, "0..4"), SendRead("b1", 5, 9)]

    def test_failed_answer_waits_for_the_other_requests(self):
        read = self.read()
        read.step(ReadIsLate(0))
        read.step(ReadIsLate(0))
        assert read.step(ReadIsLate(0)) == [], "there is no further replica"
        assert read.step(answer("b1", 0, -1, LOST)) == []
        assert read.step(answer("b3", 0, -1, NO)) == []
        assert read.step(answer("b2", 0, 9)) == [Deliver(0, 9, "0..9"), Finish()]

    def test_late_event_for_a_delivered_entry_sends_nothing(self):
        read = self.read()
        read.step(answer("b1", 0, 4))
        assert read.step(ReadIsLate(0)) == []


class TestMetadataReadAgain:
    """A read of an entry whose ledger changed after its metadata was read."""

    def absent(self):
        read = RangeRead(metadata(), 5, 9, rereads_metadata=True)
        read.start()
        read.step(answer("b3", 5, 4, NO))
        read.step(answer("b1", 5, 4, NO))
        assert read.step(answer("b2", 5, 4, NO)) == [ReadMetadata()]
        return read

    def test_entry_is_absent_if_the_metadata_names_no_other_bookies(self):
        (fail,) = self.absent().step(MetadataRead(metadata(), 1))
        assert isinstance(fail.error, NoSuchEntryError)

    def test_new_bookies_in_the_metadata_are_asked(self):
        read = self.absent()
        found = metadata(fragments=(Fragment(0, ("b4", "b5", "b3")),))
        assert read.step(MetadataRead(found, 1)) == [SendRead("b4", 5, 9)]
        assert read.step(answer("b4", 5, 4, LOST)) == [SendRead("b5", 5, 9)]
        assert read.step(answer("b5", 5, 9)) == [Deliver(5, 9, "5..9"), Finish()]

    def test_entry_behind_the_end_of_a_closed_ledger_is_absent(self):
        (fail,) = self.absent().step(MetadataRead(metadata(state=LedgerState.CLOSED, last_entry_id=4, length=50), 1))
        assert isinstance(fail.error, NoSuchEntryError)
        assert "closed at entry 4" in str(fail.error)

    def test_entry_is_not_absent_without_metadata(self):
        (fail,) = self.absent().step(MetadataFailed(MetadataStoreError("no answer from ZooKeeper")))
        assert isinstance(fail.error, ReadError)
        assert "no answer from ZooKeeper" in str(fail.error)

    def test_read_of_a_deleted_ledger_fails_with_no_such_ledger(self):
        (fail,) = self.absent().step(MetadataFailed(NoSuchLedgerError("there is no ledger 7")))
        assert isinstance(fail.error, NoSuchLedgerError)


class TestLongPoll:
    def test_first_answer_with_the_entry_ends_the_long_poll(self):
        wait = LacWait(metadata(), 5)
        assert wait.start() == [SendReadLac(b, wait_for=5) for b in ("b1", "b2", "b3")]
        assert wait.step(LacAnswered("b2", OK, 5, entries="5")) == [Finish(metadata())]
        assert (wait.last_add_confirmed, wait.entries) == (5, "5")

    def test_bookie_that_timed_out_without_news_is_asked_again(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(LacAnswered("b2", OK, 4)) == [SendReadLac("b2", wait_for=5)]
        assert wait.last_add_confirmed == 4

    def test_long_poll_ends_at_the_deadline(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(DeadlinePassed()) == [Finish(metadata())]

    def test_close_of_the_ledger_ends_the_long_poll(self):
        closed = metadata(state=LedgerState.CLOSED, last_entry_id=3, length=40)
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(MetadataRead(closed, 1)) == [Finish(closed)]
        assert wait.last_add_confirmed == 3

    def test_new_ensemble_is_asked_too(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        found = metadata().with_ensemble(3, ("b1", "b4", "b3"))
        assert wait.step(MetadataRead(found, 1)) == [SendReadLac("b4", wait_for=5)]
        assert wait.last_add_confirmed == 2, "a fragment starts behind a confirmed entry"

    def test_long_poll_fails_if_every_bookie_fails(self):
        wait = LacWait(metadata(), 5)
        asked = wait.start()
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3")] == [[], [], asked]
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3")] == [[], [], [ReadMetadata()]]
        (fail,) = wait.step(MetadataRead(metadata(), 0))
        assert isinstance(fail.error, ReadError)

    def of_lost_bookies(self):
        """All bookies have failed twice, and the metadata is requested."""
        wait = LacWait(metadata(), 5)
        wait.start()
        *_, asks = [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3") * 2]
        assert asks == [ReadMetadata()]
        return wait

    def test_long_poll_asks_new_bookies_before_the_watch_reports_them(self):
        """Every old bookie was replaced, and the reader saw their failures before the watch fired."""
        wait = self.of_lost_bookies()
        found = metadata().with_ensemble(3, ("b4", "b5", "b6"))
        assert wait.step(MetadataRead(found, 1)) == [SendReadLac(b, wait_for=5) for b in ("b4", "b5", "b6")]
        assert wait.step(LacAnswered("b5", OK, 5)) == [Finish(found)]

    def test_new_bookies_get_two_rounds_and_a_metadata_read_of_their_own(self):
        wait = self.of_lost_bookies()
        found = metadata().with_ensemble(3, ("b1", "b2", "b4"))
        assert wait.step(MetadataRead(found, 1)) == [SendReadLac("b4", wait_for=5)]
        again = wait.step(LacAnswered("b4", LOST))
        assert again == [SendReadLac(b, wait_for=5) for b in ("b1", "b2", "b4")]
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b4")] == [[], [], [ReadMetadata()]]
        assert isinstance(wait.step(MetadataRead(found, 1))[0], Fail)

    def test_bookie_that_left_and_returned_is_asked_again(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        wait.step(LacAnswered("b1", LOST))
        for ensemble, asked in ((("b4", "b2", "b3"), "b4"), (("b1", "b2", "b3"), "b1")):
            changed = MetadataRead(metadata().with_ensemble(3, ensemble), 1)
            assert wait.step(changed) == [SendReadLac(asked, wait_for=5)]

    def test_watch_without_changes_does_not_end_the_long_poll(self):
        wait = LacWait(metadata(), 5)
        wait.start()
        assert wait.step(MetadataRead(metadata(), 0)) == []

    def test_long_poll_fails_if_the_metadata_cannot_be_read(self):
        (fail,) = self.of_lost_bookies().step(MetadataFailed(MetadataStoreError("no answer from ZooKeeper")))
        assert isinstance(fail.error, ReadError)
        assert "no answer from ZooKeeper" in str(fail.error)

    def test_long_poll_fails_if_the_ledger_was_deleted(self):
        (fail,) = self.of_lost_bookies().step(MetadataFailed(NoSuchLedgerError("there is no ledger 7")))
        assert isinstance(fail.error, NoSuchLedgerError)

    def test_long_poll_outlasts_a_rolling_restart(self):
        """Every bookie failed once, although all but one were up at any time."""
        wait = LacWait(metadata(), 5)
        asked = wait.start()
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2", "b3")] == [[], [], asked]
        assert wait.step(LacAnswered("b3", LOST)) == [], "it is the one that restarts"
        assert wait.step(LacAnswered("b1", OK, 4)) == [SendReadLac("b1", wait_for=5)]
        assert [wait.step(LacAnswered(b, LOST)) for b in ("b1", "b2")] == [[], asked], (
            "once more, as one has told since"
        )
        assert wait.step(LacAnswered("b1", OK, 5)) == [Finish(metadata())]

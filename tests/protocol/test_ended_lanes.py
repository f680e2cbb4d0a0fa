"""The end of a lane: its transitions, its remaining record, and offsets in a log with ended lanes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookspark.errors import ConfigurationError
from bookspark.logs.chain.codec import decode_record, encode_record
from bookspark.protocol.logs.ended_lanes import (
    BLOCK,
    Ended,
    blocks_of,
    check_may_end,
    ending,
    full_block,
    kept_of,
    lane_ended,
    out_of_index,
)
from bookspark.protocol.logs.lanes import (
    BATCH_WRITES,
    ended_before,
    is_offset,
    lane_of_query,
    later,
    new_lane,
    offset_at,
    rows_before,
    with_lane,
    writer_of,
)
from bookspark.protocol.logs.log_record import ENDER, AnotherQueryError, LaneEndedError, LogRecord, LogTakenOverError

LOG = LogRecord("orders", ctime_ms=17).claim("run", "q1")
LANE = new_lane(LOG, 1).claim("a", "q2")
RUN = f"{ENDER}1"


def ended_lane() -> LogRecord:
    taken = ending(LANE, RUN)
    return lane_ended(taken, RUN, taken.epoch, 7, 100, 0)


def test_ending_a_lane_takes_over_and_stops_its_writers() -> None:
    taken = ending(LANE, RUN)
    assert taken.epoch == LANE.epoch + 1 and ending(taken, RUN) is taken
    with pytest.raises(LogTakenOverError):
        taken.check_writer("a", LANE.epoch)
    with pytest.raises(LogTakenOverError):
        ending(taken.claim("b", "q2"), RUN)
    done = lane_ended(taken, RUN, taken.epoch, 7, 100, 3)
    assert (done.ended_rows, done.ended_ms, done.after, done.claims) == (7, 100, 3, ("a", RUN))
    assert done.recovered and done.live_epochs == frozenset()
    assert ending(done, "another ender") is done
    with pytest.raises(LaneEndedError):
        done.claim("c", "q2")
    with pytest.raises(LogTakenOverError, match="was ended"):
        done.check_writer(RUN, done.epoch)
    with pytest.raises(LogTakenOverError):
        lane_ended(taken.claim("b", "q2"), RUN, taken.epoch, 7, 100, 0)


def test_writer_learns_of_the_end_of_its_lane_in_the_same_words_from_the_endings_begin_on() -> None:
    begun = ending(LANE, f"{ENDER}1")
    for record in (begun, lane_ended(begun, f"{ENDER}1", begun.epoch, 7, 100, 0)):
        with pytest.raises(
            LogTakenOverError, match=r"lane 'orders@1' was ended \(bookspark log end\), and run a writes it no"
        ):
            record.check_writer("a", LANE.epoch)
    begun.claim("b", begun.owner_query).check_writer("b", begun.epoch + 1)


def test_ended_lane_knows_the_run_that_wrote_it_last_whatever_enders_crashed() -> None:
    taken = LANE.claim("b", "q2")
    for number in range(3):
        taken = ending(taken, f"{ENDER}{number}")
    done = lane_ended(taken, f"{ENDER}2", taken.epoch, 7, 100, 0)
    assert done.claims == ("b", f"{ENDER}2")
    begun = ending(new_lane(LOG, 2), RUN)
    assert lane_ended(begun, RUN, begun.epoch, 0, 0, 0).claims == (RUN,), "nobody ever owned it"


def test_lane_0_batch_writes_lane_and_missing_lanes_never_end() -> None:
    record = with_lane(with_lane(LOG, 1, BATCH_WRITES), 2, writer_of("q2"))
    check_may_end(record, 2)
    for number, words in ((0, "lane 0 never ends"), (1, "which batch writes share, never ends"), (3, "has no lane 3")):
        with pytest.raises(ConfigurationError, match=words):
            check_may_end(record, number)


def test_ended_lane_leaves_the_index_but_its_writers_and_checkpoint_are_kept() -> None:
    record = with_lane(LOG, 1, writer_of("q3"), "/c", follows=writer_of("q2"))
    names = [Ended(1, name, name) for name in ("query:q2", "query:q3", "query:q4")]
    place = Ended(1, "checkpoint:/c", "query:q3")
    assert kept_of(record.lanes[0], "q3") == [*names[:2], place]
    assert kept_of(record.lanes[0], "q4") == [*names, place], "one that the index does not know yet"
    service = with_lane(LOG, 1, "service:a")
    assert kept_of(service.lanes[0], "service:a") == [Ended(1, "service:a", "service:a")]
    out = out_of_index(record, 1)
    assert (out.lanes, out.ended_lanes, out.ended_count, out.lanes_made) == ((), (1,), 1, 1)
    assert out_of_index(out, 1) is out


def test_full_list_of_ended_lanes_becomes_a_block() -> None:
    record = replace(LOG, ended_lanes=tuple(range(1, BLOCK)), ended_count=BLOCK - 1, lanes_made=BLOCK + 1)
    record = replace(record, lanes=with_lane(with_lane(LOG, 1, "a"), 2, "b").lanes)
    assert full_block(record) is None and list(blocks_of(record, 0)) == []
    full = out_of_index(record, 1)
    assert full_block(full) == (0, full.ended_lanes) and len(full.ended_lanes) == BLOCK
    following = out_of_index(full, 2)
    assert (following.ended_lanes, following.ended_count) == ((2,), BLOCK + 1)
    assert [list(blocks_of(following, first)) for first in (0, BLOCK - 1, BLOCK)] == [[0], [0], []]


def test_records_of_lanes_are_read_as_they_were_written() -> None:
    indexed = with_lane(LOG, 1, writer_of("q2"))
    after = with_lane(LOG, 1, writer_of("q2"), after=4)
    for record in (LOG, indexed, out_of_index(indexed, 1), ended_lane(), after, replace(ended_lane(), ended_rows=0)):
        assert decode_record(encode_record(record), record.name) == record


def test_query_of_an_ended_lane_needs_a_new_lane_and_its_checkpoint() -> None:
    kept = {"query:q2": "query:q2", "checkpoint:/c": "query:q2"}
    assert lane_of_query(LOG, "q2", {"q1"}, "", "/c", kept.get) is None
    assert lane_of_query(LOG, "q3", {"q1"}, "", "/d", kept.get) is None
    assert lane_of_query(LOG, "q3", {"q1"}, "q2", "/d", kept.get) is None
    with pytest.raises(AnotherQueryError, match="query q2"):
        lane_of_query(LOG, "q3", {"q1"}, "", "/c", kept.get)
    with pytest.raises(AnotherQueryError, match="never wrote"):
        lane_of_query(LOG, "q3", {"q1"}, "q4", "/d", kept.get)


def test_follower_of_a_query_with_an_ended_lane_gets_its_current_lane() -> None:
    kept = {"query:q2": "query:q2"}
    again = with_lane(LOG, 1, writer_of("q2"))
    assert lane_of_query(again, "q3", {"q1"}, "q2", "/d", kept.get) == 1


def test_offset_behind_ended_lanes_does_not_name_them() -> None:
    place = offset_at(17, {0: 5, 3: 2}, ended=4)
    assert place == {"position": 5, "log": 17, "3": 2, "ended": 4} and is_offset(place)
    assert (rows_before(place), ended_before(place)) == ({0: 5, 3: 2}, 4)
    assert ended_before(offset_at(17, {0: 5})) == 0 and not is_offset({**place, "ended": -1})


def test_later_offset_drops_lanes_that_ended_between_the_two() -> None:
    start = offset_at(17, {0: 5, 1: 9, 2: 3}, ended=1)
    assert later(start, offset_at(17, {0: 6, 2: 2}, ended=2)) == offset_at(17, {0: 6, 2: 3}, ended=2)
    assert later(start, offset_at(17, {0: 4, 3: 1}, ended=1)) == offset_at(17, {0: 5, 1: 9, 2: 3, 3: 1}, ended=1)
    assert later({"7": 4, "8": 2}, {"7": 3, "9": 1}) == {"7": 4, "8": 2, "9": 1}


def test_places_in_different_logs_have_no_later_place() -> None:
    """An offset with the rows of a deleted log and the id of its successor failed each restart."""
    with pytest.raises(ValueError, match="places in different logs"):
        later(offset_at(17, {0: 10}), offset_at(18, {0: 3}))


def test_stale_offset_does_not_bring_back_an_ended_lane() -> None:
    """A ZooKeeper server that is behind still lists lane 4 in the index: its rows would be read again."""
    start, stale = offset_at(17, {0: 5, 1: 9}, ended=2), offset_at(17, {0: 7, 1: 9, 4: 11}, ended=1)
    assert later(start, stale) == offset_at(17, {0: 7, 1: 9}, ended=2)

"""Who writes which lane of a log, the index of lanes, offsets and limits."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from bookspark.protocol.logs import lanes
from bookspark.protocol.logs.lanes import (
    BATCH_WRITES,
    LANES_MAX,
    TooManyLanesError,
    after_of,
    is_offset,
    lane_in_index,
    lane_name,
    lane_of,
    lane_of_batch_write,
    lane_of_query,
    new_lane,
    offset_at,
    rows_before,
    shared_out,
    with_lane,
    with_writer,
    writer_of,
    writers_of_lanes,
)
from bookspark.protocol.logs.log_record import AnotherQueryError, Lane, LogChangedError, LogRecord

EMPTY = LogRecord("orders", ctime_ms=17)
OWNED = EMPTY.claim("run", "q1")


def test_a_lane_has_the_name_of_its_log_and_a_number_and_lane_0_is_the_log() -> None:
    assert [lane_name("orders", lane) for lane in (0, 3)] == ["orders", "orders@3"]
    assert [lane_of(name) for name in ("orders", "orders@0", "orders@3")] == [
        ("orders", 0),
        ("orders", 0),
        ("orders", 3),
    ]
    lane = new_lane(OWNED, 3)
    assert (lane.name, lane.ctime_ms, lane.options) == ("orders@3", 17, OWNED.options)
    assert (lane.owner, lane.commit_ledgers) == ("", ())


def test_the_first_query_of_a_log_has_lane_0_and_every_other_one_a_lane_of_its_own() -> None:
    assert lane_of_query(EMPTY, "q1", ()) == 0
    assert lane_of_query(OWNED, "q1", ()) == 0
    assert lane_of_query(OWNED, "q2", ()) is None
    record = with_lane(OWNED, 1, writer_of("q2"))
    assert lane_of_query(record, "q2", ()) == 1
    assert lane_of_query(record, "q3", ()) is None


def test_no_lane_is_made_for_who_follows_a_query_that_has_a_lane() -> None:
    """That one's lane had ended, and it has another one by now: it is that which is to be followed."""
    record = with_lane(OWNED, 1, writer_of("q2"))
    with pytest.raises(LogChangedError):
        with_lane(record, 2, writer_of("q3"), follows=writer_of("q2"))
    assert with_lane(record, 2, writer_of("q3"), follows=writer_of("q4")).lanes[1].writers == ("query:q4", "query:q3")


def test_a_query_that_committed_in_lane_0_is_found_there_by_its_commits() -> None:
    """A record of an earlier version does not name the owner's query, and one that was followed is not named either."""
    assert lane_of_query(LogRecord("orders"), "q1", {"q1": 7}) == 0
    assert lane_of_query(LogRecord("orders"), "q2", {"q1": 7}) is None
    assert lane_of_query(OWNED, "q0", {"q0": 3, "q1": 7}) == 0


def test_a_query_does_not_get_the_lane_that_batch_writes_have_and_they_not_its() -> None:
    batch = EMPTY.batch_write_begun("w1", 0)
    assert lane_of_query(batch, "q1", ()) is None
    assert lane_of_batch_write(EMPTY, "w1") == lane_of_batch_write(batch, "w2") == 0
    assert lane_of_batch_write(OWNED, "w1") is None
    assert lane_of_batch_write(with_lane(OWNED, 1, BATCH_WRITES), "w1") == 1


def test_a_batch_write_that_has_begun_in_lane_0_stays_there() -> None:
    """All tasks of a write look for its lane; in a log of an earlier version, batch writes went beside the query."""
    record = with_lane(OWNED.batch_write_begun("w1", 0), 1, BATCH_WRITES)
    assert (lane_of_batch_write(record, "w1"), lane_of_batch_write(record, "w2")) == (0, 1)


def test_a_query_that_follows_another_one_gets_its_lane_and_the_other_one_no_second_one() -> None:
    record = with_lane(OWNED, 1, writer_of("q2"))
    assert lane_of_query(record, "q3", (), follows="q2") == 1
    assert lane_of_query(record, "q3", (), follows="q1") == 0
    followed = with_writer(record, 1, writer_of("q3"))
    assert followed.lanes == (Lane(1, ("query:q2", "query:q3")),)
    assert lane_of_query(followed, "q2", ()) == lane_of_query(followed, "q3", ()) == 1
    with pytest.raises(AnotherQueryError, match="is to follow query 'q9', which never wrote to the log"):
        lane_of_query(record, "q3", (), follows="q9")


@pytest.mark.parametrize("lane", [0, 1])
def test_a_new_query_in_the_place_of_another_ones_spark_checkpoint_is_refused(lane: int) -> None:
    """It is the same query, whose Spark checkpoint was deleted, and would write its rows again into a lane of its own."""
    record = replace(OWNED, checkpoint="/checkpoints/0")
    record = with_lane(record, 1, writer_of("q2"), "/checkpoints/1")
    with pytest.raises(AnotherQueryError, match=f"is written by query q{lane + 1}, and query new is new to it"):
        lane_of_query(record, "new", (), checkpoint=f"/checkpoints/{lane}")
    assert lane_of_query(record, "new", (), f"q{lane + 1}", f"/checkpoints/{lane}") == lane
    assert lane_of_query(record, "new", (), checkpoint="/checkpoints/2") is None
    assert lane_of_query(record, "new", ()) is None, "nobody knows where it is"


def test_a_query_whose_checkpoint_was_moved_is_known_by_its_new_place() -> None:
    record = with_lane(OWNED, 1, writer_of("q2"), "/old")
    record = with_writer(record, 1, writer_of("q2"), "/new")
    assert record.lanes == (Lane(1, ("query:q2",), "/new"),)


def test_a_number_is_given_out_once_and_a_writer_has_one_lane() -> None:
    record = with_lane(OWNED, 1, writer_of("q2"))
    assert with_lane(record, 1, writer_of("q2")) is record
    with pytest.raises(LogChangedError):
        with_lane(record, 1, writer_of("q3"))
    with pytest.raises(LogChangedError):
        with_lane(record, 2, writer_of("q2"))
    ended = replace(record, lanes=())
    with pytest.raises(LogChangedError):
        with_lane(ended, 1, writer_of("q3"))
    assert lane_in_index(with_lane(ended, 2, writer_of("q3")), writer_of("q3")) == 2


def test_who_writes_each_lane_and_what_a_lane_goes_on_after() -> None:
    record = with_lane(with_lane(OWNED, 1, writer_of("q2")), 2, writer_of("q3"), after=1, follows=writer_of("q0"))
    ended = replace(new_lane(OWNED, 7), ended_rows=5)
    assert writers_of_lanes(record, [new_lane(record, 1), ended]) == {
        "orders": "query:q1",
        "orders@1": "query:q2",
        "orders@2": "query:q3",
        "orders@7": "ended",
    }
    assert writers_of_lanes(EMPTY, []) == {"orders": BATCH_WRITES}
    assert [after_of(record, lane) for lane in (0, 1, 2)] == [0, 0, 1]


def test_a_log_keeps_its_first_dictionary() -> None:
    assert EMPTY.with_dictionary(b"one").with_dictionary(b"two").dictionary == b"one"


def test_the_index_has_room_for_so_many_lanes() -> None:
    record = OWNED
    for lane in range(1, LANES_MAX + 1):
        record = with_lane(record, lane, writer_of(f"q{lane}"))
    with pytest.raises(TooManyLanesError, match="has 1000 lanes, and query:one would need one more"):
        with_lane(record, LANES_MAX + 1, writer_of("one"))


def test_the_index_remembers_so_many_writers_of_a_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WRITERS_MAX", 3)
    record = with_lane(OWNED, 1, "w0")
    for number in range(1, 6):
        record = with_writer(record, 1, f"w{number}")
    assert record.lanes[0].writers == ("w3", "w4", "w5")


def test_an_offset_of_a_log_of_one_lane_is_that_of_earlier_versions() -> None:
    assert offset_at(17, {0: 5}) == {"position": 5, "log": 17}
    assert rows_before({"position": 5, "log": 17}) == {0: 5}


def test_an_offset_names_the_rows_of_each_lane_and_is_read_in_the_order_of_lanes() -> None:
    offset = offset_at(17, {10: 3, 0: 5, 9: 0})
    assert offset == {"position": 5, "log": 17, "9": 0, "10": 3}
    assert list(rows_before(dict(reversed(offset.items()))).items()) == [(0, 5), (9, 0), (10, 3)]


def test_only_an_offset_of_a_log_is_taken_for_one() -> None:
    assert is_offset({"position": 5, "log": 17}) and is_offset({"log": 17, "position": 5, "3": 1})
    for other in (
        {"3": 1},
        {"position": 5},
        *({"position": 5, "log": 17, name: 1} for name in ("0", "x", "-1", "²", "٣")),
    ):
        assert not is_offset(other)
    for rows in (-1, 2.5, "7", None):
        assert not is_offset({"position": 5, "log": 17, "3": rows}) and not is_offset({"position": rows, "log": 17})


def test_a_limit_is_shared_out_wholly_and_no_lane_that_waits_is_left_out_for_a_busy_one() -> None:
    for seed in range(300):
        random = Random(seed)
        waiting = {lane: random.choice((0, 1, 7, 1000)) for lane in range(random.randint(1, 6))}
        most = random.randint(1, random.choice((4, 1500)))
        shares = shared_out(waiting, most)
        assert sum(shares.values()) == min(most, sum(waiting.values())), (waiting, most)
        assert all(0 <= shares[lane] <= waiting[lane] for lane in waiting), (waiting, most)
        if most >= 2 * len(waiting):
            assert all(shares[lane] for lane in waiting if waiting[lane]), (waiting, most)

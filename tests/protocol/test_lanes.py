"""Lanes of a log: their writers, their index, offsets and limits."""

from __future__ import annotations

from collections.abc import Iterator
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
    rows_in_bytes,
    shared_out,
    with_lane,
    with_writer,
    writer_of,
    writers_of_lanes,
)
from bookspark.protocol.logs.log_record import AnotherQueryError, Lane, LogChangedError, LogRecord

EMPTY = LogRecord("orders", ctime_ms=17)
OWNED = EMPTY.claim("run", "q1")


def test_lane_name_is_log_name_with_number_and_lane_0_is_the_log() -> None:
    assert [lane_name("orders", lane) for lane in (0, 3)] == ["orders", "orders@3"]
    assert [lane_of(name) for name in ("orders", "orders@0", "orders@3")] == [
        ("orders", 0),
        ("orders", 0),
        ("orders", 3),
    ]
    lane = new_lane(OWNED, 3)
    assert (lane.name, lane.ctime_ms, lane.options) == ("orders@3", 17, OWNED.options)
    assert (lane.owner, lane.commit_ledgers) == ("", ())


def test_first_query_has_lane_0_and_others_need_their_own_lane() -> None:
    assert lane_of_query(EMPTY, "q1", ()) == 0
    assert lane_of_query(OWNED, "q1", ()) == 0
    assert lane_of_query(OWNED, "q2", ()) is None
    record = with_lane(OWNED, 1, writer_of("q2"))
    assert lane_of_query(record, "q2", ()) == 1
    assert lane_of_query(record, "q3", ()) is None


def test_no_lane_is_created_for_a_follower_of_a_query_with_a_lane() -> None:
    """The followed query's first lane had ended; its new lane is the one to follow."""
    record = with_lane(OWNED, 1, writer_of("q2"))
    with pytest.raises(LogChangedError):
        with_lane(record, 2, writer_of("q3"), follows=writer_of("q2"))
    assert with_lane(record, 2, writer_of("q3"), follows=writer_of("q4")).lanes[1].writers == ("query:q4", "query:q3")


def test_query_that_committed_in_lane_0_is_recognized_by_its_commits() -> None:
    """A record of an earlier version does not name the owner's query, nor does a record name a followed query."""
    assert lane_of_query(LogRecord("orders"), "q1", {"q1": 7}) == 0
    assert lane_of_query(LogRecord("orders"), "q2", {"q1": 7}) is None
    assert lane_of_query(OWNED, "q0", {"q0": 3, "q1": 7}) == 0


def test_queries_and_batch_writes_have_separate_lanes() -> None:
    batch = EMPTY.batch_write_begun("w1")
    assert lane_of_query(batch, "q1", ()) is None
    assert lane_of_batch_write(EMPTY, "w1") == lane_of_batch_write(batch, "w2") == 0
    assert lane_of_batch_write(OWNED, "w1") is None
    assert lane_of_batch_write(with_lane(OWNED, 1, BATCH_WRITES), "w1") == 1


def test_batch_write_that_began_in_lane_0_stays_there() -> None:
    """All tasks of a write look up its lane; in logs of an earlier version batch writes shared the query's lane."""
    record = with_lane(OWNED.batch_write_begun("w1"), 1, BATCH_WRITES)
    assert (lane_of_batch_write(record, "w1"), lane_of_batch_write(record, "w2")) == (0, 1)


def test_following_query_gets_the_lane_of_the_followed_query() -> None:
    record = with_lane(OWNED, 1, writer_of("q2"))
    assert lane_of_query(record, "q3", (), follows="q2") == 1
    assert lane_of_query(record, "q3", (), follows="q1") == 0
    followed = with_writer(record, 1, writer_of("q3"))
    assert followed.lanes == (Lane(1, ("query:q2", "query:q3")),)
    assert lane_of_query(followed, "q2", ()) == lane_of_query(followed, "q3", ()) == 1
    with pytest.raises(AnotherQueryError, match="is to follow query 'q9', which never wrote to the log"):
        lane_of_query(record, "q3", (), follows="q9")


@pytest.mark.parametrize("lane", [0, 1])
def test_new_query_at_the_spark_checkpoint_of_another_query_is_refused(lane: int) -> None:
    """It is the same query with a deleted Spark checkpoint, and would write its rows again into a new lane."""
    record = replace(OWNED, checkpoint="/checkpoints/0")
    record = with_lane(record, 1, writer_of("q2"), "/checkpoints/1")
    with pytest.raises(AnotherQueryError, match=f"is written by query q{lane + 1}, and query new is new to it"):
        lane_of_query(record, "new", (), checkpoint=f"/checkpoints/{lane}")
    assert lane_of_query(record, "new", (), f"q{lane + 1}", f"/checkpoints/{lane}") == lane
    assert lane_of_query(record, "new", (), checkpoint="/checkpoints/2") is None
    assert lane_of_query(record, "new", ()) is None, "nobody knows where it is"


def test_moved_spark_checkpoint_replaces_its_path_in_the_index() -> None:
    record = with_lane(OWNED, 1, writer_of("q2"), "/old")
    record = with_writer(record, 1, writer_of("q2"), "/new")
    assert record.lanes == (Lane(1, ("query:q2",), "/new"),)


def test_lane_number_is_used_once_and_a_writer_has_a_single_lane() -> None:
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


def test_writers_of_all_lanes_and_predecessor_lanes_are_listed() -> None:
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


def test_log_keeps_its_first_dictionary() -> None:
    assert EMPTY.with_dictionary(b"one").with_dictionary(b"two").dictionary == b"one"


def test_number_of_lanes_in_the_index_is_bounded() -> None:
    record = OWNED
    for lane in range(1, LANES_MAX + 1):
        record = with_lane(record, lane, writer_of(f"q{lane}"))
    with pytest.raises(TooManyLanesError, match="has 1000 lanes, and no room for query:one"):
        with_lane(record, LANES_MAX + 1, writer_of("one"))


def test_number_of_remembered_writers_of_a_lane_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WRITERS_MAX", 3)
    record = with_lane(OWNED, 1, "w0")
    for number in range(1, 6):
        record = with_writer(record, 1, f"w{number}")
    assert record.lanes[0].writers == ("w3", "w4", "w5")


def test_offset_of_a_single_lane_has_the_earlier_form() -> None:
    assert offset_at(17, {0: 5}) == {"position": 5, "log": 17}
    assert rows_before({"position": 5, "log": 17}) == {0: 5}


def test_offset_lists_rows_of_each_lane_in_lane_order() -> None:
    offset = offset_at(17, {10: 3, 0: 5, 9: 0})
    assert offset == {"position": 5, "log": 17, "9": 0, "10": 3}
    assert list(rows_before(dict(reversed(offset.items()))).items()) == [(0, 5), (9, 0), (10, 3)]


def test_only_offsets_of_a_log_are_recognized() -> None:
    assert is_offset({"position": 5, "log": 17}) and is_offset({"log": 17, "position": 5, "3": 1})
    for other in (
        {"3": 1},
        {"position": 5},
        *({"position": 5, "log": 17, name: 1} for name in ("0", "x", "-1", "²", "٣")),
    ):
        assert not is_offset(other)
    for rows in (-1, 2.5, "7", None):
        assert not is_offset({"position": 5, "log": 17, "3": rows}) and not is_offset({"position": rows, "log": 17})


def test_limit_is_used_up_and_every_lane_with_a_backlog_gets_a_share() -> None:
    for seed in range(300):
        random = Random(seed)
        waiting = {lane: random.choice((0, 1, 7, 1000)) for lane in range(random.randint(1, 6))}
        most = random.randint(1, random.choice((4, 1500)))
        shares = shared_out(waiting, most)
        assert sum(shares.values()) == min(most, sum(waiting.values())), (waiting, most)
        assert all(0 <= shares[lane] <= waiting[lane] for lane in waiting), (waiting, most)
        if most >= 2 * len(waiting):
            assert all(shares[lane] for lane in waiting if waiting[lane]), (waiting, most)


def test_bytes_become_the_rows_that_have_them_at_equal_parts_of_each_lane() -> None:
    for seed in range(300):
        random = Random(seed)
        sized = {
            lane: [(random.randint(1, 9), random.choice([0, 5, 100, 3000])) for _ in range(random.randint(1, 8))]
            for lane in range(random.randint(1, 5))
        }
        waiting = {lane: sum(rows for rows, _ in pieces) for lane, pieces in sized.items()}
        most = random.choice([1, 50, 1000, 10**6])

        def size_of(
            part: float, sized: dict[int, list[tuple[int, int]]] = sized, waiting: dict[int, int] = waiting
        ) -> float:
            """Bytes of this part of each lane."""
            found = 0.0
            for lane, pieces in sized.items():
                left = part * waiting[lane]
                for rows, size in pieces:
                    found += size * min(max(left, 0.0), rows) / rows
                    left -= rows
            return found

        total = sum(waiting.values())
        rows = rows_in_bytes(waiting, {lane: iter(pieces) for lane, pieces in sized.items()}, most)
        assert 0 <= rows <= total and size_of((rows - 0.001) / total) <= most + 0.001, (seed, rows)
        assert rows == total or size_of((rows + 1.001) / total) > most, (seed, rows)


def test_no_lane_is_read_beyond_the_rows_that_have_the_bytes() -> None:
    read = dict.fromkeys((1, 2), 0)

    def pieces(lane: int) -> Iterator[tuple[int, int]]:
        for _ in range(1000):
            read[lane] += 1
            yield 1, 100

    assert rows_in_bytes({1: 1000, 2: 1000}, {lane: pieces(lane) for lane in (1, 2)}, 2000) == 20
    assert max(read.values()) <= 12

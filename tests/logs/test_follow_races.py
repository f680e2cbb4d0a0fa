"""A query that follows another query, at each step of its lane lookup: both end up in the same lane."""

from __future__ import annotations

from typing import Any

import pytest

from bookspark.logs.chain.lane_choice import StreamingQuery, lane_for_query
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.lanes import LaneId, lane_id, writer_of
from bookspark.store.metadata.memory.memory_store import MemoryStore
from tests.logs.test_made_anew import LOG, STEPS
from tests.spark.memory_bookkeeper import MemoryBookKeeper


def log_of(bookkeeper: Any) -> LaneId:
    return lane_id(LogRegistry(bookkeeper.metadata).get(LOG))


def with_an_ended_lane() -> Any:
    """A log in which the lane of query ``one`` has ended; lane 0 is of another query."""
    bookkeeper: Any = MemoryBookKeeper()
    registry = LogRegistry(bookkeeper.metadata)
    registry.ensure(LOG, {}, b"")
    registry.claim(LOG, "first", "first")
    lane = LaneIndex(bookkeeper.metadata, log_of(bookkeeper)).begin(NewLane(writer_of("one")))
    registry.claim(lane, "run", "one")
    end_lane(bookkeeper, str(lane))
    return bookkeeper


def follows(bookkeeper: Any) -> None:
    lane_for_query(bookkeeper, log_of(bookkeeper), b"", StreamingQuery("two", follows="one"))


def goes_on(bookkeeper: Any) -> None:
    lane_for_query(bookkeeper, log_of(bookkeeper), b"", StreamingQuery("one"))


@pytest.mark.parametrize(("does", "meanwhile"), [(follows, goes_on), (goes_on, follows)])
def test_follower_query_makes_no_second_lane_beside_its_predecessors_new_lane(
    does: Any, meanwhile: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both looked when the predecessor's lane had ended. The follower got a lane of its own, while another run of the
    follower used the predecessor's lane: both wrote the same batch."""
    step, came = 0, True
    while came:
        bookkeeper, left = with_an_ended_lane(), [step]

        def watched(original: Any) -> Any:
            def call(*arguments: Any) -> Any:
                left[0] -= 1  # noqa: B023
                if left[0] == -1:  # noqa: B023
                    meanwhile(bookkeeper)  # noqa: B023
                return original(*arguments)

            return call

        with monkeypatch.context() as patched:
            for name in STEPS:
                patched.setattr(MemoryStore, name, watched(getattr(MemoryStore, name)))
            does(bookkeeper)
        came, step = left[0] < 0, step + 1
        lanes = LogRegistry(bookkeeper.metadata).get(LOG).lanes
        assert len([lane for lane in lanes if writer_of("one") in lane.writers]) == 1, lanes
    assert step > 5

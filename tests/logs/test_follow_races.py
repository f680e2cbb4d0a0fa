"""A query that follows another one, at each step of its looking for a lane: both are in one."""

from __future__ import annotations

from typing import Any

import pytest

from bookspark.logs.chain.lane_choice import StreamingQuery, lane_for_query
from bookspark.logs.chain.registry import LogRegistry
from bookspark.logs.lane_ending import end_lane
from bookspark.protocol.logs.lanes import writer_of
from tests.logs.test_made_anew import ADDRESS, LOG, each_step, with_lanes


def ended(bookkeeper: Any) -> None:
    """A log in which the lane of query ``one`` has ended."""
    with_lanes(writer_of("one"))(bookkeeper)
    LogRegistry(bookkeeper.metadata).claim(f"{LOG}@1", "run", "one")
    end_lane(bookkeeper, f"{LOG}@1")


def test_a_query_makes_no_lane_beside_the_new_one_of_the_query_that_it_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both had looked when that one's lane had ended. The follower was in a lane of its own, and another run of it, which looked
    then, in the one of the query that it follows: each wrote the same batch."""

    def follows(bookkeeper: Any) -> None:
        lane_for_query(bookkeeper, ADDRESS, StreamingQuery("two", follows="one"))

    def goes_on(bookkeeper: Any) -> None:
        lane_for_query(bookkeeper, ADDRESS, StreamingQuery("one"))

    for does, meanwhile in ((follows, goes_on), (goes_on, follows)):
        clusters = each_step(does, meanwhile, monkeypatch, ended)
        for bookkeeper in clusters:
            lanes = LogRegistry(bookkeeper.metadata).get(LOG).lanes
            assert len([lane for lane in lanes if writer_of("one") in lane.writers]) == 1, lanes
        assert len(clusters) > 4

"""A query that follows another query, at each step of its lane lookup: both end up in the same lane."""

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


def test_follower_query_makes_no_second_lane_beside_its_predecessors_new_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both looked when the predecessor's lane had ended. The follower got a lane of its own, while another run of the
    follower used the predecessor's lane: both wrote the same batch."""

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

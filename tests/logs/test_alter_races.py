"""Altering a log at each step of a concurrent lane creation or alteration: its lanes end up with the log's options."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.logs import LogRegistry
from bookspark.logs.chain.lane_index import LaneIndex, NewLane
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.metadata.memory.memory_store import MemoryStore


class _KilledError(MetadataStoreError):
    """The process was killed."""


@contextmanager
def at_step(step: int, happens: Callable[[], None]) -> Iterator[list[int]]:
    """Call ``happens`` before the ``step``-th access to a record meanwhile; yield how many steps are left."""
    left = [step]

    def watched(original: Callable[..., Any]) -> Callable[..., Any]:
        def called(self: MemoryStore, *arguments: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                happens()
            return original(self, *arguments)

        return called

    with pytest.MonkeyPatch.context() as patched:
        for name in ("read_record", "write_record", "list_records"):
            patched.setattr(MemoryStore, name, watched(getattr(MemoryStore, name)))
        yield left


def made() -> LogRegistry:
    registry = LogRegistry(MemoryStore())
    registry.create("orders", LogOptions(), b"")
    return registry


def check(registry: LogRegistry) -> None:
    """Every lane has the log's options."""
    log = registry.get("orders")
    assert {registry.get(lane).options for lane in registry.lanes_of("orders")} == {log.options}


def index(registry: LogRegistry) -> LaneIndex:
    return LaneIndex(registry._store, LogRegistry(registry._store).lane("orders"))


def killed() -> None:
    raise _KilledError


def test_lane_made_during_an_alteration_has_the_altered_options() -> None:
    step, more = 0, True
    while more:
        step += 1
        registry = made()
        with at_step(step, lambda: registry.alter("orders", ack_quorum=3)) as left:  # noqa: B023
            index(registry).begin(NewLane("service:a"))
            more = left[0] <= 0
        check(registry)
    assert step > 5


def test_late_lane_maker_gives_another_writers_lane_no_old_options() -> None:
    """The maker read the log before another writer made this lane and the log was altered."""
    step, more = 0, True
    while more:
        step += 1
        registry = made()

        def happens(registry: LogRegistry = registry) -> None:
            registry.alter("orders", ack_quorum=1)
            index(registry).begin(NewLane("service:b"))
            registry.alter("orders", ack_quorum=3)

        with at_step(step, happens) as left:
            assert index(registry).begin(NewLane("service:a")).number in (1, 2)
            more = left[0] <= 0
        check(registry)


def test_lane_left_by_a_crash_gets_the_current_options_at_its_first_use() -> None:
    step, more = 0, True
    while more:
        step += 1
        registry = made()
        with at_step(step, killed) as left, suppress(_KilledError):
            index(registry).begin(NewLane("service:a"))
        more = left[0] <= 0
        registry.alter("orders", ack_quorum=3)
        assert index(registry).begin(NewLane("service:a")).number == 1
        check(registry)


def test_lanes_match_the_log_after_two_concurrent_alterations() -> None:
    step, more = 0, True
    while more:
        step += 1
        registry = made()
        for writer in ("a", "b"):
            index(registry).begin(NewLane(f"service:{writer}"))
        with at_step(step, lambda: registry.alter("orders", ack_quorum=3)) as left:  # noqa: B023
            registry.alter("orders", ack_quorum=1)
            more = left[0] <= 0
        check(registry)
        assert [lane.number for lane in registry.lanes_of("orders")] == [0, 1, 2]

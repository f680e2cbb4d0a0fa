"""The change of a record by compare-and-set: pauses, the deadline, and many clients at the same moment."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace

import pytest

from bookspark.errors import MetadataVersionError
from bookspark.store.metadata.records import versioned
from bookspark.store.metadata.records.versioned import (
    CONTENDED_SECONDS_MAX,
    PAUSE_SECONDS_MAX,
    Versioned,
    compare_and_set,
)
from bookspark.store.metadata.short_waits import waits_at_most


class Clock:
    """A clock that sleeps only move."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.pauses = 0.0, list[float]()
        monkeypatch.setattr(versioned, "time", SimpleNamespace(monotonic=lambda: self.now, sleep=self.sleep))
        monkeypatch.setattr(versioned, "random", Random(7))

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def lost(value: int, version: int | None) -> bool:
    return False


def change_that_always_loses() -> None:
    compare_and_set("the count", lambda: Versioned(1, 1), lambda value: 2, lost)


def test_lost_writes_are_repeated_for_five_minutes_after_growing_drawn_pauses(clock: Clock) -> None:
    with pytest.raises(MetadataVersionError, match="the count: other clients changed it"):
        change_that_always_loses()
    assert CONTENDED_SECONDS_MAX - PAUSE_SECONDS_MAX < clock.now <= CONTENDED_SECONDS_MAX
    longest = [min(versioned.PAUSE_SECONDS * 2**n, PAUSE_SECONDS_MAX) for n in range(len(clock.pauses))]
    assert all(0 < pause < most for pause, most in zip(clock.pauses, longest, strict=True))
    late = clock.pauses[20:]
    assert min(late) < 0.2 * PAUSE_SECONDS_MAX and max(late) > 0.8 * PAUSE_SECONDS_MAX, "drawn from the whole range"


def test_caller_with_less_time_gets_the_error_earlier(clock: Clock) -> None:
    with waits_at_most(3.0), pytest.raises(MetadataVersionError):
        change_that_always_loses()
    assert clock.now <= 3.0


def test_change_without_contention_never_pauses(clock: Clock) -> None:
    assert compare_and_set("it", lambda: None, lambda value: 5, lambda value, version: 0) == 5
    assert compare_and_set("it", lambda: Versioned(3, 1), lambda value: None, lost) == 3
    assert not clock.pauses


def test_two_hundred_clients_at_the_same_moment_all_succeed_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of a group that saved their places together failed after ten attempts each. Each round of simultaneous attempts has
    a single winner; a request takes 2 ms here."""
    random, record = Random(3), Versioned(0, 0)
    due: list[tuple[float, int]] = [(0.0, client) for client in range(200)]
    pauses = {
        client: versioned.BackOff(versioned.PAUSE_SECONDS, PAUSE_SECONDS_MAX, random.uniform) for _, client in due
    }
    writing: dict[int, int] = {}
    now = 0.0
    while due:
        due.sort(reverse=True)
        now, client = due.pop()
        if client not in writing:
            writing[client] = record.version
            due.append((now + 0.002, client))
        elif writing.pop(client) == record.version:
            record = Versioned(record.value + 1, record.version + 1)
        else:
            due.append((now + 0.002 + pauses[client].next(), client))
    assert record.value == 200 and now < 30

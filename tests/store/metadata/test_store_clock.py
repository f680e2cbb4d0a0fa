"""The cluster's time: bounds of a reading, the host's own clock, and when the store is asked again."""

from __future__ import annotations

import time

import pytest

from bookspark.errors import MetadataStoreError
from bookspark.protocol.kept_times import AGREES_MS
from bookspark.store.metadata.store_clock import RENEW_SECONDS, StoreClock
from tests.clocks import DAY_MS


class Host:
    """A host's two clocks, and a store whose answers take a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monotonic_ms, self.wall_ms, self.store_ms = 5_000, 1_000_000_000, 1_000_000_000
        self.answer_ms = self.asked = 0
        self.answers = True
        monkeypatch.setattr(time, "monotonic_ns", lambda: self.monotonic_ms * 1_000_000)
        monkeypatch.setattr(time, "time_ns", lambda: self.wall_ms * 1_000_000)

    def passes(self, ms: int) -> None:
        self.monotonic_ms, self.wall_ms, self.store_ms = self.monotonic_ms + ms, self.wall_ms + ms, self.store_ms + ms

    def ask(self) -> int:
        self.asked += 1
        self.passes(self.answer_ms // 2)
        if not self.answers:
            raise MetadataStoreError("no answer")
        told_ms = self.store_ms
        self.passes(self.answer_ms - self.answer_ms // 2)
        return told_ms


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Host:
    return Host(monkeypatch)


@pytest.mark.parametrize("answer_ms", [0, 40, 8_000])
@pytest.mark.parametrize("off_ms", [0, AGREES_MS, -AGREES_MS])
def test_hosts_own_clock_counts_while_it_agrees_however_slow_the_store(host: Host, off_ms: int, answer_ms: int) -> None:
    host.wall_ms += off_ms
    host.answer_ms = answer_ms
    clock = StoreClock(host.ask)
    assert clock.now_ms() == host.wall_ms == clock.known_ms()


@pytest.mark.parametrize("off_ms", [400 * DAY_MS, -400 * DAY_MS, 2 * AGREES_MS, -2 * AGREES_MS])
def test_time_of_a_host_with_a_wrong_clock_is_off_by_no_more_than_an_answer_takes(host: Host, off_ms: int) -> None:
    host.wall_ms += off_ms
    host.answer_ms = 300
    clock = StoreClock(host.ask)
    for _ in range(3):
        assert abs(clock.now_ms() - host.store_ms) <= 300
        assert host.store_ms - 300 <= clock.store_ms() <= host.store_ms
        assert 0 <= abs(off_ms) - abs(clock.host_ahead_ms()) <= 300 and clock.host_ahead_ms() * off_ms > 0
        host.passes(10_000)


def test_clock_that_is_set_changes_no_time_until_the_store_is_asked_again(host: Host) -> None:
    clock = StoreClock(host.ask)
    assert clock.now_ms() == host.store_ms
    host.wall_ms += 400 * DAY_MS
    host.passes(1000)
    assert clock.now_ms() == host.store_ms and host.asked == 1
    assert abs(clock.host_ahead_ms() - 400 * DAY_MS) <= 1
    host.passes(round(RENEW_SECONDS * 1000))
    assert abs(clock.now_ms() - host.store_ms) <= 1 and host.asked == 2


def test_store_that_does_not_answer_leaves_the_time_as_it_was_known(host: Host) -> None:
    clock = StoreClock(host.ask)
    host.answers = False
    with pytest.raises(MetadataStoreError):
        clock.now_ms()
    assert (clock.store_ms(), clock.host_ahead_ms(), clock.known_ms()) == (0, 0, host.wall_ms)
    host.answers = True
    clock.now_ms()
    host.answers = False
    host.passes(2 * DAY_MS)
    assert clock.now_ms() == host.store_ms


def test_machine_that_stood_still_asks_again_after_it_has_connected_again(host: Host) -> None:
    clock = StoreClock(host.ask)
    clock.now_ms()
    host.wall_ms += DAY_MS
    host.store_ms += DAY_MS
    clock.doubt()
    assert clock.now_ms() == host.store_ms and host.asked == 2


def test_what_a_session_heard_does_not_replace_what_it_asked_for(host: Host) -> None:
    clock = StoreClock(host.ask)
    clock.heard(host.store_ms - DAY_MS, time.monotonic_ns())
    assert abs(clock.known_ms() - (host.store_ms - DAY_MS)) <= 1 and host.asked == 0
    assert clock.now_ms() == host.store_ms and host.asked == 1
    clock.heard(host.store_ms - DAY_MS, time.monotonic_ns())
    assert clock.now_ms() == clock.known_ms() == host.store_ms and host.asked == 1

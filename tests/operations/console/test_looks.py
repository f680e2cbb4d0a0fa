"""Looks shared by all requests for the same content."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from bookspark.errors import ReadError
from bookspark.operations.console import looks
from bookspark.operations.console.looks import UNDER_WAY, Looks
from tests.awaiting import SECONDS_MAX, await_that


@pytest.fixture
def shared():
    found = Looks()
    yield found
    found.close()


def test_concurrent_requests_share_one_look(shared):
    begun, end = [], threading.Event()

    def look() -> int:
        begun.append(1)
        end.wait(SECONDS_MAX)
        return 7

    assert shared.of("key", look, 0.01) is UNDER_WAY
    assert shared.of("key", look, 0.0) is UNDER_WAY
    end.set()
    assert shared.of("key", look, 30).found == 7
    assert shared.of("key", look, 30).found == 7
    assert len(begun) == 1


def test_stale_content_is_looked_at_again(shared, monkeypatch):
    monkeypatch.setattr(looks, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(looks, "_RESTS", 0)
    seen = iter(range(100))
    first = shared.of("key", lambda: next(seen), 30).found
    assert first == 0
    await_that(lambda: shared.of("key", lambda: next(seen), 30).found > first)


def test_content_of_a_look_long_ago_is_not_shown_as_current(shared, monkeypatch):
    """While a page is watched, it shows the previous look until the next one ends; after a long break it does not."""
    end = threading.Event()
    monkeypatch.setattr(looks, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(looks, "_RESTS", 0)
    # The machine may stall here for longer than a page waits.
    monkeypatch.setattr(looks, "PAGE_SECONDS", 600.0)
    assert shared.of("key", lambda: 1, 30).found == 1
    await_that(lambda: not shared._running)
    assert shared.of("key", lambda: end.wait(SECONDS_MAX), 0.0).found == 1
    end.set()
    await_that(lambda: not shared._running)
    end.clear()
    shared._kept["key"].due -= 3600
    assert shared.of("key", lambda: end.wait(SECONDS_MAX), 0.0) is UNDER_WAY
    end.set()


def test_request_with_content_to_show_does_not_wait_for_the_next_look(shared, monkeypatch):
    end = threading.Event()
    monkeypatch.setattr(looks, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(looks, "_RESTS", 0)
    monkeypatch.setattr(looks, "PAGE_SECONDS", 600.0)
    assert shared.of("key", lambda: 1, 30).found == 1
    await_that(lambda: not shared._running)
    # Waiting would never return: the look ends only after this request.
    assert shared.of("key", lambda: end.wait(SECONDS_MAX) and 2, 3600).found == 1
    end.set()
    await_that(lambda: shared.of("key", lambda: 2, 30).found == 2)


def test_lasting_content_is_looked_at_only_once(shared, monkeypatch):
    monkeypatch.setattr(looks, "_FRESH_SECONDS", 0.0)
    monkeypatch.setattr(looks, "_RESTS", 0)
    seen = iter(range(100))
    assert shared.of("key", lambda: next(seen), 30, lasting=True).found == 0
    await_that(lambda: not shared._running)
    shared._kept["key"].due -= 3600
    assert shared.of("key", lambda: next(seen), 30, lasting=True).found == 0
    assert next(seen) == 1


def test_failed_look_reports_known_errors_and_hides_others(shared):
    def fail(error: Exception) -> None:
        raise error

    assert shared.of("known", lambda: fail(ReadError("no bookie")), 30)[:2] == (None, "no bookie")
    found = shared.of("unknown", lambda: fail(ValueError("a secret")), 30)
    assert "the console's log says why" in found.problem and "secret" not in found.problem


def test_nothing_is_forgotten_before_the_bound_is_reached(shared, monkeypatch):
    monkeypatch.setattr(looks, "_KEPT", 8)
    for number in range(8):
        assert shared.of(number, partial(int, number), 30).found == number
        await_that(lambda: not shared._running)
    for number in range(8):
        assert shared.of(number, partial(int, 100), 30, lasting=True).found == number


def test_running_looks_and_kept_content_are_bounded(shared, monkeypatch):
    monkeypatch.setattr(looks, "_KEPT", 3)
    for number in range(10):
        assert shared.of(number, partial(int, number), 30).found == number
        await_that(lambda: not shared._running)
    assert len(shared._kept) <= 4
    end = threading.Event()
    monkeypatch.setattr(looks, "_WAITING_MAX", 5)
    for number in range(20, 40):
        shared.of(number, lambda: end.wait(SECONDS_MAX), 0.0)
    assert len(shared._running) == 5
    end.set()
    # A cancelled look never ends; waiting for it would last until the deadline.
    monkeypatch.setattr(looks, "_END_SECONDS_MAX", 600.0)
    closing = threading.Thread(target=shared.close, daemon=True)
    closing.start()
    closing.join(SECONDS_MAX)
    assert not closing.is_alive()

"""Commands that run until they are told to end, and when they are told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from bookspark.operations.cli.terminal.signals import until_signal


@pytest.fixture(autouse=True)
def _no_nohup() -> Iterator[None]:
    """Whoever runs the tests may have had SIGHUP ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_one_that_is_told_to_end_while_it_starts_stops_what_it_started_and_has_ended_as_asked(number: int) -> None:
    stopped = False
    before = signal.getsignal(signal.SIGTERM)
    with until_signal():
        try:
            os.kill(os.getpid(), number)
            pytest.fail("it went on starting")
        finally:
            stopped = True
    assert stopped
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_signal_does_not_cut_the_stopping_short(number: int) -> None:
    before = signal.getsignal(signal.SIGINT)
    try:
        with until_signal() as wait:
            signal.setitimer(signal.ITIMER_REAL, 0)
            previous = signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), number))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            wait()
            signal.signal(signal.SIGALRM, previous)
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGHUP)
    finally:
        signal.signal(signal.SIGINT, before)


def test_one_that_nohup_started_outlives_its_terminal() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with until_signal():
            os.kill(os.getpid(), signal.SIGHUP)
            went_on = True
        assert went_on and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)

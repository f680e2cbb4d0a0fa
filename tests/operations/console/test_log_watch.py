"""The watch over all logs, without a cluster."""

from __future__ import annotations

import threading
from types import SimpleNamespace

from bookspark.operations.console import looks
from bookspark.operations.console import watch as watches
from bookspark.operations.console.looks import Looks
from bookspark.operations.console.watch import LogWatch
from tests.awaiting import SECONDS_MAX, await_that


def test_slow_looks_at_logs_do_not_queue_up_before_the_looks_of_pages(monkeypatch):
    """With bookies that hang, each look took longer than the watch waited for it, and pages waited behind all of them."""
    begun, end = [], threading.Event()

    def look_at(bookkeeper, name):
        begun.append(name)
        end.wait(SECONDS_MAX)
        raise ValueError(name)

    names = [f"log-{number:03}" for number in range(100)]
    monkeypatch.setattr(watches, "look_at", look_at)
    monkeypatch.setattr(watches, "PAGE_SECONDS", 0.01)
    monkeypatch.setattr(watches, "LogRegistry", lambda metadata: SimpleNamespace(names=lambda: names))
    monkeypatch.setattr(looks, "_WAITING_MAX", 64)
    shared = Looks("test", 2)
    watch = LogWatch(SimpleNamespace(metadata=None), shared)
    try:
        await_that(lambda: begun)
        for _ in range(20):
            watch._thread.wake()
            shared.of("turn", lambda: None, 0.05)
        assert len(shared._running) <= 2, "the log that goes on, and a page's"
        assert shared.of("a page", lambda: 7, SECONDS_MAX).found == 7
    finally:
        end.set()
        watch.close()
        shared.close()

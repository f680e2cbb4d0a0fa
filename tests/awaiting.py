"""Waiting for what other processes bring about."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def await_that(condition: Callable[[], Found], seconds: float = 90.0) -> Found:
    """What ``condition`` gives once it is true; it is looked at again and again. Fails after ``seconds``."""
    deadline, changed = time.monotonic() + seconds, threading.Event()
    while not (found := condition()):
        assert time.monotonic() < deadline, "it did not come about in time"
        changed.wait(0.05)
    return found

"""Checks whether a call takes a lock, from another thread that holds it, without a clock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

from tests.awaiting import SECONDS_MAX

_SECONDS_MAX = SECONDS_MAX


class _Asked:
    """A lock or condition that reports each attempt to take it."""

    def __init__(self, lock: Any, tell: Callable[[], None]) -> None:
        self._lock = lock
        self._tell = tell

    def __enter__(self) -> Any:
        self._tell()
        return self._lock.__enter__()

    def __exit__(self, *error: object) -> Any:
        return self._lock.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._lock, name)


@contextmanager
def meanwhile(owner: Any, name: str, call: Callable[[], object]) -> Iterator[bool]:
    """Run ``call()`` in another thread until it waits for the lock ``name`` of ``owner`` (True) or has returned (False);
    then the block begins. The holder of the lock must release it within the block; the call has ended after it."""
    told: SimpleQueue[bool] = SimpleQueue()
    lock = getattr(owner, name)
    setattr(owner, name, _Asked(lock, lambda: told.put(True)))

    def run() -> None:
        try:
            call()
        finally:
            told.put(False)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield told.get(timeout=_SECONDS_MAX)
    finally:
        setattr(owner, name, lock)
        thread.join(_SECONDS_MAX)
        assert not thread.is_alive()


def waits_for(owner: Any, name: str, call: Callable[[], object]) -> bool:
    """Whether the call waits while another thread holds the lock ``name`` of ``owner``."""
    lock = getattr(owner, name)
    lock.acquire()
    with meanwhile(owner, name, call) as waited:
        lock.release()
    return waited

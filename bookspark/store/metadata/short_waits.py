"""Shorter deadlines of the metadata store for a caller that can do without an answer.

Law: within ``with waits_at_most(seconds)``, each call of this thread to a store ends within ``seconds``, or within the store's
own shorter deadline. A call without an answer by then raises MetadataStoreError, as ever.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Patience(threading.local):
    seconds = math.inf


_patience = _Patience()


@contextmanager
def waits_at_most(seconds: float) -> Iterator[None]:
    """Shorten the deadlines of this thread's calls."""
    before, _patience.seconds = _patience.seconds, min(seconds, _patience.seconds)
    try:
        yield
    finally:
        _patience.seconds = before


def patience_seconds() -> float:
    """Longest wait of this thread in seconds; infinite outside of ``waits_at_most``."""
    return _patience.seconds

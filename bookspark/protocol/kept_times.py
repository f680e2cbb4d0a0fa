"""Times that one host keeps and another judges, in ms since 1970.

Law: both hosts know the metadata store's time (``store.metadata.store_clock``). A kept time that lies ahead of now by more than
``AHEAD_MS`` was written while a clock was wrong, so nothing waits for it.

Source: docs/decisions/clocks.md.
"""

from __future__ import annotations

AGREES_MS = 1_000
"""A host's own clock counts while it is no further from the metadata store's."""
AHEAD_MS = 60_000
"""Far above the difference between two hosts that know the store's time."""


def lies_ahead(kept_ms: int, now_ms: int) -> bool:
    return kept_ms > now_ms + AHEAD_MS


def is_over(since_ms: int, wait_ms: int, now_ms: int) -> bool:
    """Is the wait of ``wait_ms`` that began at ``since_ms`` over?"""
    return now_ms >= since_ms + wait_ms or lies_ahead(since_ms, now_ms)

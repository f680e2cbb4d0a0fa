"""Names, counts and times in sentences."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

NAMED = 5


def named(word: str, names: Iterable[object]) -> str:
    """``ledgers 1, 2 and 3 more``."""
    found = sorted(set(names), key=lambda one: (str(type(one)), one))
    more = f" and {len(found) - NAMED:,} more" if len(found) > NAMED else ""
    return f"{word}{'' if len(found) == 1 else 's'} {', '.join(map(str, found[:NAMED]))}{more}"


def duration(seconds: float) -> str:
    """Seconds as ``0:02:00``."""
    return str(timedelta(seconds=round(seconds)))

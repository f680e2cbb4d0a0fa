"""The homes of bookies on a host: ``<root>/bookie-<number>`` in each root (``placement`` assigns them)."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from bookspark.errors import InvalidCookieError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.servers.daemon.directories import has_cookie, read_cookie
from bookspark.spark.bookies.placement import Found

_HOME = re.compile(r"bookie-(\d+)")


def find_homes(roots: Sequence[str]) -> tuple[int, ...]:
    """Numbers of the homes on this host. A home may be missing in some of the roots."""
    numbers: set[int] = set()
    for root in roots:
        # A root that fails counts as absent.
        if os.path.isdir(root) and os.access(root, os.R_OK):
            numbers.update(int(match[1]) for name in os.listdir(root) if (match := _HOME.fullmatch(name)))
    return tuple(sorted(numbers))


def home_directories(roots: Sequence[str], home: int) -> list[str]:
    return [os.path.join(root, f"bookie-{home}") for root in roots]


def home_number(directories: Sequence[str], roots: Sequence[str]) -> int | None:
    """The number of the home with these directories, or None. Roots may differ from those in its cookie: the bookie itself
    reports missing directories."""
    match = _HOME.fullmatch(os.path.basename(directories[0])) if directories else None
    if match is None or not set(directories) & set(home_directories(roots, int(match[1]))):
        return None
    return int(match[1])


def look(roots: Sequence[str], instance_id: str) -> tuple[Found, ...]:
    """The homes on this host, with their owners. ``instance_id``: the cluster's."""
    return tuple(_look(number, home_directories(roots, number), instance_id) for number in find_homes(roots))


def _look(number: int, directories: Sequence[str], instance_id: str) -> Found:
    cookie: Cookie | None = None
    unreadable = False
    for directory in directories:
        try:
            cookie = cookie or read_cookie(directory)
        except (OSError, InvalidCookieError):
            unreadable = unreadable or has_cookie(directory)
    if cookie is None:
        return Found(number, unreadable=unreadable)
    return Found(number, cookie.bookie_id, foreign=cookie.instance_id != instance_id)

"""A bookie's cookie: who it is and which directories are its own (BP-46, "A note on cookies").

Law: identity is the disk. The cookie is written to each directory and to the metadata store when a bookie boots for the
first time; on every later boot all copies must be there and equal, or the bookie stays down. The address is *not* part
of it: a bookie that comes back elsewhere is the same bookie (unlike BookKeeper's cookie, see design.md section 3).

Stamping goes: each directory, then the metadata store, then the first byte of data. So a crash in between leaves
directories without data whose bookie the metadata store doesn't know, and only such a crash does: that bookie
finishes its first boot. What the metadata store knows was stamped everywhere, so a directory that lacks the cookie
then was lost or emptied.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from bookspark.protocol.errors import InvalidCookieError


@dataclass(frozen=True, slots=True)
class Cookie:
    """``directories`` are absolute paths in configured order; ``instance_id`` is the cluster's, ``nonce`` this
    bookie's."""

    bookie_id: str
    directories: tuple[str, ...]
    instance_id: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Stamps:
    """Who the bookie is, and where its cookie is still to be written: these directories first, then the metadata store."""

    cookie: Cookie
    directories: tuple[str, ...] = ()
    metadata: bool = False


@dataclass(frozen=True, slots=True)
class CookieCopies:
    """What a boot found. ``in_directories`` has a key for each configured directory, ``in_metadata`` for each bookie
    id found."""

    in_directories: Mapping[str, Cookie | None]
    in_metadata: Mapping[str, Cookie | None]
    with_data: Collection[str]
    """The directories that hold anything besides a cookie."""


def check_cookies(copies: CookieCopies, fresh: Cookie, zookeeper: str) -> Stamps:
    """Decide who boots. ``fresh`` is the cookie that a first boot would stamp: it names the configured directories
    and the cluster, with an id and a nonce made up for the case. Raises InvalidCookieError with what was expected
    and found, and what fixes it (``zookeeper`` is for the commands in it)."""
    configured = fresh.directories
    found = {directory: cookie for directory, cookie in copies.in_directories.items() if cookie is not None}
    missing = tuple(directory for directory in configured if directory not in found)
    if not found:
        for directory in configured:
            if directory in copies.with_data:
                raise InvalidCookieError(
                    f"directory {directory} has no cookie but is not empty: expected an empty directory or a bookie's own, found "
                    "other files; give the bookie another directory, or empty this one if nobody needs what is in it"
                )
        return Stamps(fresh, configured, metadata=True)

    first, cookie = next(iter(found.items()))
    for directory, other in found.items():
        if other != cookie:
            raise InvalidCookieError(
                f"directories of different bookies: {first} is that of {_text(cookie)}, {directory} that of "
                f"{_text(other)}; start each bookie with its own directories"
            )
    if cookie.instance_id != fresh.instance_id:
        raise InvalidCookieError(
            f"directory {first} belongs to {cookie.bookie_id} of another cluster: expected instance {fresh.instance_id}, found "
            f"{cookie.instance_id}; name that cluster's ZooKeeper (this one is {zookeeper}), or give the bookie another directory"
        )
    if cookie.directories != configured:
        order = " (the order counts)" if set(cookie.directories) == set(configured) else ""
        raise InvalidCookieError(
            f"directory {first} belongs to {cookie.bookie_id}: expected directories {', '.join(cookie.directories)}, "
            f"found {', '.join(configured)}{order}; start it with the directories of its cookie, or if they were moved: "
            f"{_command('update', zookeeper, configured)}"
        )
    recorded = copies.in_metadata[cookie.bookie_id]
    if recorded is None:
        if copies.with_data:
            raise InvalidCookieError(
                f"the metadata store has no cookie of {cookie.bookie_id}: expected {_text(cookie)}, found none; it was deleted, "
                f"or the bookie decommissioned; if it is to serve again: {_command('create', zookeeper, configured)}"
            )
        return Stamps(cookie, missing, metadata=True)
    if recorded != cookie:
        raise InvalidCookieError(
            f"the cookies of {cookie.bookie_id} differ: expected {_text(recorded)} as in the metadata store, found "
            f"{_text(cookie)} in {first}; if the directories are the right ones: {_command('update', zookeeper, configured)}"
        )
    if missing:
        raise InvalidCookieError(
            f"directory {missing[0]} of {cookie.bookie_id} has no cookie: expected {_text(cookie)}, found none; its disk is "
            f"missing or was emptied. Mount it again; if its entries are lost: {_command('fix', zookeeper, configured)}"
        )
    return Stamps(cookie)


def _command(verb: str, zookeeper: str, directories: tuple[str, ...]) -> str:
    return shlex.join(["bookspark", "cookie", verb, "--zookeeper", zookeeper, *directories])


def _text(cookie: Cookie) -> str:
    return f"{cookie.bookie_id} (nonce {cookie.nonce}, instance {cookie.instance_id}, {', '.join(cookie.directories)})"

"""A bookie's cookie: its id and its directories (BP-46, "A note on cookies").

Law: identity is the disk. The first boot writes the cookie to each directory and to the metadata store. On every later boot all
copies must be there and equal, or the bookie stays down. The address is *not* part of it, unlike BookKeeper's: a bookie that
comes back elsewhere is the same bookie (docs/decisions/bookies-outlive-tasks.md).

Each directory is stamped, then the metadata store, and only then is data written. So stamped directories without data, of a
bookie unknown to the metadata store, are an unfinished first boot. The next boot ends it with a nonce of its own in each
directory: if a disk of it was moved, both hosts may go on, and the first one to reach the metadata store is the bookie. If the
metadata store knows the cookie, a directory without it was lost or emptied. A boot without its content needs a permission (an
option, or ``bookspark cookie fix``), is lossy, and stamps that directory last, after phase one (``bookie_boot``).

Whoever stamps directories in the place of lost ones draws a new nonce, since another host may do so too. Each directory first
names the new nonce beside the old one, then the metadata store takes it by compare-and-set, then it replaces the old one. So one
host wins, also if each is cut off anywhere, and the other's directories no longer fit. An unreadable directory could not follow,
so a boot without one draws none. It may have everything, so beside emptied directories alone nothing boots.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from bookspark.errors import InvalidCookieError


@dataclass(frozen=True, slots=True)
class Cookie:
    """``directories``: absolute paths in configured order; ``instance_id``: the cluster's; ``nonce``: of the first boot to end,
    or of the last stamps in the place of lost ones; ``next_nonce``: in a directory, the nonce that the metadata store may have
    taken, or ""."""

    bookie_id: str
    directories: tuple[str, ...]
    instance_id: str
    nonce: str
    next_nonce: str = ""

    def settled(self, recorded: Cookie | None) -> Cookie:
        """A directory's cookie as it counts: with the next nonce if the metadata store has taken it."""
        taken = recorded is not None and self.next_nonce not in ("", self.nonce) and recorded.nonce == self.next_nonce
        return replace(self, nonce=self.next_nonce if taken else self.nonce, next_nonce="")


@dataclass(frozen=True, slots=True)
class Stamps:
    """The bookie's cookie, and the places still to be stamped."""

    cookie: Cookie
    directories: tuple[str, ...] = ()
    metadata: bool = False
    lost: tuple[str, ...] = ()
    """Members of ``directories`` that had a cookie once. Their content is gone."""
    old_nonce: str | None = None
    """The nonce that the cookie's replaces; None: it is no new one."""

    @property
    def first(self) -> Cookie:
        """The cookie for the directories until the metadata store has ``cookie``."""
        if self.old_nonce is None:
            return self.cookie
        return replace(self.cookie, nonce=self.old_nonce, next_nonce=self.cookie.nonce)


def with_nonce(cookie: Cookie, nonce: str, directories: tuple[str, ...], lost: tuple[str, ...] = ()) -> Stamps:
    """Stamps of all ``directories`` of a bookie with a new nonce."""
    return Stamps(replace(cookie, nonce=nonce), directories, metadata=True, lost=lost, old_nonce=cookie.nonce)


@dataclass(frozen=True, slots=True)
class CookieCopies:
    in_directories: Mapping[str, Cookie | None]
    """The cookie in each readable configured directory; None if the directory has none."""
    in_metadata: Mapping[str, Cookie | None]
    """The metadata store's cookie, or None, for each bookie id in a directory or named by the operator."""
    with_data: Collection[str]
    """Directories with data: more than a cookie and the files that a lossy boot begins with."""


@dataclass(frozen=True, slots=True)
class CookiePermissions:
    """The operator's permissions for a boot."""

    named: str = ""
    """The bookie's id. Without it, a bookie with all directories emptied is not recognised."""
    stamp_missing: bool = False
    """Go on without the content of directories that lost their cookie."""
    add_empty: bool = False
    """Add empty directories that the cookie does not name."""


NOTHING_PERMITTED = CookiePermissions()


def check_cookies(
    copies: CookieCopies, fresh: Cookie, zookeeper: str, permitted: CookiePermissions = NOTHING_PERMITTED
) -> Stamps:
    """Decide which bookie boots. ``fresh``: the cookie of a first boot, with the configured directories, the cluster, and a new
    id and nonce. ``zookeeper``: for the commands in messages.

    Raises InvalidCookieError with the expected and the actual cookie, and the command that fixes it.
    """
    configured = fresh.directories
    stamped = {directory: cookie for directory, cookie in copies.in_directories.items() if cookie is not None}
    found = {directory: cookie.settled(copies.in_metadata[cookie.bookie_id]) for directory, cookie in stamped.items()}
    missing = tuple(directory for directory, cookie in copies.in_directories.items() if cookie is None)
    if not found:
        return _without_cookie(copies, fresh, zookeeper, permitted)
    if not copies.with_data and all(copies.in_metadata[cookie.bookie_id] is None for cookie in found.values()):
        # An unfinished first boot: its stamps may be of several attempts.
        found = {directory: replace(cookie, nonce=fresh.nonce) for directory, cookie in found.items()}
    first, cookie = _agreed(found, configured, permitted)
    if permitted.named not in ("", cookie.bookie_id):
        raise InvalidCookieError(
            f"directory {first} belongs to {cookie.bookie_id}: expected {permitted.named}, found {_text(cookie)}; start it with "
            "the directories of the bookie that bookie_id names, or name the right one"
        )
    if cookie.instance_id != fresh.instance_id:
        raise InvalidCookieError(
            f"directory {first} belongs to {cookie.bookie_id} of another cluster: expected instance {fresh.instance_id}, found "
            f"{cookie.instance_id}; name that cluster's ZooKeeper (this one is {zookeeper}), or give the bookie another directory"
        )
    if cookie.directories != configured and not _may_add(cookie, configured, copies, permitted):
        order = " (the order counts)" if set(cookie.directories) == set(configured) else ""
        more = set(cookie.directories) < set(configured)
        hint = "; to add empty ones, name them behind the others and set add_empty_directories" if more else ""
        moved = ""
        if len(configured) == len(cookie.directories) and not missing:
            moved = f", or if they were moved: {_command('update', zookeeper, configured)}"
        raise InvalidCookieError(
            f"directory {first} belongs to {cookie.bookie_id}: expected directories {', '.join(cookie.directories)}, "
            f"found {', '.join(configured)}{order}{hint}; start it with the directories of its cookie{moved}"
        )
    wanted = replace(cookie, directories=configured)
    recorded = copies.in_metadata[cookie.bookie_id]
    if recorded is None:
        if copies.with_data:
            raise InvalidCookieError(
                f"the metadata store has no cookie of {cookie.bookie_id}: expected {_text(cookie)}, found none; it was deleted, "
                "or the bookie decommissioned: then a new one may have its directories, once they are empty; if it is to serve "
                f"again: {_command('create', zookeeper, configured)}"
            )
        return Stamps(wanted, tuple(copies.in_directories), metadata=True)
    growing = replace(recorded, directories=configured) == wanted and _may_add(recorded, configured, copies, permitted)
    if recorded.nonce not in ("", cookie.nonce):
        raise InvalidCookieError(
            f"the cookies of {cookie.bookie_id} differ: expected {_text(recorded)} as in the metadata store, found "
            f"{_text(cookie)} in {first}; since then other directories have become the bookie, as an operator allowed: "
            "start it on that host. If an older copy of ZooKeeper's data was put back, these may be the "
            f"right ones: {_command('update', zookeeper, configured)}"
        )
    if recorded not in (cookie, wanted) and not growing:
        raise InvalidCookieError(
            f"the cookies of {cookie.bookie_id} differ: expected {_text(recorded)} as in the metadata store, found "
            f"{_text(cookie)} in {first}; if these are all of its directories: {_command('update', zookeeper, configured)}"
        )
    lost = tuple(directory for directory in missing if directory in recorded.directories)
    if lost and (not permitted.stamp_missing or any(directory in copies.with_data for directory in lost)):
        other = ", but other files," if lost[0] in copies.with_data else ";"
        raise InvalidCookieError(
            f"directory {lost[0]} of {cookie.bookie_id} has no cookie: expected {_text(cookie)}, found none{other} its disk is "
            f"missing or was emptied. Mount it again; if its entries are lost: {_command('fix', zookeeper, configured)}"
        )
    is_cut_off = any(other.next_nonce and other.nonce == recorded.nonce for other in stamped.values())
    if (lost or is_cut_off) and len(copies.in_directories) == len(configured):
        return with_nonce(wanted, fresh.nonce, configured, lost)
    if wanted != recorded or any(other != wanted for other in stamped.values()):
        return Stamps(wanted, tuple(copies.in_directories), metadata=True, lost=lost)
    return Stamps(cookie, lost, lost=lost)


def _without_cookie(copies: CookieCopies, fresh: Cookie, zookeeper: str, permitted: CookiePermissions) -> Stamps:
    """No directory has a cookie: a first boot, or a bookie that lost everything."""
    configured = fresh.directories
    for directory in configured:
        if directory in copies.with_data:
            raise InvalidCookieError(
                f"directory {directory} has no cookie but is not empty: expected an empty directory or a bookie's own, found "
                "other files; give the bookie another directory, or empty this one if nobody needs what is in it"
            )
    recorded = copies.in_metadata.get(permitted.named) if permitted.named else None
    if recorded is None:
        return Stamps(replace(fresh, bookie_id=permitted.named or fresh.bookie_id), configured, metadata=True)
    if unread := [directory for directory in configured if directory not in copies.in_directories]:
        raise InvalidCookieError(
            f"{', '.join(unread)} can't be read, and no other directory has the cookie of {permitted.named}: expected "
            f"{_text(recorded)}. All of its entries may be there: start it again once it can be read. If its disk is dead, put "
            "an empty directory in its place"
        )
    if recorded.directories != configured or not permitted.stamp_missing:
        raise InvalidCookieError(
            f"no directory has the cookie of {permitted.named}: expected {_text(recorded)}, found none in "
            f"{', '.join(configured)}. Mount its disks again; if all of its entries are lost: "
            + _command("fix", zookeeper, ("--bookie", permitted.named, *configured))
        )
    return with_nonce(recorded, fresh.nonce, configured, lost=configured)


def _agreed(
    found: Mapping[str, Cookie], configured: tuple[str, ...], permitted: CookiePermissions
) -> tuple[str, Cookie]:
    """The cookie shared by all directories, and a directory that has it. A crash during the addition of directories leaves two
    cookies; the later one names more directories. Returns the earlier one."""
    first, cookie = min(found.items(), key=lambda item: len(item[1].directories))
    for directory, other in found.items():
        grown = permitted.add_empty and replace(cookie, directories=configured) == other
        if other != cookie and not grown:
            raise InvalidCookieError(
                f"directories of different bookies: {first} is that of {_text(cookie)}, {directory} that of "
                f"{_text(other)}; start each bookie with its own directories"
            )
    return first, cookie


def _may_add(cookie: Cookie, configured: tuple[str, ...], copies: CookieCopies, permitted: CookiePermissions) -> bool:
    """Are the configured directories those of the cookie, in its order, with permitted, empty ones behind them? In front they
    would change the log numbers of each directory (``LogDirectory.log_number``)."""
    named, new = configured[: len(cookie.directories)], configured[len(cookie.directories) :]
    empty = all(
        directory in copies.in_directories
        and (copies.in_directories[directory] is not None or directory not in copies.with_data)
        for directory in new
    )
    return permitted.add_empty and named == cookie.directories and empty


def _command(verb: str, zookeeper: str, directories: tuple[str, ...]) -> str:
    return shlex.join(["bookspark", "cookie", verb, "--zookeeper", zookeeper, *directories])


def _text(cookie: Cookie) -> str:
    return f"{cookie.bookie_id} (nonce {cookie.nonce}, instance {cookie.instance_id}, {', '.join(cookie.directories)})"

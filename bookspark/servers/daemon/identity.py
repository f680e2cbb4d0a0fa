"""Identity of a booting bookie: its cookies are read, judged and stamped.

Law: ``protocol.bookie.cookie`` decides. An unreadable cookie is taken from the bookie's other directories. A bookie starts
without an unreadable directory if the cookie names it and other directories are left; its contents are unknown then. A directory
that lost its cookie, or everything but its cookie, is marked before any other write to it, so that an interrupted lossy boot is
not forgotten. Cookies are stamped only after phase one, and in the metadata store last: if the store has the cookie, every
directory had a control log."""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Iterable, Mapping
from functools import partial

from bookspark.errors import BookieError, InvalidCookieError
from bookspark.protocol.bookie.cookie import Cookie, CookieCopies, CookiePermissions, Stamps, check_cookies
from bookspark.servers.daemon.directories import (
    COOKIE,
    UnreadableCookieError,
    holds_data,
    is_hollow,
    read_cookie,
    write_cookie,
)
from bookspark.store.bookie.bookie_config import BookieConfig
from bookspark.store.bookie.disk.file_system import RealFileSystem, uncached
from bookspark.store.bookie.disk.unclean_marker import NAME, Lost, UncleanMarker
from bookspark.store.bookie.holdings.kept_files import KeptFile
from bookspark.store.metadata.store import MetadataStore

log = logging.getLogger(__name__)


class Identity:
    """The cookies of a bookie, read and checked at construction.

    ``unusable``: directories that can't be locked, with the error. Raises InvalidCookieError if the cookies do not fit together,
    the error of an unusable directory that is not in the cookie, and MetadataStoreError.
    """

    def __init__(self, config: BookieConfig, store: MetadataStore, unusable: Mapping[str, BookieError]) -> None:
        self._store = store
        in_directories: dict[str, Cookie | None] = {}
        with_data: set[str] = set()
        hollow: set[str] = set()
        unread: dict[str, UnreadableCookieError] = {}
        self.unreadable = dict(unusable)
        """Unreadable directories, with the error."""
        for directory in config.directories:
            if directory not in self.unreadable:
                try:
                    cookie = read_cookie(directory)
                    if holds_data(directory) and (cookie or not _is_marked(directory)):
                        with_data.add(directory)
                    if is_hollow(directory):
                        hollow.add(directory)
                    in_directories[directory] = cookie
                except UnreadableCookieError as unread_error:
                    unread[directory] = unread_error
                except OSError as error:
                    why = f"directory {directory} can't be read: {error.strerror}; check its disk"
                    self.unreadable[directory] = BookieError(why)
        for directory, cookie_error in unread.items():
            if (cookie := _same_cookie(directory, in_directories.values())) is None:
                self.unreadable[directory] = BookieError(str(cookie_error))
                continue
            log.error("%s; it is that of the other directories, and is written anew", cookie_error)
            in_directories[directory] = cookie
        if self.unreadable and not in_directories:
            # Nothing says whose bookie this is, or that anything is gone.
            raise next(iter(self.unreadable.values()))
        ids = {cookie.bookie_id for cookie in in_directories.values() if cookie is not None}
        recorded = {bookie_id: store.read_cookie(bookie_id) for bookie_id in {*ids, config.bookie_id} - {""}}
        copies = CookieCopies(
            in_directories=in_directories,
            in_metadata={bookie_id: record.value if record else None for bookie_id, record in recorded.items()},
            with_data=with_data & in_directories.keys(),
        )
        fresh = Cookie(f"bookie-{secrets.token_hex(4)}", config.directories, store.instance_id, secrets.token_hex(8))
        permitted = CookiePermissions(config.bookie_id, config.stamp_missing_cookies, config.add_empty_directories)
        self._stamps = check_cookies(copies, fresh, config.zookeeper, permitted)
        found = recorded.get(self.cookie.bookie_id)
        self._version = None if found is None else found.version
        for directory, unusable_error in self.unreadable.items():
            if found is None or directory not in found.value.directories:
                raise unusable_error
            log.error("%s; the bookie goes on without it; its contents are unknown", unusable_error)
        named = found.value.directories if found is not None else ()
        self._hollow = tuple(
            directory
            for directory, cookie in in_directories.items()
            if cookie is not None and directory in named and directory in hollow
        )
        mark_lost(self.lost)

    @property
    def cookie(self) -> Cookie:
        """The bookie's cookie: read, or created at the first boot."""
        return self._stamps.cookie

    @property
    def lost(self) -> tuple[str, ...]:
        """Emptied directories: without any file, or with their cookie only."""
        return (*self._stamps.lost, *self._hollow)

    def stamp(self) -> None:
        """Write missing copies of the cookie. Raises DirectoryUnusableError, MetadataStoreError."""
        stamp(self._stamps, self._store, self._version)

    def kept_cookies(self, directories: Iterable[str]) -> list[KeptFile]:
        """The cookies in these directories, as files to be kept good while the bookie serves."""
        return [
            KeptFile(
                os.path.join(directory, COOKIE),
                partial(_is_good, directory, self.cookie),
                partial(write_cookie, directory, self.cookie),
            )
            for directory in directories
        ]


def _same_cookie(directory: str, cookies: Iterable[Cookie | None]) -> Cookie | None:
    """The cookie of a directory whose own can't be read: that of the other directories, if they agree and name it, and
    its disk is mounted. (An older state of the directory is noticed by its reach.)"""
    others = {cookie for cookie in cookies if cookie is not None}
    if len(others) != 1:
        return None
    [cookie] = others
    try:
        return cookie if directory in cookie.directories and not is_hollow(directory) else None
    except OSError:
        return None


def _is_good(directory: str, cookie: Cookie) -> bool:
    """Is this cookie on the disk? (An empty directory passes: its disk may not be mounted any more.)"""
    uncached(RealFileSystem(), os.path.join(directory, COOKIE))
    try:
        return is_hollow(directory) or read_cookie(directory) == cookie
    except InvalidCookieError:
        return False


def stamp(stamps: Stamps, store: MetadataStore, version: int | None) -> None:
    """Write the cookie to its places. ``version``: of the metadata store's cookie, None without one. Raises
    DirectoryUnusableError, MetadataStoreError."""
    for directory in stamps.directories:
        write_cookie(directory, stamps.first)
    if stamps.metadata:
        store.write_cookie(stamps.cookie, version)
    if stamps.first != stamps.cookie:
        for directory in stamps.directories:
            write_cookie(directory, stamps.cookie)


def mark_lost(directories: Iterable[str]) -> None:
    """Note durably that the contents of these directories are gone, so that the next boot is lossy. A crash leaves no file that
    counts as data. Raises OSError."""
    for directory in directories:
        UncleanMarker(RealFileSystem(), directory).note_loss(Lost.FENCES)


def _is_marked(directory: str) -> bool:
    return RealFileSystem().exists(os.path.join(directory, NAME))

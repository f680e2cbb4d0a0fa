"""A bookie's directories: the lock against other processes, the cookie in each, and the other files beside the data.

Law: a bookie process holds the locks of all its directories from before its first read there until its end. A lock is an
``flock`` on a descriptor that no child inherits, so it ends with the process, in every case. Two processes never share a
directory. Bytes::

    LOCK         {"pid": 4711, "start_time": 815}   start_time in clock ticks since the machine's boot (see processes)
    COOKIE       the same document as in the metadata store (see metadata.records.codec)
    lease.sock   the lease (see lease_server), in each directory, so that any readable directory leads to the bookie
    bookie.json  the options of the last start, in the bookie's home: the first writable directory, or else its spare place
    bookie.log   the log of the last start, in its home; bookie.log.1: that of the start before. The home may change at each start

Source: docs/decisions/bookies-outlive-tasks.md; BookKeeper's ``Cookie`` and its lock file.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from bookspark.errors import BookieError, ConfigurationError, InvalidCookieError, MetadataStoreError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.servers.daemon.processes import Process
from bookspark.store.bookie.disk.checkpoint import NAME as CHECKPOINT
from bookspark.store.bookie.disk.control_log import NAME as CONTROL_LOG
from bookspark.store.bookie.disk.control_log import NOTE_NAME as CONTROL_NOTE
from bookspark.store.bookie.disk.disk_errors import Meaning, is_of_file, meaning, unless_refused
from bookspark.store.bookie.disk.entry_log import LOGS
from bookspark.store.bookie.disk.file_system import SPARE_FILES, TEMPORARY_SUFFIX, with_spare_files
from bookspark.store.metadata.records.codec import decode_cookie, encode_cookie
from bookspark.support.private_files import (
    make_private_directory,
    open_private,
    refuse_foreign_content,
    why_foreign,
)

LOCK, COOKIE, LEASE_SOCKET, OPTIONS, LOG = "LOCK", "COOKIE", "lease.sock", "bookie.json", "bookie.log"
PREVIOUS_LOG = LOG + ".1"
NOT_DATA = frozenset(
    {LOCK, COOKIE, COOKIE + ".tmp", LEASE_SOCKET, OPTIONS, LOG, PREVIOUS_LOG, "lost+found", *SPARE_FILES}
)
"""Files of a directory without data."""
_BEGUN = frozenset({CONTROL_LOG, CONTROL_NOTE, CHECKPOINT})
"""Files of a boot before it stamps the cookie."""
_IN_MEMORY = "/dev/shm"
LOCK_SECONDS_MAX = 2.0
"""Time limit of a boot for a lock, in seconds. A process that only checks a lock holds it for a moment."""


_HOLDER = msgspec.json.Decoder(Process)
"""Created at import, because two threads may make the first use at the same time (``metadata.records.documents.learn``)."""


class DirectoryUnusableError(BookieError):
    """A directory can't be made, read or written."""


class UnreadableCookieError(InvalidCookieError):
    """The disk can't read a directory's cookie."""


class DirectoryLocks:
    """Holds the locks of all directories from its construction to ``close``.

    Raises BookieError if another process holds a lock, with its pid, ConfigurationError if a directory is not private
    (``private_files``), and DirectoryUnusableError if one can't be used.
    With ``one_is_enough`` a single usable directory suffices; ``unusable`` has the others, with the error.
    """

    def __init__(self, directories: Iterable[str], *, one_is_enough: bool = False) -> None:
        self._descriptors: list[int] = []
        self.usable: list[str] = []
        self.unusable: dict[str, DirectoryUnusableError] = {}
        try:
            for directory in directories:
                try:
                    self._lock(directory)
                    self.usable.append(directory)
                except DirectoryUnusableError as error:
                    self.unusable[directory] = error
            if self.unusable and not (one_is_enough and self.usable):
                raise next(iter(self.unusable.values()))
        except BaseException:
            self.close()
            raise

    def _lock(self, directory: str) -> None:
        make_directory(directory)
        path = os.path.join(directory, LOCK)
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            try:
                if meaning(error) is not Meaning.READ_ONLY:
                    raise
                # The lock of an earlier start locks a read-only file system too.
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            except OSError:
                raise not_writable(directory, error) from error
        self._descriptors.append(descriptor)
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        process = Process.of(os.getpid())
        try:
            while not _try_lock(descriptor, fcntl.LOCK_EX):
                if time.monotonic() > deadline:
                    holder = _read_holder(descriptor)
                    who = f"process {holder.pid}" if holder else "another process"
                    raise BookieError(
                        f"directory {directory} is in use by {who}; stop it, or give this bookie another directory"
                    )
                time.sleep(0.05)
            _note_holder(descriptor, process)
        except OSError as error:
            raise not_writable(directory, error) from error

    def close(self) -> None:
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def __enter__(self) -> DirectoryLocks:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()


def lock_holder(directory: str) -> Process | None:
    """The living process with the directory's lock, None if there is none. Raises BookieError if a process in another pid
    namespace holds it."""
    try:
        descriptor = os.open(os.path.join(directory, LOCK), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        # The lock never existed, or the disk fails.
        return None
    try:
        deadline = time.monotonic() + LOCK_SECONDS_MAX
        while not _try_lock(descriptor, fcntl.LOCK_SH):
            holder = _read_holder(descriptor)
            if holder is not None and holder.alive:
                return holder
            if time.monotonic() > deadline:
                raise BookieError(
                    f"directory {directory} is locked by a process that can't be seen from here; stop it there"
                )
            time.sleep(0.05)
        return None
    except OSError:
        # The disk fails.
        return None
    finally:
        os.close(descriptor)


def read_cookie(directory: str) -> Cookie | None:
    """The cookie in the directory, None if there is none. Raises InvalidCookieError if it is damaged, UnreadableCookieError,
    and OSError, also for a directory that is not private."""
    path = Path(directory, COOKIE)
    if why := why_foreign(directory):
        raise PermissionError(errno.EPERM, why, directory)
    try:
        return decode_cookie(path.read_bytes(), f"in {directory}")
    except FileNotFoundError:
        return None
    except OSError as error:
        if not is_of_file(error):
            raise
        raise UnreadableCookieError(
            f"{path} can't be read: {error.strerror}; check the disk. Restore it from the copy in another directory. Without "
            "any, `bookspark cookie fix --bookie BOOKIE` writes it anew: the next start then counts as one after a loss"
        ) from error
    except MetadataStoreError as error:
        raise InvalidCookieError(
            f"{path} is damaged ({error}); restore it from the copy in another directory"
        ) from error


def write_cookie(directory: str, cookie: Cookie) -> None:
    """Write the cookie into the directory, durably. Raises DirectoryUnusableError."""
    path = os.path.join(directory, COOKIE)
    try:
        with with_spare_files((directory,), lambda: open_private(path + ".tmp")) as file:
            file.write(encode_cookie(cookie))
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise not_writable(directory, error) from error


def holds_data(directory: str) -> bool:
    """Are there files besides those that precede data? Raises OSError."""
    return any(name not in _BEGUN for name in _own_files(directory))


def is_hollow(directory: str) -> bool:
    """Has no storage ever been opened in the directory, to judge by its files? Raises OSError."""
    return not _own_files(directory)


def has_cookie(directory: str) -> bool:
    """Is there a cookie, good or bad, from an earlier start of a bookie?"""
    return os.path.exists(os.path.join(directory, COOKIE))


def _own_files(directory: str) -> list[str]:
    """The storage's files in a directory. Unfinished files of a crash, and a folder without logs, don't count."""
    return [
        name
        for name in os.listdir(directory)
        if name not in NOT_DATA
        and not name.endswith(TEMPORARY_SUFFIX)
        and not (name == LOGS and not os.listdir(os.path.join(directory, name)))
    ]


def spare_place(directory: str) -> str:
    """The folder for the socket, options and log of a bookie whose directory is on a read-only disk: of this user alone, on this
    host. It may not exist yet. It lies in memory where others may rename in the folder of temporary files, as in an ``emptyDir``
    of Kubernetes."""
    name = hashlib.sha256(os.path.abspath(directory).encode()).hexdigest()[:32]
    own = [os.path.join(parent, f"bookspark-{os.geteuid()}") for parent in (tempfile.gettempdir(), _IN_MEMORY)]
    return os.path.join(next((place for place in own if not why_foreign(place)), own[0]), name)


def make_spare_place(directory: str) -> str:
    """Make the spare place. Raises OSError, also if its parent is another user's."""
    place = spare_place(directory)
    try:
        make_private_directory(os.path.dirname(place))
        make_private_directory(place)
    except ConfigurationError as error:
        raise PermissionError(errno.EPERM, str(error), place) from error
    return place


def make_directory(directory: str) -> None:
    """Create the directory if necessary, and close it to other users. Raises DirectoryUnusableError, and ConfigurationError for a
    directory that is not private, or has a link or another user's file in it."""
    try:
        make_private_directory(directory)
        refuse_foreign_content(directory)
    except OSError as error:
        raise not_writable(directory, error) from error


def not_writable(directory: str, error: OSError) -> DirectoryUnusableError:
    return DirectoryUnusableError(
        f"directory {directory} is not writable ({error.strerror}); make it writable for this user, or choose another"
    )


def _try_lock(descriptor: int, mode: int) -> bool:
    try:
        fcntl.flock(descriptor, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _note_holder(descriptor: int, process: Process | None) -> None:
    """Write the holder into the lock file. A full or read-only disk keeps the note of the last holder: the lock holds all the
    same, and a bookie must start there."""
    if fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
        return
    note = msgspec.json.encode(process)
    with unless_refused():
        # The old note is overwritten, not truncated first, because its block may be the last one of the disk.
        os.pwrite(descriptor, note, 0)
        os.ftruncate(descriptor, len(note))


def _read_holder(descriptor: int) -> Process | None:
    try:
        return _HOLDER.decode(os.pread(descriptor, 4096, 0))
    except msgspec.DecodeError:
        return None

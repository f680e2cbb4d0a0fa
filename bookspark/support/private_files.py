"""Files and directories that are private to this user: a bookie holds its clients' data and the keys of their ledgers.

Law: a host may have other users. A directory is used only if nobody but this user and root can put another one in its place or
write in it; a secret only if nobody else can read it. Anything else is refused, with the command that mends it.

==============  =========================================================================================================
directory       this user's, and nobody else may write in it. Read rights of others are taken away (mode 0700)
the way to it   each directory and link on it belongs to this user or root, and nobody else may rename in it: not writable
                for the group or others, except with the sticky bit (/tmp), or for a group of this user and root alone
what is in it   belongs to this user or root, and is no link
secret          a regular file of this user with no rights for others (0600), or of root with at most read rights for the
                group (0640), as Kubernetes mounts one. It may be a link: the file that was opened is judged
trusted file    CAs, settings: as a secret, but others may read it, and a group of this user and root alone may write it
==============  =========================================================================================================

A checked path needs no further checks: nobody else can change a step of it. A directory made here has mode 0700 and a file 0600,
whatever the umask; missing parents have no write rights for others.

Source: StrictModes of sshd_config(5), its check of file names in OpenSSH, and Debian's exception there for a user's own group;
PostgreSQL's rule for the key file of its server.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

from bookspark.errors import ConfigurationError

PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700
_PARENT = 0o755
_LINKS_MAX = 40
_SECRET_BYTES_MAX = 1 << 20


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Make the directory, or close this user's existing one to others. Raises ConfigurationError if others may write in it or
    replace it, or if it is another user's; and OSError."""
    place = os.fspath(path)
    refuse_foreign(place)
    _make(os.path.abspath(place), PRIVATE_DIRECTORY)
    # A step that was missing may be another user's by now.
    refuse_foreign(place)
    if os.stat(place).st_mode & 0o077:
        os.chmod(place, PRIVATE_DIRECTORY)


def refuse_foreign(path: str | os.PathLike[str]) -> None:
    """Raise ConfigurationError, with ``why_foreign``, unless the directory is private."""
    if why := why_foreign(path):
        raise ConfigurationError(why)


def why_foreign(path: str | os.PathLike[str]) -> str:
    """Why the directory, or the way to it, is not private to this user, with the remedy; "" if it is. Missing steps, and steps
    that can't be looked at, pass."""
    place = os.fspath(path)
    steps = list(_way(place))
    whole = os.path.isdir(place)
    for number, (step, status) in enumerate(steps):
        if whole and number == len(steps) - 1:
            return _fault_of_directory(place, status)
        if fault := _fault_of_step(step, status):
            return f"directory {place} is refused: {fault}"
    return ""


def refuse_foreign_content(directory: str | os.PathLike[str]) -> None:
    """Raise ConfigurationError if a link, or a file of another user, lies in the directory or below. A file that can't be
    examined passes."""
    place = os.fspath(directory)
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            name = shlex.quote(entry.path)
            if stat.S_ISLNK(status.st_mode):
                raise ConfigurationError(
                    f"{entry.path} is a link, and links are not followed in a bookie's or ZooKeeper's directory; remove it "
                    f"(rm {name}), or name the directory that it leads to instead"
                )
            if status.st_uid not in (0, os.geteuid()):
                raise ConfigurationError(
                    f"{entry.path} belongs to {_user(status.st_uid)}, who could write in {place}; look what else was changed "
                    f"there, and remove it, or take it over: chown {_own_name()} {name}"
                )
            if stat.S_ISDIR(status.st_mode):
                refuse_foreign_content(entry.path)


def open_private(path: str | os.PathLike[str], *, append: bool = False) -> BinaryIO:
    """Make a file anew, in place of an existing one, or ``append`` to it. No link is followed. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    if not append:
        with suppress(FileNotFoundError):
            os.unlink(path)
        return os.fdopen(os.open(path, flags | os.O_EXCL, PRIVATE_FILE), "wb")
    file = os.fdopen(os.open(path, flags | os.O_APPEND, PRIVATE_FILE), "ab")
    found = os.fstat(file.fileno())
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_nlink > 1:
        file.close()
        raise PermissionError(errno.EPERM, "it is not a file of this user alone; remove it", os.fspath(path))
    if found.st_mode & 0o077:
        os.fchmod(file.fileno(), PRIVATE_FILE)
    return file


def why_no_secret(path: str) -> str:
    """Why others may read the file, or why it is not this user's, with the remedy; "" if it is a secret. Raises OSError."""
    return _fault_of_file(path, os.stat(path), secret=True)


@contextmanager
def secret_opened(path: str, option: str) -> Iterator[int]:
    """A descriptor of a secret, for the block. ``option``: the option's name, for errors. Raises ConfigurationError."""
    with _opened(path, option, secret=True) as descriptor:
        yield descriptor


@contextmanager
def trusted_opened(path: str, option: str) -> Iterator[int]:
    """A descriptor of a file that only this user and root can write, for the block. ``option``: as in ``secret_opened``. Raises
    ConfigurationError."""
    with _opened(path, option, secret=False) as descriptor:
        yield descriptor


@contextmanager
def _opened(path: str, option: str, *, secret: bool) -> Iterator[int]:
    try:
        # Nobody opens the other end of a FIFO.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise ConfigurationError(f"{option} {path} can't be read: {error.strerror}") from error
    try:
        if fault := _fault_of_file(path, os.fstat(descriptor), secret=secret):
            raise ConfigurationError(f"{option} {path} is refused: {fault}")
        yield descriptor
    finally:
        os.close(descriptor)


def read_secret(path: str, option: str) -> bytes:
    """The content of a secret, at most 1 MiB. ``option``: the option's name, for errors. Raises ConfigurationError."""
    with secret_opened(path, option) as descriptor:
        try:
            return os.pread(descriptor, _SECRET_BYTES_MAX, 0)
        except OSError as error:
            raise ConfigurationError(f"{option} {path} can't be read: {error.strerror}") from error


def _make(path: str, mode: int) -> None:
    try:
        os.mkdir(path, mode)
    except FileNotFoundError:
        _make(os.path.dirname(path), _PARENT)
        os.mkdir(path, mode)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _way(path: str) -> Iterator[tuple[str, os.stat_result]]:
    """Each link and directory that the kernel passes to the path, from "/" on, up to the first that is missing or can't be looked
    at."""
    place, links = "/", 0
    with suppress(OSError):
        # Not abspath, which takes ".." away before the kernel follows a link.
        left = (path if path.startswith("/") else os.path.join(os.getcwd(), path)).split("/")[::-1]
        yield place, os.lstat(place)
        while left:
            name = left.pop()
            if name in ("", "."):
                continue
            if name == "..":
                place = os.path.dirname(place)
                continue
            step = os.path.join(place, name)
            status = os.lstat(step)
            yield step, status
            if not stat.S_ISLNK(status.st_mode):
                place = step
                continue
            links += 1
            if links > _LINKS_MAX:
                return
            target = os.readlink(step)
            if target.startswith("/"):
                place = "/"
            left += target.split("/")[::-1]


def _fault_of_step(step: str, status: os.stat_result) -> str:
    if status.st_uid not in (0, os.geteuid()):
        return (
            f"{step} on the way to it belongs to {_user(status.st_uid)}, who can put another one in its place; choose a place "
            f"below directories of this user or root, or: chown {_own_name()} {shlex.quote(step)}"
        )
    mode = status.st_mode
    if stat.S_ISLNK(mode) or mode & stat.S_ISVTX or not _is_open_to_others(status):
        return ""
    return f"others may rename in {step} (mode {_mode(status)}); mend it: chmod go-w {shlex.quote(step)}"


def _fault_of_directory(place: str, status: os.stat_result) -> str:
    name = shlex.quote(place)
    if status.st_uid != os.geteuid():
        return (
            f"directory {place} belongs to {_user(status.st_uid)} (mode {_mode(status)}), and this process runs as "
            f"{_own_name()}; run it as that user, choose another directory, or take it over: chown {_own_name()} {name} && "
            f"chmod 700 {name}"
        )
    if status.st_mode & 0o022:
        return (
            f"others may write in directory {place} (mode {_mode(status)}); if nobody did, close it: chmod 700 {name}"
        )
    return ""


def _fault_of_file(path: str, status: os.stat_result, *, secret: bool) -> str:
    own = os.geteuid()
    if not stat.S_ISREG(status.st_mode):
        return "it is not a regular file"
    if status.st_uid not in (0, own):
        return f"it belongs to {_user(status.st_uid)}; mend it: chown {_own_name()} {shlex.quote(path)}"
    if not secret:
        if not _is_open_to_others(status):
            return ""
        return f"others may write it (mode {_mode(status)}); mend it: chmod go-w {shlex.quote(path)}"
    # Root's file for another user: this user reads it by the group.
    if status.st_mode & (0o077 if status.st_uid == own else 0o037):
        return f"others may read or write it (mode {_mode(status)}); mend it: chmod 600 {shlex.quote(path)}"
    return ""


def _is_open_to_others(status: os.stat_result) -> bool:
    """May anybody but this user and root write?"""
    return bool(status.st_mode & 0o002 or (status.st_mode & 0o020 and not _is_alone_in(status.st_gid)))


def _is_alone_in(group: int) -> bool:
    """Are this user and root the only members of the group: his own group, root's, or one that the host does not know, as that of
    a volume?"""
    try:
        found = grp.getgrgid(group)
    except KeyError:
        return True
    own = _own_name()
    return (group == 0 or found.gr_name == own) and set(found.gr_mem) <= {own, "root"}


def _own_name() -> str:
    own = os.geteuid()
    try:
        return pwd.getpwuid(own).pw_name
    except KeyError:
        return str(own)


def _user(uid: int) -> str:
    try:
        return f"{pwd.getpwuid(uid).pw_name} (uid {uid})"
    except KeyError:
        return f"uid {uid}"


def _mode(status: os.stat_result) -> str:
    return f"{stat.S_IMODE(status.st_mode):04o}"

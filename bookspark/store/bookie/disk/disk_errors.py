"""Meaning of a disk's errors, by errno.

Law: an error of the device says nothing of the bytes. Only bytes that were read and fail their checks are damage; a file that
can't be opened, read or listed may be whole, so everything in it is Unknown for now. ``MEANINGS`` is the only place that
classifies an errno; one that it lacks is ``UNKNOWN``: EIO, ESTALE, ENXIO, ENODEV, ETIMEDOUT, ECONNREFUSED, EUCLEAN, EBADMSG …
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from types import MappingProxyType


class Meaning(Enum):
    UNKNOWN = "the outcome of the call is unknown, and so is what the disk holds"
    NO_ROOM = "the disk has no room: the write did nothing, and earlier writes are not affected"
    READ_ONLY = "the file system takes no writes: the write did nothing, and what is there can be read"
    NO_DESCRIPTOR = "a table of open files has no room: the call did nothing, and says nothing of the disk"
    PROCESS = "the process lacks memory or rights, or was interrupted: the call says nothing of the disk"
    ABSENT = "no file of this name is there now"
    UNSUPPORTED = "the file system does not know such a call"


MEANINGS = MappingProxyType(
    {
        errno.ENOSPC: Meaning.NO_ROOM,
        errno.EDQUOT: Meaning.NO_ROOM,
        errno.EROFS: Meaning.READ_ONLY,
        errno.EMFILE: Meaning.NO_DESCRIPTOR,
        errno.ENFILE: Meaning.NO_DESCRIPTOR,
        errno.EAGAIN: Meaning.PROCESS,
        errno.EINTR: Meaning.PROCESS,
        errno.ENOMEM: Meaning.PROCESS,
        errno.EACCES: Meaning.PROCESS,
        errno.EPERM: Meaning.PROCESS,
        errno.ENOENT: Meaning.ABSENT,
        errno.ENOTDIR: Meaning.ABSENT,
        errno.EOPNOTSUPP: Meaning.UNSUPPORTED,
    }
)


def meaning(error: OSError) -> Meaning:
    return MEANINGS.get(error.errno or 0, Meaning.UNKNOWN)


def took_nothing(error: OSError) -> bool:
    """Did a failed write leave everything as it was? The disk may take a later write."""
    return meaning(error) in (Meaning.NO_ROOM, Meaning.READ_ONLY, Meaning.NO_DESCRIPTOR)


@contextmanager
def unless_refused() -> Iterator[None]:
    """Go on if a disk takes no write: what is to be removed or settled there waits for a later start."""
    try:
        yield
    except OSError as error:
        if not took_nothing(error):
            raise


def is_of_file(error: OSError) -> bool:
    """Did the disk not give the bytes of a file that is there? Another copy, or a safe assumption, may stand for them."""
    return meaning(error) is Meaning.UNKNOWN


def is_of_process(error: OSError) -> bool:
    """Does a failed call say nothing of the disk, so that the same call may succeed soon?"""
    return meaning(error) in (Meaning.NO_DESCRIPTOR, Meaning.PROCESS)

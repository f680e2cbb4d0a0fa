"""Files and directories that only their owner may read: what a bookie holds is its clients' data and the keys of their ledgers.

Law: a directory made here has mode 0700 and a file 0600, whatever the umask is, and also if it was there with a wider mode. A
directory that is made together with it on its way has the mode that the umask gives.
"""

from __future__ import annotations

import os
from typing import BinaryIO

PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Make the directory if it is not there, and close it to others if it is open to them. Raises OSError. One that belongs to
    another user keeps its mode."""
    os.makedirs(path, mode=PRIVATE_DIRECTORY, exist_ok=True)
    found = os.stat(path)
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        os.chmod(path, PRIVATE_DIRECTORY)


def open_private(path: str | os.PathLike[str], *, append: bool = False) -> BinaryIO:
    """Open a file to be written anew, or ``append`` to it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    file = os.fdopen(os.open(path, flags, PRIVATE_FILE), "ab" if append else "wb")
    if os.fstat(file.fileno()).st_mode & 0o077:
        os.fchmod(file.fileno(), PRIVATE_FILE)
    return file

"""Files and directories readable only by their owner: a bookie holds its clients' data and the keys of their ledgers.

Law: a directory made here has mode 0700 and a file 0600, whatever the umask, and also if it existed with a wider mode. Missing
parent directories get the mode of the umask.
"""

from __future__ import annotations

import os
from typing import BinaryIO

PRIVATE_FILE, PRIVATE_DIRECTORY = 0o600, 0o700


def make_private_directory(path: str | os.PathLike[str]) -> None:
    """Make the directory, or remove the access of others to an existing one. Raises OSError. Another user's directory keeps
    its mode."""
    os.makedirs(path, mode=PRIVATE_DIRECTORY, exist_ok=True)
    found = os.stat(path)
    if found.st_mode & 0o077 and found.st_uid == os.geteuid():
        os.chmod(path, PRIVATE_DIRECTORY)


def open_private(path: str | os.PathLike[str], *, append: bool = False) -> BinaryIO:
    """Open a file for rewriting, or ``append`` to it. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | (os.O_APPEND if append else os.O_TRUNC)
    file = os.fdopen(os.open(path, flags, PRIVATE_FILE), "ab" if append else "wb")
    if os.fstat(file.fileno()).st_mode & 0o077:
        os.fchmod(file.fileno(), PRIVATE_FILE)
    return file

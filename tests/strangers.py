"""Another user of this host, for tests of files: uid 65534, in a child process. Only root can become somebody else."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ANOTHER = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def as_another_user(act: Callable[[], object], groups: tuple[int, ...] = ()) -> str:
    """Run ``act`` as the other user, a member of ``groups``; returns its value as text, or its error's."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(ANOTHER)
            os.setuid(ANOTHER)
            os.umask(0)
            said = str(act())
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(theirs, said.encode()[:4000])
        os._exit(0)
    os.close(theirs)
    with os.fdopen(ours, "rb") as answer:
        said = answer.read().decode()
    os.waitpid(child, 0)
    return said


@contextmanager
def shared_folder() -> Iterator[Path]:
    """A folder like /tmp: everybody may make files in it, and nobody may rename those of others."""
    folder = Path(tempfile.mkdtemp(prefix="bookspark-shared-"))
    folder.chmod(0o1777)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)

"""Files of a Spark checkpoint, as far as they lie in the local file system of whoever looks (which may be a shared one).

Law: what can't be read says nothing. Spark's file source lists the files of each of its offsets in the checkpoint,
``sources/<n>/<offset>``: a line ``v1``, then one line of JSON for each file (path, time of the last change, offset, which Spark
calls ``batchId``). Every tenth list, ``<offset>.compact``, has the files of all offsets before it too. Source: Spark's
``FileStreamSourceLog``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

LIST_BYTES_MAX = 16 << 20
"""A longer list of files is not read: a query that has read so many files can't wait for it."""


class Listed(msgspec.Struct, frozen=True):
    """A file that a query has read."""

    path: str
    timestamp: int
    """When it was changed last, in ms since 1970."""
    batchId: int


_LISTED = msgspec.json.Decoder(Listed)


def local_path(place: str) -> Path | None:
    """The path of a file or folder that Spark names by a path or URI; None if it is not in the local file system."""
    if not place:
        return None
    scheme, host, path, *_ = urlsplit(place)
    if scheme == "file" and host in ("", "localhost"):
        return Path(unquote(path))
    return None if scheme else Path(place)


def listed_files(path: Path) -> Iterator[Listed]:
    """The files of one list. Ends early where the list can't be read, or is another source's."""
    try:
        if path.stat().st_size <= LIST_BYTES_MAX:
            yield from map(_LISTED.decode, path.read_bytes().splitlines()[1:])
    except (OSError, msgspec.DecodeError):
        return

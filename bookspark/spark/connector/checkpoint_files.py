"""Files of a Spark checkpoint in the local file system (perhaps a shared one) of the reading process.

Law: unreadable files give no answer. Spark's file source lists the files of each of its offsets in ``sources/<n>/<offset>``: a
line ``v1``, then a line of JSON for each file (path, time of the last change, offset, which Spark calls ``batchId``). Every tenth
list, ``<offset>.compact``, also has the files of all earlier offsets.

A source's offset is not the number of a micro-batch but counts its lists: none for a batch without new files, two for a batch if
the query ends between a list and the plan of its batch. A batch's input is in its plan, ``offsets/<batch>``: a version, a line of
JSON with the time of planning, and a line with the offset of each source, ``-`` if it has none yet. A batch reads from after the
offset in the plan before it.

The lines of a plan are not numbered as these folders are: a query with one DataFrame twice (a union or join with itself) has two
lines for one source, equal in every plan, and the sources after it have lower numbers than their lines. So lines are matched to
sources by content, and ambiguous lines get no source. Source: Spark's ``FileStreamSourceLog``,
``FileStreamSource.fetchMaxOffset``, ``MicroBatchExecution.logicalPlan`` and ``OffsetSeqLog``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

LIST_BYTES_MAX = 16 << 20
"""Longer lists are not read: they would delay the query."""


_PLAN_HEADER_LINES = 2


class Listed(msgspec.Struct, frozen=True):
    """A file that a query has read."""

    path: str
    timestamp: int
    """Time of its last change, in ms since 1970."""
    batchId: int
    """The source's offset at which it was read."""


class _FileOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    logOffset: int


_LISTED = msgspec.json.Decoder(Listed)


def local_path(place: str) -> Path | None:
    """The local path of Spark's path or URI; None outside the local file system."""
    if not place:
        return None
    scheme, host, path, *_ = urlsplit(place)
    if scheme == "file" and host in ("", "localhost"):
        return Path(unquote(path))
    return None if scheme else Path(place)


def plain_place(place: str) -> str:
    """A folder's path or URI in one spelling: ``file:/x``, ``file:///x`` and ``/x/`` are ``/x``. (Relative paths stay relative:
    tasks do not know the driver's folder.)"""
    path = local_path(place)
    return place.rstrip("/") if path is None or not path.is_absolute() else str(path)


def planned_offsets(plan: bytes) -> bytes:
    """The lines of a plan with the sources' offsets; empty if it has none."""
    return b"".join(plan.split(b"\n", _PLAN_HEADER_LINES)[_PLAN_HEADER_LINES:])


def files_read(folder: Path, batch: int) -> dict[int, range]:
    """The offsets at which micro-batch ``batch`` reads files, by the number ``n`` of each source of files.

    Empty if its plan is unreadable; only the last offset without the plan before it, which Spark drops after 100 batches. Sources
    without a certain line are left out.
    """
    before = _file_offsets(folder, batch - 1) if batch else {}
    offsets = _file_offsets(folder, batch) or {}
    return {
        source: range(offsets[line] if before is None else before.get(line, -1) + 1, offsets[line] + 1)
        for line, source in _sources_of(folder, list(offsets)).items()
    }


def _sources_of(folder: Path, lines: list[int]) -> dict[int, int]:
    """The number of the source of each of these lines with offsets of files, where it is certain."""
    if all(_has_lists(folder / "sources" / str(line)) for line in lines):
        return {line: line for line in lines}
    folders = [path for path in (folder / "sources").glob("[0-9]*") if path.name.isdecimal()]
    numbers = sorted(int(path.name) for path in folders if _has_lists(path))
    if len(numbers) == len(lines):
        return dict(zip(lines, numbers, strict=True))
    plans = [path.name for path in (folder / "offsets").glob("[0-9]*") if path.name.isdecimal()]
    kept = [_file_offsets(folder, int(name)) or {} for name in plans]
    stories = {line: tuple(offsets.get(line) for offsets in kept) for line in lines}
    different = list(dict.fromkeys(stories.values()))
    if len(different) != len(numbers):
        return {}  # two sources were always equally far, as is one source that the query has twice
    return {line: numbers[different.index(story)] for line, story in stories.items()}


def _has_lists(source: Path) -> bool:
    """Whether this is the folder of a source of files that has read some."""
    for path in source.glob("[0-9]*"):
        with suppress(OSError, msgspec.DecodeError), open(path, "rb") as file:
            file.readline()
            _LISTED.decode(file.readline())
            return True
    return False


def _file_offsets(folder: Path, batch: int) -> dict[int, int] | None:
    """The offset of each source of files in the plan of ``batch``; None if it is unreadable."""
    found = {}
    try:
        lines = planned_offsets((folder / "offsets" / str(batch)).read_bytes()).splitlines()
    except OSError:
        return None
    for source, text in enumerate(lines):
        with suppress(msgspec.DecodeError):
            found[source] = msgspec.json.decode(text, type=_FileOffset).logOffset
    return found


def listed_files(path: Path) -> Iterator[Listed]:
    """The files of a list. Ends early at an unreadable line or in another source's list."""
    try:
        if path.stat().st_size <= LIST_BYTES_MAX:
            yield from map(_LISTED.decode, path.read_bytes().splitlines()[1:])
    except (OSError, msgspec.DecodeError):
        return

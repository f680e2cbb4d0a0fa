"""Files of a Spark checkpoint, as far as they lie in the local file system of whoever looks (which may be a shared one).

Law: what can't be read says nothing. Spark's file source lists the files of each of its offsets in the checkpoint,
``sources/<n>/<offset>``: a line ``v1``, then one line of JSON for each file (path, time of the last change, offset, which Spark
calls ``batchId``). Every tenth list, ``<offset>.compact``, has the files of all offsets before it too.

The lines of a plan are not numbered as these folders are: a query that has one DataFrame twice (a union or join with itself) has
two lines for one source, and the sources after it have a lower number than their line. Lines of one source are equal in every
plan. So lines are told apart by what stands in them, and where that does not tell, nothing is said of them.

Such an offset is not the number of a micro-batch: a source counts the lists that it wrote. It writes none for a batch without new
files, and two for one batch if the query ends between a list and the plan of its batch. What a batch reads stands in its plan,
``offsets/<batch>``: a version, a line of JSON with the time of planning, and one line with the offset of each source, ``-`` if it
has none yet. A batch reads what lies behind the offset that the plan before it has. Source: Spark's ``FileStreamSourceLog``,
``FileStreamSource.fetchMaxOffset``, ``MicroBatchExecution.logicalPlan`` and ``OffsetSeqLog``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

import msgspec

LIST_BYTES_MAX = 16 << 20
"""A longer list of files is not read: a query that has read so many files can't wait for it."""


_PLAN_HEADER_LINES = 2


class Listed(msgspec.Struct, frozen=True):
    """A file that a query has read."""

    path: str
    timestamp: int
    """When it was changed last, in ms since 1970."""
    batchId: int
    """The source's offset at which it was read."""


class _FileOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    logOffset: int


_LISTED = msgspec.json.Decoder(Listed)


def local_path(place: str) -> Path | None:
    """The path of a file or folder that Spark names by a path or URI; None if it is not in the local file system."""
    if not place:
        return None
    scheme, host, path, *_ = urlsplit(place)
    if scheme == "file" and host in ("", "localhost"):
        return Path(unquote(path))
    return None if scheme else Path(place)


def plain_place(place: str) -> str:
    """The path or URI of a folder in one spelling: ``file:/x``, ``file:///x`` and ``/x/`` are ``/x``. (A relative path stays one:
    tasks do not know the driver's folder.)"""
    path = local_path(place)
    return place.rstrip("/") if path is None or not path.is_absolute() else str(path)


def planned_offsets(plan: bytes) -> bytes:
    """The lines of a plan with the sources' offsets; empty if it has none."""
    return b"".join(plan.split(b"\n", _PLAN_HEADER_LINES)[_PLAN_HEADER_LINES:])


def files_read(folder: Path, batch: int) -> dict[int, range]:
    """The offsets at which micro-batch ``batch`` reads files, for each source of files by its number ``n``.

    Empty if its plan can't be read. Without the plan before it, which Spark drops after 100 batches, the last offset alone.
    Without sources of which it can't be told which line is theirs.
    """
    before = _file_offsets(folder, batch - 1) if batch else {}
    offsets = _file_offsets(folder, batch) or {}
    return {
        source: range(offsets[line] if before is None else before.get(line, -1) + 1, offsets[line] + 1)
        for line, source in _sources_of(folder, list(offsets)).items()
    }


def _sources_of(folder: Path, lines: list[int]) -> dict[int, int]:
    """The number of the source of each of these lines, which have offsets of files, as far as it can be told."""
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
        return {}  # two sources were always equally far, and can't be told from one that the query has twice
    return {line: numbers[different.index(story)] for line, story in stories.items()}


def _has_lists(source: Path) -> bool:
    """Is it the folder of a source of files that has read some?"""
    for path in source.glob("[0-9]*"):
        with suppress(OSError, msgspec.DecodeError), open(path, "rb") as file:
            file.readline()
            _LISTED.decode(file.readline())
            return True
    return False


def _file_offsets(folder: Path, batch: int) -> dict[int, int] | None:
    """The offset of each source of files in the plan of ``batch``; None if that can't be read."""
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
    """The files of one list. Ends early where the list can't be read, or is another source's."""
    try:
        if path.stat().st_size <= LIST_BYTES_MAX:
            yield from map(_LISTED.decode, path.read_bytes().splitlines()[1:])
    except (OSError, msgspec.DecodeError):
        return

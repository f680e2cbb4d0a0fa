"""The one reader of a streaming query's Spark checkpoint: its plans, and the files that its sources have read.

Law: a checkpoint that can't be read protects nothing, so it is never passed over. A place or a form that this module does not
know is an UnreadCheckpointError, whose last sentence names the option that accepts it.

Places are named as Hadoop names them (``support.hadoop_paths``). Local ones are read by this process;
``s3`` (``s3a``, ``s3n``), ``gs``, ``abfs``, ``abfss``, ``hdfs`` and ``viewfs`` by ``pyarrow.fs``, with the credentials of its
environment or of the option ``checkpointUrl``.

Forms, of Spark 4.2 (``OffsetSeqLog``, ``FileStreamSourceLog``, ``StreamMetadata``):

===========================  =========================================================================================
file                         content
===========================  =========================================================================================
``metadata``                 JSON with the query's id
``offsets/<batch>``, v1      the plan of a micro-batch: ``v1``, a line of JSON with the time of planning, and a line with
                             the offset of each source, ``-`` if it has none yet
``offsets/<batch>``, v2      the same behind ``v2``, in any order, each line with a key before the offset and a colon: the
                             source's name, or the number that its line has in a plan of v1
``sources/<key>/<offset>``   of a source of files: ``v1``, then a line of JSON for each file (path, time of the last change,
                             offset, which Spark calls ``batchId``); every tenth, ``<offset>.compact``, also has the files
                             of all earlier offsets. ``<key>`` is the source's name, or its number among the query's sources.
                             Other sources keep files of their own here
``commits``, ``state``       not read
===========================  =========================================================================================

A source's offset is not the number of a micro-batch but counts its lists: none for a batch without new files, two for a batch
if the query ends between a list and the plan of its batch. A batch reads from after the offset in the plan before it.

Lines are not numbered as the sources' folders are: a query with one DataFrame twice (a union or join with itself) has two lines
for one source in v1, equal in every plan, and one with the last of their numbers in v2. So such lines are matched to folders by
their newest offset.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import wait
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import unquote

import msgspec

from bookspark.errors import BookKeeperError
from bookspark.protocol.logs.commits import FILES
from bookspark.support.hadoop_paths import Place, plain_place
from bookspark.support.threads import Threads

if TYPE_CHECKING:
    import pyarrow.fs


class UnreadCheckpointError(BookKeeperError):
    """A query's Spark checkpoint can't be read by the driver. Nothing was written."""


class SourceRenamedError(BookKeeperError):
    """A micro-batch has files that the query has already read in another folder."""


# -- Places

_SCHEMES = {"s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "abfs": "abfs", "abfss": "abfss"}
_SCHEMES |= {"hdfs": "hdfs", "viewfs": "viewfs"}
"""The scheme of ``pyarrow.fs`` for each of Hadoop's."""
_REMOTE_SECONDS_MAX = 60.0


class _LocalFolder:
    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def read(self, name: str, most: int = -1) -> bytes | None:
        try:
            with open(os.open(self._path / name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                # A checkpoint may come from anybody, and nobody waits for a pipe or device.
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise OSError(f"{self._path / name} is no regular file")
                return file.read(most)
        except (FileNotFoundError, NotADirectoryError):
            return None

    def names(self, name: str) -> list[str]:
        try:
            return [path.name for path in (self._path / name).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []

    def exists(self) -> bool:
        return self._path.exists()


class _RemoteFolder:
    """A folder that ``pyarrow.fs`` reads. Raises OSError and pyarrow's errors; TimeoutError after _REMOTE_SECONDS_MAX."""

    def __init__(self, files: pyarrow.fs.FileSystem, path: str) -> None:
        self._files, self._path = files, path.rstrip("/")

    def read(self, name: str, most: int = -1) -> bytes | None:
        def read() -> bytes | None:
            try:
                with self._files.open_input_stream(f"{self._path}/{name}") as stream:
                    return bytes(stream.read(None if most < 0 else most))
            except FileNotFoundError:
                return None

        return _within(read)

    def names(self, name: str) -> list[str]:
        import pyarrow.fs

        chosen = pyarrow.fs.FileSelector(f"{self._path}/{name}", allow_not_found=True)
        return [info.base_name for info in _within(lambda: self._files.get_file_info(chosen))]

    def exists(self) -> bool:
        import pyarrow.fs

        return bool(_within(lambda: self._files.get_file_info(self._path)).type != pyarrow.fs.FileType.NotFound)


Result = TypeVar("Result")


def _within(work: Callable[[], Result]) -> Result:
    """The result of ``work``, done in a thread. Raises its errors, and TimeoutError after _REMOTE_SECONDS_MAX."""
    thread = Threads(1, "bookspark-remote-checkpoint")
    answer = thread.submit(work)
    thread.stop(0.0)
    if not wait((answer,), _REMOTE_SECONDS_MAX).done:
        raise TimeoutError(f"no answer within {_REMOTE_SECONDS_MAX:.0f} s")
    return answer.result()


def _folder(place: Place, url: str = "") -> _LocalFolder | _RemoteFolder:
    """The folder at ``place``; ``url``: by which ``pyarrow.fs`` reads it. Raises ValueError for an unknown scheme, and the errors
    of ``_RemoteFolder``."""
    if not url and place.is_local:
        return _LocalFolder(place.path)
    if not url and place.scheme not in _SCHEMES:
        raise ValueError(f"{place.scheme or place.authority!r} is not one of file, {', '.join(_SCHEMES)}")
    import pyarrow.fs

    if url:
        try:
            return _RemoteFolder(*_within(lambda: pyarrow.fs.FileSystem.from_uri(url)))
        except ValueError:
            # The error would show the secret in the URL.
            raise ValueError("option checkpointUrl is not a URL that pyarrow.fs.FileSystem.from_uri reads") from None
    root = f"{_SCHEMES[place.scheme]}://{place.authority}/"
    files, base = _within(lambda: pyarrow.fs.FileSystem.from_uri(root))
    return _RemoteFolder(files, f"{base.rstrip('/')}{place.path}")


# -- The checkpoint


class Plan(NamedTuple):
    """Digests of Spark's plan of a micro-batch; empty if the checkpoint has it no more."""

    whole: str = ""
    offsets: str = ""
    """Digest of the source offsets in the plan; with prefix FILES, also of their files."""


class _Plan(NamedTuple):
    """A plan as it is written."""

    text: bytes
    version: str
    offsets: dict[str, bytes]
    """By the key of each line."""

    @property
    def files(self) -> dict[str, int]:
        """The offset of each source of files that has one."""
        ends = {}
        for key, text in self.offsets.items():
            with suppress(msgspec.MsgspecError):
                ends[key] = msgspec.json.decode(text, type=_FileOffset).logOffset
        return ends


class _Metadata(msgspec.Struct, frozen=True):
    id: str


class _FileOffset(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    logOffset: int


class Listed(msgspec.Struct, frozen=True):
    path: str
    """A URI, with escapes."""
    timestamp: int
    """Time of its last change, in ms since 1970."""
    batchId: int
    """The source's offset at which it was read."""


_LISTED = msgspec.json.Decoder(Listed)
_LIST_VERSION = b"v1"
_LIST_HEAD_BYTES = 1 << 16
"""So many bytes show whether a file is a list of files: its version and its first line."""
_PLAN_HEADER_LINES = 2


class SparkCheckpoint:
    """The Spark checkpoint of a query that writes to ``log``. ``place``: a path or URI, as Spark has it; empty: unknown.
    ``url``: by which ``pyarrow.fs`` reads it; empty: by ``place``.

    Each method raises UnreadCheckpointError if it can't read what it needs.
    """

    def __init__(self, place: str, log: str, url: str = "") -> None:
        self.place = plain_place(place)
        self._log, self._url = log, url
        self._opened: _LocalFolder | _RemoteFolder | None = None

    def check(self, query: str = "") -> None:
        """Look whether the checkpoint can be read, as far as a look at its newest plan shows. ``query``: the id that it must
        have."""
        text = self._read("metadata")
        if text is None:
            raise self._unread(
                "there is no file metadata. (Spark may have it elsewhere: a path without a scheme is in the file system of "
                "fs.defaultFS, and a local one on the driver's host)"
            )
        try:
            own_id = msgspec.json.decode(text, type=_Metadata).id
        except msgspec.MsgspecError as error:
            raise self._unread(f"its file metadata has an unknown form ({error})") from error
        if query and own_id != query:
            raise self._unread(f"it is of query {own_id}, and this is query {query}")
        plans = self._numbers("offsets")
        if not plans:
            raise self._unread("it has no plan of a micro-batch, offsets/<number>")
        newest = self._plan(plans[-1])
        if newest is not None and newest.files:
            self._files_of(plans[-1])

    def known_as(self, places: Collection[str]) -> str:
        """The place as one of ``places`` spells it; its own spelling if none is the same folder.

        A folder has several names (links, ``s3`` and ``s3a``). Under another name a query with a deleted checkpoint would be new
        to the log, and write all of its rows again.
        """
        if self.place in places:
            return self.place
        place = Place.of(self.place)
        try:
            return _within(lambda: next((one for one in places if one and place.is_same(Place.of(one))), self.place))
        except TimeoutError as error:
            # A mount that does not answer holds up whoever looks.
            raise self._unread(f"the log's other checkpoints can't be looked at ({error})") from error

    def plan(self, batch: int) -> Plan:
        """The plan of micro-batch ``batch``. Empty if Spark has dropped it, as it does after 100 batches."""
        plan = self._plan(batch)
        if plan is None:
            if any(number < batch for number in self._numbers("offsets")):
                raise self._unread(f"offsets/{batch} is missing, although it has plans before it")
            return Plan()
        lines = plan.offsets if plan.version == "v1" else dict(sorted(plan.offsets.items()))
        named = b"".join(f"{key}:".encode() * (plan.version != "v1") + text + b"\n" for key, text in lines.items())
        files = self._files_of(batch)
        return Plan(_digest(plan.text), (FILES if files else "") + _digest(named + files))

    def plan_to_commit(self, batch: int) -> Plan:
        """The plan of the running micro-batch, which Spark has written before its tasks began."""
        plan = self.plan(batch)
        if not plan.whole:
            raise self._unread(
                f"it has no offsets/{batch}, the plan of the running micro-batch, so Spark has another one"
            )
        return plan

    def check_sources(self, batch: int) -> None:
        """Raise SourceRenamedError if files of micro-batch ``batch`` were read before it, under other paths.

        Law: a query with a renamed source folder is refused before the first of its files is in the log again. Spark's file
        source knows files by their paths, so it reads a renamed folder again, in a new batch. (If the query names the folder
        itself instead of a pattern, Spark refuses it: "Wrong basePath". Seen on 4.2.)

        A file was renamed if the checkpoint has it in an earlier batch with the same last part and time, and a path that no
        longer exists. Source: Spark's ``FileStreamSourceLog``; its option ``fileNameOnly`` makes it know files by their last
        parts.
        """
        for source, offsets in self.files_read(batch).items():
            before: dict[tuple[str, int], str] = {}
            now: list[Listed] = []
            for name in self._lists(source):
                for listed in self._listed(source, name):
                    if listed.batchId in offsets:
                        now.append(listed)
                    elif listed.batchId < offsets.start:
                        before[_name(listed), listed.timestamp] = listed.path
            for listed in now:
                read = before.get((_name(listed), listed.timestamp), listed.path)
                if read != listed.path and self._gone(read):
                    lists = ", ".join(f"{self.place}/sources/{source}/{offset}" for offset in offsets)
                    raise SourceRenamedError(
                        f"log {self._log!r}: batch {batch} is not written: its file {listed.path} was read before as {read}. The "
                        "source's folder was renamed, and the query would write all of its files again. Give the folder its "
                        f"former name again, and delete {self.place}/offsets/{batch} and {lists}, with which the batch was "
                        "planned; or start the query with a new checkpointLocation, a folder of new files, and the sink's "
                        "option follows set to the query's id"
                    )

    def files_read(self, batch: int) -> dict[str, range]:
        """The offsets at which micro-batch ``batch`` reads files, by the folder of each source of files.

        Empty without its plan; only the last offset without the plan before it.
        """
        plan, before = self._plan(batch), self._plan(batch - 1) if batch else None
        if plan is None or not plan.files:
            return {}
        known = {} if before is None else before.files
        offsets = {
            key: range(end if before is None and batch else known.get(key, -1) + 1, end + 1)
            for key, end in plan.files.items()
        }
        folders = [name for name in self._names("sources") if self._has_lists(name)]
        if all(key in folders for key in offsets):
            # With a repeated DataFrame, the last line's number is above those of all folders.
            return offsets
        # Lines with names need no search.
        matched = self._matched(offsets, folders) if all(key.isdecimal() for key in plan.offsets) else {}
        if not matched:
            raise self._unread(
                f"offsets/{batch} has {len(offsets)} offsets of files, and which of its {len(folders)} lists of files, "
                "sources/*, belong to them is not known"
            )
        return matched

    def _matched(self, offsets: dict[str, range], folders: list[str]) -> dict[str, range]:
        """The range of each folder, by content: Spark writes the list of an offset just before the plan with it. Of equally far
        lines, a folder gets the longest range. Empty if a line or folder has no match."""
        newest = self._plan(self._numbers("offsets")[-1])
        ranges: dict[str, range] = {}
        matched: set[str] = set()
        for folder in folders:
            end = _offset_of(self._lists(folder)[-1])
            lines = [line for line in offsets if newest is not None and newest.files.get(line) == end]
            if not lines:
                return {}
            starts, ends = [offsets[line].start for line in lines], [offsets[line].stop for line in lines]
            ranges[folder] = range(min(starts), max(ends))
            matched.update(lines)
        return ranges if matched == set(offsets) else {}

    def _files_of(self, batch: int) -> bytes:
        """The files behind the offsets of sources of files, in any order; empty if there is no such source.

        A source without new files contributes the files of its last offset.
        """
        lines = set()
        for source, offsets in self.files_read(batch).items():
            there = self._lists(source)
            for number in offsets or range(offsets.stop - 1, offsets.stop):
                # Spark deletes a list some time after a later one has its files.
                names = [name for name in (str(number), f"{number}.compact") if name in there]
                later = [name for name in there if name.endswith(".compact") and _offset_of(name) > number]
                for name in names or later[:1]:
                    listed = self._listed(source, name, number)
                    lines |= {f"\n{source} {file.timestamp} {file.path}" for file in listed}
                if number >= 0 and not (names or later):
                    raise self._unread(f"there is no list sources/{source}/{number}, which offsets/{batch} names")
        return "".join(sorted(lines)).encode()

    def _plan(self, batch: int) -> _Plan | None:
        """The plan of ``batch``; None if it is not there."""
        text = self._read(f"offsets/{batch}")
        if text is None:
            return None
        version, *lines = text.split(b"\n")
        rows = [line for line in lines[_PLAN_HEADER_LINES - 1 :] if line]
        match version:
            case b"v1":
                return _Plan(text, "v1", {str(number): line for number, line in enumerate(rows)})
            case b"v2":
                split = [line.partition(b":") for line in rows]
                if all(key and colon for key, colon, _ in split):
                    return _Plan(text, "v2", {key.decode(): offset for key, _, offset in split})
        raise self._unread(f"offsets/{batch} is of an unknown form, {version[:20]!r}; known are v1 and v2")

    def _lists(self, source: str) -> list[str]:
        """The names of a source's lists of files, in the order of their offsets."""
        names = [name for name in self._names(f"sources/{source}") if name.removesuffix(".compact").isdecimal()]
        return sorted(names, key=_offset_of)

    def _has_lists(self, source: str) -> bool:
        """Is this the folder of a source of files that has read some?"""
        for name in self._lists(source):
            head = self._read(f"sources/{source}/{name}", _LIST_HEAD_BYTES) or b""
            with suppress(msgspec.MsgspecError):
                _LISTED.decode(head.split(b"\n", 2)[1] if b"\n" in head else b"")
                return True
        return False

    def _listed(self, source: str, name: str, offset: int | None = None) -> Iterator[Listed]:
        """The files of a list; with ``offset``, those that were read there. A list that Spark deletes meanwhile has none."""
        text = self._read(f"sources/{source}/{name}")
        if text is None:
            return
        version, _, files = text.partition(b"\n")
        if version != _LIST_VERSION:
            raise self._unread(f"sources/{source}/{name} is of an unknown form, {version[:20]!r}; known is v1")
        # A compacted list may have a million lines, of which a few are asked for. Each of these has the number in it somewhere.
        mark = b"" if offset is None else b"%d" % offset
        try:
            for listed in map(_LISTED.decode, (line for line in files.splitlines() if mark in line)):
                if offset in (None, listed.batchId):
                    yield listed
        except msgspec.MsgspecError as error:
            raise self._unread(f"sources/{source}/{name} has a damaged line ({error})") from error

    def _gone(self, path: str) -> bool:
        place = Place.of(unquote(path))
        try:
            return not _folder(place).exists()
        except (OSError, ValueError) as error:
            raise self._unread(f"whether {path} is still there is not known ({error})") from error

    def _numbers(self, folder: str) -> list[int]:
        return sorted(int(name) for name in self._names(folder) if name.isdecimal())

    def _read(self, name: str, most: int = -1) -> bytes | None:
        return self._done(lambda folder: folder.read(name, most), name)

    def _names(self, name: str) -> list[str]:
        return self._done(lambda folder: folder.names(name), name)

    def _done(self, work: Callable[[_LocalFolder | _RemoteFolder], Result], name: str) -> Result:
        if not self.place:
            raise self._unread(
                "its place is not known, because Spark draws a new one for each start. Give the query a checkpointLocation or a "
                "queryName"
            )
        try:
            if self._opened is None:
                self._opened = _folder(Place.of(self.place), self._url)
            return work(self._opened)
        except (OSError, ValueError, ImportError, NotImplementedError) as error:
            words = " ".join(str(error).split())[:300]
            raise self._unread(f"{name} can't be read where the query's batches are committed ({words})") from error

    def _unread(self, why: str) -> UnreadCheckpointError:
        return UnreadCheckpointError(
            f"log {self._log!r}: the query is refused, because its Spark checkpoint {self.place or '(of no known place)'} can't "
            f"be compared with the log: {why}. Put it where the driver can read it (option checkpointUrl has credentials for "
            "that). To write without the comparison, which finds copied and set back checkpoints and renamed sources, set the "
            "sink's option compareCheckpoint to false"
        )


def _name(listed: Listed) -> str:
    return listed.path.rpartition("/")[2]


def _offset_of(name: str) -> int:
    return int(name.removesuffix(".compact"))


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:32]

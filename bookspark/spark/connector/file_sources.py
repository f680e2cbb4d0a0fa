"""Files that a query has read before under another name: its folder was renamed, and Spark would read all of them again.

Law: a query whose source folder was renamed is refused before the first of its files is in the log again. Spark's file source
knows files by their paths. So it takes each file of a renamed folder for a new one, and gives it to a batch of a new number. (A
query that names the folder itself, and not by a pattern, is refused by Spark: "Wrong basePath". Seen on 4.2.)

Spark lists the files that each source has read in its checkpoint, and which of them a micro-batch reads (``checkpoint_files``). A
file was renamed if an earlier batch has one with the same last part and time, whose path is no longer there. That is looked for
where the first batch of a run is committed, and only if checkpoint and files are in the local file system there.

Source: Spark's ``FileStreamSourceLog``; its option ``fileNameOnly`` makes it know files by their last parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from bookspark.errors import BookKeeperError
from bookspark.spark.connector.checkpoint_files import Listed, files_read, listed_files, local_path


class SourceRenamedError(BookKeeperError):
    """A micro-batch has files that the query has already read in another folder."""


def check_sources(checkpoint: str, batch: int, log: str) -> None:
    """Raise SourceRenamedError if files of micro-batch ``batch`` were read before it, under other paths."""
    folder = local_path(checkpoint)
    if folder is None:
        return
    for number, offsets in files_read(folder, batch).items():
        source = folder / "sources" / str(number)
        before: dict[tuple[str, int], str] = {}
        now: list[Listed] = []
        for listed in _listed(source):
            if listed.batchId in offsets:
                now.append(listed)
            elif listed.batchId < offsets.start:
                before[_name(listed), listed.timestamp] = listed.path
        for listed in now:
            read = before.get((_name(listed), listed.timestamp), listed.path)
            if read != listed.path and _gone(read):
                lists = ", ".join(f"{source}/{offset}" for offset in offsets)
                raise SourceRenamedError(
                    f"log {log!r}: batch {batch} is not written: its file {listed.path} was read before as {read}. The source's "
                    "folder was renamed, and the query would write all of its files again. Give the folder its former name "
                    f"again, and delete {folder}/offsets/{batch} and {lists}, with which the batch was planned; or "
                    "start the query with a new checkpointLocation, a folder of new files, and the sink's option follows set to "
                    "the query's id"
                )


def _listed(source: Path) -> Iterator[Listed]:
    for path in source.glob("[0-9]*"):
        yield from listed_files(path)


def _name(listed: Listed) -> str:
    return listed.path.rpartition("/")[2]


def _gone(path: str) -> bool:
    found = local_path(path)
    return found is not None and not found.exists()

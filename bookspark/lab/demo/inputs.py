"""The files that a run ingests, listed and counted without Spark.

Law: a run ingests a fixed list of files. Each has a link in the run's input folder, so odd names and later files don't
matter. A line ends only with a line feed, optional after a file's last line. Hidden files (``.name``) and Spark's own
(``_name``) are left out, as in Spark. The counts share no code with Spark.
"""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from bookspark.errors import BookKeeperError, ConfigurationError
from bookspark.store.wire.entry_batch import PAYLOAD_BYTES_MAX

_CHUNK_BYTES = 1 << 20
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
"""Spark removes it from the beginning of a file."""

_OPENERS: dict[str, Callable[[Path], IO[bytes] | gzip.GzipFile | bz2.BZ2File]] = {
    ".gz": gzip.GzipFile,
    ".bz2": bz2.BZ2File,
}
_OTHER_CODECS = frozenset({".deflate", ".lz4", ".snappy", ".zst"})
"""Spark decompresses files with these suffixes, and Python can't."""


class InputError(ConfigurationError):
    """The named input can't be ingested. Nothing was started."""


class InputChangedError(BookKeeperError):
    """A file was changed while it was ingested."""


@dataclass(frozen=True)
class Content:
    """Figures of files."""

    lines: int = 0
    size: int = 0
    """Bytes of the lines, without line breaks."""
    longest: int = 0
    """Bytes of the longest line."""

    def __add__(self, other: Content) -> Content:
        return Content(self.lines + other.lines, self.size + other.size, max(self.longest, other.longest))


@dataclass(frozen=True)
class InputFiles:
    folder: Path
    files: tuple[Path, ...]
    """The files under the folder, sorted."""
    versions: tuple[tuple[int, int], ...]
    """Modification time and size of each file at its count."""
    content: Content

    def link_into(self, directory: Path) -> None:
        """Make a link to each file in ``directory``, with a number as its name."""
        for number, file in enumerate(self.files):
            kind = file.suffix.lower() if file.suffix.lower() in _OPENERS else ".txt"
            (directory / f"{number:06d}{kind}").symlink_to(file)

    def check_unchanged(self) -> None:
        """Raise InputChangedError if a file changed after its count."""
        for file, version in zip(self.files, self.versions, strict=True):
            if _version(file) != version:
                raise InputChangedError(f"{file} was changed while it was ingested; run again when nobody writes there")


def find_input(folder: Path) -> InputFiles:
    """List and count the files under ``folder``. Raises InputError if there are none, or if a file can't be ingested."""
    if not folder.exists():
        raise InputError(f"folder {folder} does not exist; name one with text or JSON-lines files")
    if not folder.is_dir():
        raise InputError(f"{folder} is a file; name its folder")
    files = tuple(sorted(_files_under(folder)))
    if not files:
        raise InputError(f"folder {folder} has no files to ingest; name one with text or JSON-lines files")
    versions, total = [], Content()
    for file in files:
        try:
            versions.append(_version(file))
            content = count_file(file)
        except (OSError, EOFError) as error:
            raise InputError(f"{file} can't be read: {getattr(error, 'strerror', None) or error}") from error
        if content.longest > PAYLOAD_BYTES_MAX:
            raise InputError(
                f"{file} has a line of {content.longest:,} bytes, and an entry holds at most {PAYLOAD_BYTES_MAX:,}; "
                "is it a text file?"
            )
        total += content
    if not total.lines:
        raise InputError(f"the files in folder {folder} are all empty; name one with text or JSON-lines files")
    return InputFiles(folder, files, tuple(versions), total)


def count_file(path: Path) -> Content:
    """Figures of a file, decompressed if its name ends with .gz or .bz2."""
    opener = _OPENERS.get(path.suffix.lower())
    with opener(path) if opener else path.open("rb") as file:
        lines = size = longest = begun = 0
        chunk = file.read(_CHUNK_BYTES).removeprefix(_BYTE_ORDER_MARK)
        while chunk:
            *ends, rest = chunk.split(b"\n")
            for end in ends:
                length = begun + len(end)
                size += length
                longest = max(longest, length)
                begun = 0
            lines += len(ends)
            begun += len(rest)
            chunk = file.read(_CHUNK_BYTES)
        if begun:
            lines, size, longest = lines + 1, size + begun, max(longest, begun)
    return Content(lines, size, longest)


def _files_under(folder: Path) -> Iterable[Path]:
    def unreadable(error: OSError) -> None:
        raise InputError(f"folder {error.filename} can't be read: {error.strerror}") from error

    for place, folders, names in os.walk(folder.absolute(), onerror=unreadable):
        folders[:] = [name for name in folders if not name.startswith((".", "_"))]
        for name in names:
            path = Path(place, name)
            if name.startswith((".", "_")) or not path.is_file():
                continue
            if path.suffix.lower() in _OTHER_CODECS:
                raise InputError(f"{path} has a compression that is not supported; unpack it, or use .gz or .bz2")
            yield path


def _version(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_mtime_ns, status.st_size

"""Rewritten logs: sorted and compressed copies of sealed logs, each a plain Arrow IPC *file*.

Law: a rewritten log is written whole under another name, synced, and renamed. So a log under its final name is whole, and bad
bytes in it are damage, never a torn write. Its number is from the same sequence as those of the entry logs, and a location in it
(log, position) is the start of a block. A bookie reads it by the index alone. The footer serves Arrow's readers; it follows from
the blocks, so a scan verifies it by rebuilding it::

    <directory>/logs/<number, 8 hex>.arrow      "ARROW1" 00 00 │ 400 bytes of schema │ block │ block │ …
                                                FF FF FF FF 00 00 00 00 │ footer (flatbuffer) │ i32 its size │ "ARROW1"
    <directory>/logs/<number, 8 hex>.arrow.new  one that is being written

Blocks are ascending by (ledger, first entry), as ``rewritten_block`` describes them. ``pyarrow.ipc.open_file`` reads the log.

Source: docs/decisions/one-log.md; the format is Arrow's "IPC File Format".
"""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from bookspark.store.bookie.disk.entry_log import LOGS
from bookspark.store.bookie.disk.file_system import TEMPORARY_SUFFIX, FileSystem
from bookspark.store.bookie.disk.log_scan import SCHEMA, Unread, read_padded
from bookspark.store.bookie.disk.rewritten_block import (
    BLOCK_BYTES_MAX,
    BLOCK_PREFIX_BYTES,
    Block,
    parse_block,
    parse_block_prefix,
)
from bookspark.store.wire.entry_batch import Buffer

REWRITTEN_SUFFIX = ".arrow"
_MAGIC = b"ARROW1"
HEAD = _MAGIC + bytes(2) + SCHEMA
END_OF_BLOCKS = bytes.fromhex("ffffffff00000000")
_TRAILER = struct.Struct(f"<i{len(_MAGIC)}s")
_BLOCK = struct.Struct("<qiiq")

# The footer's flatbuffer as pyarrow writes it: a table whose offsets depend on the number of blocks, the blocks, no dictionaries,
# and the schema as in the schema message.
_FOOTER_HEAD = struct.Struct("<16s8siiii")
_FOOTER_START = bytes.fromhex("100000000c001400060008000c001000")
_FOOTER_TABLE = bytes.fromhex("0c00000000000400")
_FOOTER_TAIL = (
    bytes.fromhex("00000000080008000000040008000000") + SCHEMA[SCHEMA.index(bytes.fromhex("060000001c010000")) - 4 :]
)


class RewrittenLog(NamedTuple):
    """A rewritten log under its final name."""

    directory: str
    number: int
    end: int
    """Length in bytes."""

    @property
    def path(self) -> str:
        return rewritten_path(self.directory, self.number)

    @property
    def synced(self) -> int:
        return self.end

    def remove(self, file_system: FileSystem) -> None:
        """Unlink it. Raises OSError."""
        file_system.unlink(self.path)


def rewritten_path(directory: str, number: int) -> str:
    return f"{directory}/{LOGS}/{number:08x}{REWRITTEN_SUFFIX}"


def rewritten_numbers(file_system: FileSystem, directory: str) -> list[int]:
    """Numbers of a directory's rewritten logs, ascending."""
    names = (os.path.splitext(name) for name in file_system.list(f"{directory}/{LOGS}"))
    return sorted(int(stem, 16) for stem, suffix in names if suffix == REWRITTEN_SUFFIX)


def footer(places: Sequence[tuple[int, int]]) -> bytes:
    """The bytes after the blocks, which lie at ``places`` (position, size)."""
    after_blocks = _FOOTER_HEAD.size + _BLOCK.size * len(places)
    # Offsets of schema, dictionaries and blocks, each counted from its own place in the table.
    head = _FOOTER_HEAD.pack(_FOOTER_START, _FOOTER_TABLE, after_blocks - 12, after_blocks - 28, 4, len(places))
    blocks = (_BLOCK.pack(at, BLOCK_PREFIX_BYTES, 0, size - BLOCK_PREFIX_BYTES) for at, size in places)
    flatbuffer = b"".join((head, *blocks, _FOOTER_TAIL))
    return b"".join((END_OF_BLOCKS, flatbuffer, _TRAILER.pack(len(flatbuffer), _MAGIC)))


def adopt(file_system: FileSystem, directory: str, number: int) -> RewrittenLog | None:
    """Take over a rewritten log that a checkpoint names. Only its end is read. None if the log is missing or cut. Raises
    OSError."""
    path = rewritten_path(directory, number)
    if not file_system.exists(path):
        return None
    with closing(file_system.open(path)) as file:
        size = file.size()
        trailer = file.read(_TRAILER.size, max(0, size - _TRAILER.size))
    if len(trailer) < _TRAILER.size or not trailer.endswith(_MAGIC):
        return None
    return RewrittenLog(directory, number, size)


class BadPart(NamedTuple):
    """Bad bytes of a rewritten log. ``content``: the correct bytes, if the rest of the log determines them."""

    position: int
    size: int
    what: str
    content: bytes | None = None


def scan_rewritten(
    file_system: FileSystem, path: str, starts: Sequence[int] = (), unread: Unread | None = None
) -> Iterator[tuple[Block, Buffer] | BadPart]:
    """Every good block of a rewritten log with its bytes, and the bad parts: blocks, the head, the footer. After a bad block the
    scan continues at its stated end if its prefix is good, else at the next of ``starts``: positions of blocks, ascending.
    ``unread``: as for ``read_frames``. Raises OSError."""
    with closing(file_system.open(path)) as file:
        size = file.size()
        if read_padded(file, 0, min(size, len(HEAD)), unread) != HEAD:
            yield BadPart(0, len(HEAD), "the head of the rewritten log is not what was written", HEAD)
        position, complete = len(HEAD), True
        places: list[tuple[int, int]] = []
        while True:
            prefix = read_padded(file, position, min(size, position + BLOCK_PREFIX_BYTES), unread)
            found = parse_block_prefix(prefix, position)
            if found is None or not BLOCK_PREFIX_BYTES < found[0].size <= min(BLOCK_BYTES_MAX, size - position):
                following = bisect_right(starts, position)
                if following == len(starts) or starts[following] >= size:
                    break
                yield BadPart(position, starts[following] - position, "a block of the rewritten log fails its checks")
                position, complete = starts[following], False
                continue
            content = memoryview(read_padded(file, position, position + found[0].size, unread))
            block = parse_block(content, position)
            if block is None:
                yield BadPart(position, found[0].size, "a block of the rewritten log fails its checks")
            else:
                yield block, content
            places.append((position, found[0].size))
            position += found[0].size
        end = footer(places)
        if not complete or read_padded(file, position, size, unread) != end:
            # A bad block may lie here too, indistinguishable from a bad footer.
            derived = end if complete and size == position + len(end) else None
            yield BadPart(
                position, max(0, size - position), "the footer, or a block before it, fails its checks", derived
            )


def temporary_path(directory: str, number: int) -> str:
    return rewritten_path(directory, number) + TEMPORARY_SUFFIX

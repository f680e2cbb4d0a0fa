"""The bytes of a record of decisions: one or more files (*segments*) for each process.

Law: written chunks stay readable, whatever happens to the process. A torn last chunk is the usual end of a killed process: it
is reported, and all earlier chunks count. Nothing is synced, so a power cut takes the end of a record.

A segment is ``<kind>-<host>-<pid>-<ns>.<number>.decisions``; ``ns`` is the begin of the record. Its chunks follow each other::

    u32  length of the body        little-endian
    u32  CRC32C of the bytes that follow
    u64  begin, in nanoseconds since 1970: no earlier decision is in the chunk, but for the duration of one decision
    u64  end, likewise: no later decision is in the chunk
    …    body, zstd

The body of the first chunk is one JSON object (``Header``), uncompressed; all others have one MessagePack array of records
(``machines``). A chunk with an empty body is the clean end.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import crc32c
import zstandard

from bookspark.errors import ConfigurationError
from bookspark.support.inflating import InflationError, inflated

FORMAT = 1
SUFFIX = ".decisions"
_HEAD = struct.Struct("<II")
_TIMES = struct.Struct("<QQ")
RECORDS_BYTES_MAX = 64 << 20
"""Bytes of records in a chunk at most, before compression."""


class Header(NamedTuple):
    format: int
    version: str
    kind: str
    host: str
    pid: int
    segment: int


class Chunk(NamedTuple):
    begin_ns: int
    end_ns: int
    records: bytes


def encoded(begin_ns: int, end_ns: int, body: bytes) -> bytes:
    rest = _TIMES.pack(begin_ns, end_ns) + body
    return _HEAD.pack(len(body), crc32c.crc32c(rest)) + rest


def header_chunk(header: Header, now_ns: int) -> bytes:
    return encoded(now_ns, now_ns, json.dumps(header._asdict()).encode())


class Segment:
    """One file, read. ``clean``: it ends with the clean end. ``torn``: bytes at its end that form no chunk."""

    def __init__(self, path: Path, version: str) -> None:
        """Raises ConfigurationError for a file that is not a record, or a record of another format or version."""
        self.path = path
        self.clean = False
        self.torn = 0
        self._content = path.read_bytes()
        self._chunks = self._raw()
        try:
            self.header = Header(**json.loads(next(self._chunks).records))
        except (StopIteration, ValueError, TypeError, RecursionError) as error:
            raise ConfigurationError(f"{path} is no record of decisions") from error
        if self.header.format != FORMAT or self.header.version != version:
            raise ConfigurationError(
                f"{path} was made by Bookspark {self.header.version} in format {self.header.format}, and this is Bookspark "
                f"{version} with format {FORMAT}: replay it with the version that made it"
            )

    def chunks(self) -> Iterator[Chunk]:
        """The chunks. Call it once. Raises ConfigurationError for a chunk that no process wrote."""
        unpack = zstandard.ZstdDecompressor().decompress
        for chunk in self._chunks:
            if not chunk.records:
                self.clean = True
                return
            try:
                records = inflated(chunk.records, RECORDS_BYTES_MAX, unpack)
            except InflationError as error:
                raise ConfigurationError(f"{self.path} is no record of decisions: {error}") from error
            yield chunk._replace(records=records)

    def _raw(self) -> Iterator[Chunk]:
        content, at = self._content, 0
        while at < len(content):
            start = at + _HEAD.size
            if start + _TIMES.size > len(content):
                break
            length, crc = _HEAD.unpack_from(content, at)
            end = start + _TIMES.size + length
            if end > len(content) or crc32c.crc32c(content[start:end]) != crc:
                break
            begin_ns, end_ns = _TIMES.unpack_from(content, start)
            at = end
            yield Chunk(begin_ns, end_ns, content[start + _TIMES.size : end])
        self.torn = len(content) - at

"""The control log: what a bookie has to remember of its ledgers apart from their entries.

Law: a control record is synced before the answer that rests on it, in every durability mode and in every directory of the
bookie; a boot takes the union over all directories. A damaged control log may have lost a fence, so without a whole copy in
another directory the bookie stays down. One file, appended to, replaced as a whole when most of it is superseded::

    <directory>/control.log       record │ record │ …
                                  record: u32 body length │ u32 CRC32C(body) │ body
                                  body, msgpack: [name of the record, its fields], as in _NAMES
    <directory>/control.synced    its note (``synced_note``)

Source: docs/decisions/one-log.md. BookKeeper keeps these in its journal and in each ledger's index header.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from bookspark.bookie.disk.control_state import Record
from bookspark.bookie.disk.file_system import File, FileSystem, NoSpaceError, read_all, replace_file, write_all
from bookspark.bookie.disk.synced_note import SyncedNote
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import (
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    LastAddConfirmedNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)
from bookspark.protocol.bookie.garbage_collection import CollectionNoted

NAME = "control.log"
NOTE_NAME = "control.synced"

_HEAD = struct.Struct("<II")
_NAMES: dict[type[Record], str] = {
    MasterKeyNoted: "key",
    FenceNoted: "fence",
    LastAddConfirmedNoted: "lac",
    LimboNoted: "limbo",
    LimboCleared: "limbo cleared",
    FenceUnsureNoted: "fence unsure",
    EntriesLost: "lost",
    LossyBootNoted: "lossy boot",
    HealedNoted: "healed",
    CollectionNoted: "collected",
}
_TYPES: dict[str, Any] = {name: record_type for record_type, name in _NAMES.items()}
_REWRITE_BYTES_MIN = 1 << 20


def encode_records(records: Iterable[Record]) -> bytes:
    """The bytes of ``records``, one after the other."""
    pieces: list[bytes] = []
    for record in records:
        body = msgspec.msgpack.encode((_NAMES[type(record)], *record))
        pieces += (_HEAD.pack(len(body), crc32c(body)), body)
    return b"".join(pieces)


class ControlScan(NamedTuple):
    """What one control log holds: the good records, up to the first one that is not. All sizes in bytes."""

    records: list[Record]
    end: int
    """Where the good records end."""
    size: int
    noted: int | None
    """The synced note: the position up to which the log was synced. None: no note can be read."""
    present: bool
    """Is there a control log at all?"""

    @property
    def damaged(self) -> bool:
        """Bad bytes below the note are damage, above it a torn write. Without a note every byte has to be good."""
        return self.end < (self.size if self.noted is None else self.noted)


def decode_records(content: bytes) -> tuple[list[Record], int]:
    """The good records that ``content`` starts with, and where they end."""
    records: list[Record] = []
    decode = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
    head = _HEAD.size
    at = 0
    while at + head <= len(content):
        size, checksum = _HEAD.unpack_from(content, at)
        end = at + head + size
        body = content[at + head : end]
        if end > len(content) or crc32c(body) != checksum or size == 0:
            break
        name, *values = decode(body)
        records.append(_TYPES[name](*values))
        at = end
    return records, at


class ControlLog:
    """The control log of one directory. Written by the directory's commit thread only, once it is open."""

    def __init__(self, file_system: FileSystem, directory: str) -> None:
        self._file_system = file_system
        self.path, self._note = control_note(file_system, directory)
        self._file: File | None = None
        self._end = 0
        self._rewritten_bytes = 0

    def scan(self) -> ControlScan:
        """Read what is there; nothing is changed. A directory that never had a control log has no note either. Raises OSError."""
        noted = self._note.read()
        content = b""
        present = self._file_system.exists(self.path)
        if present:
            file = self._file_system.open(self.path)
            content = read_all(file)
            file.close()
        records, end = decode_records(content)
        return ControlScan(records, end, len(content), noted, present)

    def begin(self, content: Sequence[bytes] | None, scan: ControlScan) -> bool:
        """Open the log for appending, after ``scan``. ``content``: encoded records, in pieces, that replace what is there; None
        keeps what is there, all of which is synced. False if there is no room for ``content``: the log goes on with the good
        records that are there. Raises NoSpaceError if records would be lost by that, and OSError."""
        self._end = self._rewritten_bytes = scan.end
        if content is None:
            self._file = self._file_system.open(self.path)
            return True
        try:
            self.rewrite(content)
        except NoSpaceError:
            if scan.damaged or not scan.present:
                raise
            self._file = self._file_system.open(self.path)
            self._file.truncate(self._end)
            self._file.sync()
            self._note.sync()
            return False
        return True

    def rewrite(self, content: Sequence[bytes]) -> None:
        """Replace the whole log by ``content`` (encoded records, in pieces), and go on appending to it. A crash meanwhile leaves
        the old log or the new one, and a note that is not above its end. Raises NoSpaceError, with the log as it was, and
        OSError."""
        self._note.write(0)
        self._note.sync()
        try:
            replace_file(self._file_system, self.path, content)
        except NoSpaceError:
            self._note.write(self._end)
            raise
        if self._file is not None:
            self._file.close()
        self._file = self._file_system.open(self.path)
        self._end = self._rewritten_bytes = sum(map(len, content))
        self._note.write(self._end)
        self._note.sync()

    def append(self, content: bytes) -> None:
        """Append encoded records; durable when this returns. Raises NoSpaceError, with the log as it was, and OSError."""
        assert self._file is not None
        try:
            end = write_all(self._file, [content], self._end)
        except NoSpaceError:
            self._file.truncate(self._end)
            raise
        self._file.sync()
        self._end = end
        self._note.write(self._end)

    @property
    def worth_rewriting(self) -> bool:
        """Is most of the log superseded, as far as its size tells? (Explicit LACs make it grow.)"""
        return self._end > 2 * self._rewritten_bytes + _REWRITE_BYTES_MIN

    def sync_note(self) -> None:
        """Make the synced note itself durable. Raises OSError."""
        self._note.sync()

    def close(self) -> None:
        """Close the files. ``begin`` opens them again."""
        self._note.close()
        if self._file is not None:
            self._file.close()
            self._file = None


def control_note(file_system: FileSystem, directory: str) -> tuple[str, SyncedNote]:
    """The path of a directory's control log, and its note."""
    return f"{directory}/{NAME}", SyncedNote(file_system, f"{directory}/{NOTE_NAME}", 0)

"""The control log: a bookie's durable knowledge of its ledgers apart from their entries.

Law: a control record is synced before the answer that rests on it, in every durability mode and in every directory of the bookie.
A boot takes the union over all directories. The log is one file, appended to, and replaced once most of it is superseded::

    <directory>/control.log       record │ record │ …
                                  record: u32 body length │ u32 CRC32C(body) │ body
                                  body, msgpack: [name of the record, its fields], as in _NAMES
    <directory>/control.synced    its note (``synced_note``)

Four records are about the copy itself, and differ between directories:

``at``      write number n follows; a bookie numbers its writes without gaps and sends each to every directory
``up to``   this copy holds all writes up to number n: the end of a log that was written as a whole
``logs``    the directory's entry logs and rewritten logs from now on
``without`` the bookie is used without these directories from now on

So a copy that a full or failed disk left behind is known to be behind. A log listed under ``logs`` that is missing is lost,
because an intended removal is noted first.

A log that lacks a write covered by its note is damaged: it is an older copy, or the copy that a rewrite was to replace. A bad
record above the note that lacks its end or a sector is *torn*: a write cut short may have left it. Any other bad record is
damage, and so are bytes that the disk can't read. Good records that follow are read in all cases.
``protocol.bookie.control_copies`` defines the consequences of damage.

Source: docs/decisions/one-log.md. BookKeeper keeps this state in its journal and in each ledger's index header.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple

import msgspec
from crc32c import crc32c

from bookspark.errors import StorageError
from bookspark.protocol.bookie.bookie_boot import HealedNoted, LossyBootNoted
from bookspark.protocol.bookie.bookie_ledger import (
    EntriesLost,
    FenceNoted,
    FenceUnsureNoted,
    KeyDecided,
    LastAddConfirmedNoted,
    LimboCleared,
    LimboNoted,
    MasterKeyNoted,
)
from bookspark.protocol.bookie.control_copies import ControlCopy
from bookspark.protocol.bookie.garbage_collection import CollectionNoted
from bookspark.protocol.bookie.read_only_switch import ReadOnlySwitched
from bookspark.store.bookie.disk.control_state import (
    ControlState,
    CopyRecord,
    LedgersNoted,
    LogsNoted,
    LossAccepted,
    Record,
    WithoutNoted,
    WriteNumbered,
    WrittenUpTo,
)
from bookspark.store.bookie.disk.disk_errors import Meaning, meaning, unless_refused
from bookspark.store.bookie.disk.file_system import (
    File,
    FileSystem,
    NoSpaceError,
    needing_space,
    replace_file,
    with_descriptor,
    write_all,
)
from bookspark.store.bookie.disk.log_scan import FewUnread, Unread, read_padded
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.bookie.disk.torn import RECORD_HEAD, is_torn_record, next_record, record_end

NAME = "control.log"
NOTE_NAME = "control.synced"

_NAMES: dict[type[Record | CopyRecord], str] = {
    LedgersNoted: "ledgers",
    MasterKeyNoted: "key",
    KeyDecided: "key decided",
    FenceNoted: "fence",
    LastAddConfirmedNoted: "lac",
    LimboNoted: "limbo",
    LimboCleared: "limbo cleared",
    FenceUnsureNoted: "fence unsure",
    EntriesLost: "lost",
    LossyBootNoted: "lossy boot",
    HealedNoted: "healed",
    CollectionNoted: "collected",
    ReadOnlySwitched: "read only",
    LossAccepted: "loss accepted",
    WriteNumbered: "at",
    WrittenUpTo: "up to",
    LogsNoted: "logs",
    WithoutNoted: "without",
}
_TYPES: dict[str, Any] = {name: record_type for record_type, name in _NAMES.items()}
_REWRITE_BYTES_MIN = 1 << 20


def encode_records(records: Iterable[Record | CopyRecord]) -> bytes:
    pieces: list[bytes] = []
    for record in records:
        body = msgspec.msgpack.encode((_NAMES[type(record)], *record))
        pieces += (RECORD_HEAD.pack(len(body), crc32c(body)), body)
    return b"".join(pieces)


def live_bytes(state: ControlState) -> int:
    """Size in bytes of a log with only the records of ``state``, without their heads."""
    plain, others = state.plain_bytes()
    return plain + len(encode_records(others))


class ControlScan(NamedTuple):
    """Content of a control log. All sizes in bytes."""

    records: list[Record]
    end: int
    """Start of the first bad record, or the log's end."""
    size: int
    noted: int | None
    """The synced note: end of the synced part. None: the note is unreadable."""
    present: bool
    damaged: bool
    """May acknowledged records be lost?"""
    copy: ControlCopy
    logs: LogsNoted | None
    """Logs of the directory; None if never noted."""
    unread: Unread
    """Bytes that the disk could not read: (start, end) each. They may be good."""
    note_unread: bool
    """Is the log damaged, or only torn? Its note tells, which the disk could not read."""


class _Bad(NamedTuple):
    """Bytes from ``start`` on without a good record. ``last``: nothing good follows."""

    start: int
    last: bool
    torn: bool


def decode_records(content: bytes, below: int) -> list[Record | CopyRecord | _Bad]:
    """Decode the records of ``content``, and mark the bad bytes between them. Every byte below position ``below`` has to be good.
    Raises StorageError for a good record of an unknown kind: a newer version wrote it, and it can't be left out."""
    found: list[Record | CopyRecord | _Bad] = []
    decode = msgspec.msgpack.Decoder(tuple[Any, ...]).decode
    at: int | None = 0
    while at is not None and at < len(content):
        end = record_end(content, at)
        if end is not None:
            name, *values = decode(content[at + RECORD_HEAD.size : end])
            try:
                found.append(_TYPES[name](*values))
            except (KeyError, TypeError):
                raise StorageError(
                    f"the control log has a record {name!r} with {len(values)} values, which this version does not know: a newer "
                    "version of Bookspark ran here; start that one"
                ) from None
            at = end
            continue
        following = next_record(content, at)
        found.append(
            _Bad(
                at,
                following is None,
                at >= below and is_torn_record(memoryview(content)[at:following], at, is_last=following is None),
            )
        )
        at = following
    return found


def last_number(found: Iterable[Record | CopyRecord | _Bad]) -> int:
    return max((item.number for item in found if isinstance(item, (WriteNumbered, WrittenUpTo))), default=0)


class ControlLog:
    """The control log of one directory. Once it is open, only the directory's commit thread writes it."""

    def __init__(self, file_system: FileSystem, directory: str) -> None:
        self._file_system = file_system
        self.path, self.note = control_note(file_system, directory)
        self._file: File | None = None
        self._end = self.synced = self._rewritten_bytes = 0
        self.write_number = 0
        """Last write that is durable here."""
        self._logs: set[int] = set()
        self._rewritten: frozenset[int] = frozenset()
        self._without: frozenset[int] = frozenset()
        self.version = 0
        """Odd during a replacement, and different afterwards."""

    @property
    def is_read_only(self) -> bool:
        """After ``begin``: can nothing be appended until the log is replaced as a whole?"""
        return self._file is None

    def scan(self) -> ControlScan:
        """Read the log without changing anything. A directory without a control log has no note either. Raises OSError."""
        # The note is read first, because a serving bookie may append meanwhile.
        noted, number, content = self.note.read(), self.note.read_write_number() or 0, b""
        unread = FewUnread()
        present = self._file_system.exists(self.path)
        if present:
            with closing(self._file_system.open(self.path)) as file:
                content = bytes(read_padded(file, 0, file.size(), unread))
        below = len(content) if noted is None else noted
        found = decode_records(content, below)
        bad = [item for item in found if isinstance(item, _Bad)]
        logs = [item for item in found if isinstance(item, LogsNoted)]
        damaged = (
            len(content) < below or any(not item.torn for item in bad) or number > last_number(found) or bool(unread)
        )
        note_unread = damaged and noted is None and self.note.unread
        if note_unread:
            note_unread = all(item.torn for item in decode_records(content, 0) if isinstance(item, _Bad))
        return ControlScan(
            [item for item in found if not isinstance(item, (_Bad, CopyRecord))],
            bad[0].start if bad else len(content),
            len(content),
            noted,
            present,
            damaged,
            self._copy(found, damaged, len(content)),
            logs[-1] if logs else None,
            unread,
            note_unread,
        )

    def note_is_bad(self) -> bool:
        """Does the note, or its write number, fail its checks? Raises OSError."""
        return self.note.read() is None or self.note.has_bad_write_number()

    def _copy(self, found: list[Record | CopyRecord | _Bad], damaged: bool, size: int) -> ControlCopy:
        complete_to, current, seen, lacking = 0, 0, last_number(found), False
        for item in found:
            if isinstance(item, WrittenUpTo):
                complete_to = max(complete_to, item.number)
            elif isinstance(item, WriteNumbered):
                current = item.number
                if current == complete_to + 1 and not lacking:
                    complete_to = current
            elif isinstance(item, _Bad):
                lacking = True
                complete_to = max(0, min(complete_to, current - 1)) if current else complete_to
        if not damaged:
            notes = [item for item in found if isinstance(item, WithoutNoted)]
            return ControlCopy(True, complete_to, seen, frozenset(notes[-1].directories) if notes else frozenset())
        noted, number = self.note.read(), self.note.read_write_number()
        if noted is None or number is None or any(isinstance(item, _Bad) and item.start >= noted for item in found):
            return ControlCopy(False, complete_to, None)
        return ControlCopy(False, complete_to, max(seen, number))

    def begin(self, content: Sequence[bytes] | None, scan: ControlScan, write_number: int = 0) -> bool:
        """Open the log for appending, after ``scan``. ``content``: encoded records, in pieces, that replace the log; None keeps
        the log, which is fully synced. ``write_number``: number of the last write. False without room for ``content``, or on a
        read-only file system: the log then goes on with its present good records. Raises NoSpaceError if that would lose records,
        and OSError."""
        self._end = self._rewritten_bytes = scan.end
        self._without = scan.copy.without
        self.synced = min(scan.noted or 0, scan.end)
        if scan.logs is not None:
            self._logs, self._rewritten = set(scan.logs.entry_logs), frozenset(scan.logs.rewritten)
        try:
            if content is None:
                self.write_number = write_number
                with needing_space():
                    self._file = self._file_system.open(self.path, write=True)
                # The process that wrote the note may have died before it was durable.
                self._settle_note()
                return True
            self.rewrite(content, write_number)
        except NoSpaceError as error:
            if scan.damaged or not scan.present:
                raise
            self.write_number = scan.copy.complete_to
            if meaning(error) is Meaning.READ_ONLY:
                # Nothing can be written: appends are refused until the log is replaced as a whole.
                self._file = None
                return False
            self._file = self._file_system.open(self.path, write=True)
            if behind := self._file.read(self._end - self.synced, self.synced):
                # After a failed sync the page cache has these bytes, the disk may lack them, and the next sync reports nothing.
                write_all(self._file, [behind], self.synced)
            self._cut_off()
            self._settle_note()
            return False
        return True

    def rewrite(self, content: Sequence[bytes], write_number: int = 0) -> None:
        """Replace the whole log by ``content`` (encoded records, in pieces: everything up to ``write_number``) and append to the
        new log. A crash meanwhile leaves the old or the new log, and a note not above its end. Raises NoSpaceError, with the log
        unchanged, and OSError."""
        # The first log has this record too, so its note is never 0, and the log's existence is known from then on.
        last: list[CopyRecord] = [WrittenUpTo(write_number)]
        if self._logs or self._rewritten:
            last.append(self._logs_noted())
        if self._without:
            last.append(WithoutNoted(sorted(self._without)))
        # A note that can't be read becomes another file.
        self.note.read()
        self.version += 1
        try:
            self._replace(content, encode_records(last), write_number)
        finally:
            self.version += 1

    def _replace(self, content: Sequence[bytes], last: bytes, write_number: int) -> None:
        size = sum(map(len, content))
        # This note is true of both logs and below the new log's end, so a boot does not take the new log's name for durable.
        self.note.write(min(self.synced, size), self.write_number)
        self.note.sync()
        size += len(last)
        try:
            replace_file(self._file_system, self.path, [*content, last])
        except NoSpaceError:
            self.note.write(self.synced, self.write_number)
            raise
        if self._file is not None:
            self._file.close()
        self._file = with_descriptor(lambda: self._file_system.open(self.path, write=True))
        self._end = self._rewritten_bytes = size
        self.write_number = max(self.write_number, write_number)
        self._settle_note()

    def append(self, content: bytes, write_number: int = 0) -> None:
        """Append encoded records; durable on return. ``write_number``: number of the last write among them, if any. Raises
        NoSpaceError, with the log unchanged, and OSError."""
        if self._file is None:
            raise NoSpaceError(errno.EROFS, os.strerror(errno.EROFS), self.path)
        try:
            end = write_all(self._file, [content], self._end)
        except NoSpaceError:
            # On a read-only file system nothing was written.
            with unless_refused():
                self._cut_off()
            raise
        self._file.sync()
        self._end = end
        self.write_number = max(self.write_number, write_number)
        self._note_end()

    def _cut_off(self) -> None:
        assert self._file is not None  # Durably: a power cut could mix the bytes behind the end with the next write.
        self._file.truncate(self._end)
        self._file.sync()

    def _note_end(self) -> None:
        self.synced = self._end
        self.note.write(self._end, self.write_number)

    def _settle_note(self) -> None:
        self._note_end()
        self.note.sync()

    # -- the logs of the directory

    def note_log(self, number: int) -> None:
        """Note that the empty entry log ``number`` exists. Raises NoSpaceError, OSError."""
        self._note_logs({*self._logs, number}, self._rewritten)

    def note_removal(self, gone: Iterable[int], rewritten: Iterable[int]) -> None:
        """Note that the entry logs ``gone`` will be removed now, and that ``rewritten`` are the rewritten logs. Raises
        NoSpaceError, OSError."""
        self._note_logs(self._logs.difference(gone), frozenset(rewritten))

    def note_all_logs(self, entry_logs: Iterable[int], rewritten: Iterable[int]) -> None:
        """Note all logs, at the boot. Raises NoSpaceError, OSError."""
        self._note_logs(set(entry_logs), frozenset(rewritten))

    def _note_logs(self, entry_logs: set[int], rewritten: frozenset[int]) -> None:
        if (entry_logs, rewritten) != (self._logs, self._rewritten):
            before = self._logs, self._rewritten
            self._logs, self._rewritten = entry_logs, rewritten
            try:
                self.append(encode_records([self._logs_noted()]))
            except NoSpaceError:
                self._logs, self._rewritten = before
                raise

    def note_without(self, directories: Iterable[int]) -> None:
        """Note, at the boot, that the bookie is used without these directories. Raises NoSpaceError, OSError; the next log that
        is written as a whole then has the record."""
        before, self._without = self._without, frozenset(directories)
        if self._without != before:
            self.append(encode_records([WithoutNoted(sorted(self._without))]))

    def _logs_noted(self) -> LogsNoted:
        return LogsNoted(sorted(self._logs), sorted(self._rewritten))

    def note_live(self, live_bytes: int) -> None:
        """Set the size, in bytes, that a rewritten log would have, after a boot. The excess is superseded."""
        self._rewritten_bytes = min(self._end, live_bytes)

    @property
    def worth_rewriting(self) -> bool:
        """Is most of the log superseded, judged by its size? (Explicit LACs make it grow.)"""
        return self._end > 2 * self._rewritten_bytes + _REWRITE_BYTES_MIN

    def close(self) -> None:
        self.note.close()
        if self._file is not None:
            self._file.close()
            self._file = None


def control_note(file_system: FileSystem, directory: str) -> tuple[str, SyncedNote]:
    return f"{directory}/{NAME}", SyncedNote(file_system, f"{directory}/{NOTE_NAME}", 0)

"""Checks of a bookie's files: each byte is read from the disk and checked by the production readers.

Law: good and damaged are defined here alone. The scrubs of a serving bookie (``holdings.scrubbing``, ``holdings.kept_files``) and
of a stopped bookie (``offline.scrub``) differ only in their use of the result. Nothing is changed here. Each byte of a log lies
in a good part, in a ``Damage``, in a ``NotRead``, or above the synced note. Files leave the page cache before the check, except
for their unwritten pages (``file_system.uncached``).

Dead batches, without a row in the index, are checked too. Their damage costs no entry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from typing import NamedTuple

from bookspark.store.bookie.disk.checkpoint import NAME as CHECKPOINT
from bookspark.store.bookie.disk.checkpoint import Checkpoint, Part, read_checkpoint
from bookspark.store.bookie.disk.control_log import NAME as CONTROL
from bookspark.store.bookie.disk.control_log import NOTE_NAME, ControlLog, ControlScan
from bookspark.store.bookie.disk.file_system import FileSystem, uncached
from bookspark.store.bookie.disk.log_scan import SCHEMA, BadBytes, Unread, read_frames, read_padded, touches
from bookspark.store.bookie.disk.rewritten_log import BadPart, scan_rewritten
from bookspark.store.bookie.disk.synced_note import SyncedNote
from bookspark.store.wire.batch_prefix import HEADER_OFFSET
from bookspark.store.wire.entry_batch import EntryBatch
from bookspark.store.wire.header import WireError, decode

CANNOT_READ = "the disk can't read these bytes now; they may be good"


class Stored(NamedTuple):
    """A good batch of a log, or a good block. Position and size in bytes."""

    position: int
    size: int
    ledger_id: int
    first: int
    last: int
    entries: int


class Damage(NamedTuple):
    """Damaged bytes of a file. ``content``: the original bytes, if known."""

    path: str
    position: int
    size: int
    what: str
    content: bytes | None = None


class NotRead(NamedTuple):
    """Bytes of a file that the disk can't read now. They may be good."""

    path: str
    position: int
    size: int


class Torn(NamedTuple):
    """Bytes above the synced note that a crash may have left there."""

    size: int


def check_entry_log(
    file_system: FileSystem, path: str, synced: int, end: int | None = None
) -> Iterator[Stored | Damage | NotRead | Torn]:
    """Check an entry log up to position ``end`` (None: all of it). All bytes up to ``synced`` have to be good. Raises OSError if
    the log can't be opened."""
    uncached(file_system, path)
    with closing(file_system.open(path)) as file:
        size = file.size()
        if size < synced:
            yield Damage(path, size, synced - size, f"the log is shorter than the {synced} bytes that were synced")
        end = size if end is None else min(size, end)
        unread: Unread = []
        if read_padded(file, 0, min(end, len(SCHEMA)), unread) != SCHEMA[:end] and synced > 0:
            if unread:
                yield NotRead(path, 0, len(SCHEMA))
            else:
                yield Damage(path, 0, len(SCHEMA), "the schema at its start is not what was written", SCHEMA)
        for found in read_frames(file, len(SCHEMA), end, synced, unread):
            if isinstance(found, BadBytes):
                after = end if found.end is None else found.end
                if touches(unread, found.start, after):
                    yield NotRead(path, found.start, after - found.start)
                elif found.torn:
                    yield Torn(after - found.start)
                else:
                    yield Damage(path, found.start, after - found.start, "no good batch lies here")
                continue
            frame, content = found
            if (wrong := _wrong_inside(content)) is not None:
                yield Damage(path, frame.position, frame.size, wrong)
                continue
            count = frame.last_entry_id - frame.first_entry_id + 1
            yield Stored(*frame[:5], count)


def check_rewritten_log(
    file_system: FileSystem, path: str, starts: Sequence[int]
) -> Iterator[Stored | Damage | NotRead]:
    """Check a rewritten log. ``starts``: known positions of blocks, ascending. Raises OSError if the log can't be opened."""
    uncached(file_system, path)
    unread: Unread = []
    for found in scan_rewritten(file_system, path, starts, unread):
        if isinstance(found, BadPart):
            not_read = touches(unread, found.position, found.position + found.size)
            yield NotRead(path, *found[:2]) if not_read else Damage(path, *found)
        else:
            block, _ = found
            yield Stored(*block[:5], block.entries)


def check_note(file_system: FileSystem, path: str, number: int, synced: int | None = None) -> Damage | None:
    """Check the note of log ``number``. ``synced``: known synced position of the log. Raises OSError."""
    uncached(file_system, path)
    with closing(SyncedNote(file_system, path, number)) as note:
        noted = note.read()
    if noted is None:
        return Damage(path, 0, 0, CANNOT_READ if note.unread else "the synced note is missing or fails its checks")
    if synced is not None and noted < synced:
        return Damage(path, 0, 0, f"the synced note tells of {noted} bytes, and {synced} were synced")
    return None


def check_control_log(
    file_system: FileSystem, directory: str, *, expected: bool, synced: int = 0
) -> tuple[ControlScan, list[Damage]]:
    """Check a control log and its note. ``expected``: the log has to exist. ``synced``: known synced position of the log. Raises
    OSError."""
    for name in (CONTROL, NOTE_NAME):
        uncached(file_system, f"{directory}/{name}")
    damages: list[Damage] = []
    with closing(ControlLog(file_system, directory)) as control:
        scan = control.scan()
        if not scan.present and expected:
            damages.append(Damage(control.path, 0, 0, "the control log is missing"))
        if scan.present and scan.size and control.note_is_bad():
            damages.append(Damage(control.path, 0, 0, "its synced note is missing or fails its checks"))
        if scan.unread:
            damages += (Damage(control.path, start, end - start, CANNOT_READ) for start, end in scan.unread)
        elif scan.damaged or scan.end < synced:
            damages.append(
                Damage(control.path, scan.end, max(scan.size, synced) - scan.end, "a control record fails its checks")
            )
        return scan, damages


def check_checkpoint(
    file_system: FileSystem, directory: str, parts: Sequence[Part] = ()
) -> tuple[Checkpoint | None, list[Damage]]:
    """Check the checkpoint of a directory with its parts; ``parts``: required parts. The checkpoint is None if no valid
    checkpoint exists. Raises OSError."""
    path = f"{directory}/{CHECKPOINT}"
    for name in file_system.list(directory):
        if name.partition(".")[0] == CHECKPOINT:
            uncached(file_system, f"{directory}/{name}")
    checkpoint = None
    with suppress(OSError):
        checkpoint = read_checkpoint(file_system, directory)
    if checkpoint is None and (parts or file_system.exists(path)):
        return None, [Damage(path, 0, 0, "the index checkpoint fails its checks")]
    return checkpoint, []


def _wrong_inside(frame: memoryview) -> str | None:
    try:
        header, body_crc = decode(frame, HEADER_OFFSET)
        EntryBatch.checked(frame, header, body_crc)
    except WireError as error:
        return str(error)
    return None

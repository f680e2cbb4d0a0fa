"""The loss of power, done on purpose: everything that a dead bookie had not synced is gone.

Law: what a bookie acknowledged as synced is untouched, because its notes are written before its acknowledgements. This is for
tests (``LocalCluster`` calls it after it killed a bookie). A bookie never calls it.
"""

from __future__ import annotations

from bookspark.store.bookie.disk.control_log import control_note, decode_records, last_number
from bookspark.store.bookie.disk.entry_log import EntryLog, log_numbers
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.disk.synced_note import SyncedNote, cut_to_note


def lose_unsynced(directory: str, file_system: FileSystem | None = None) -> None:
    """Cut every log of one directory of a dead bookie back to its synced note. Raises StorageError if a note can't be read, and
    OSError."""
    files = file_system or RealFileSystem()
    for number in log_numbers(files, directory):
        entry_log = EntryLog(files, directory, number)
        cut_to_note(files, entry_log.path, entry_log.note)
    path, note = control_note(files, directory)
    if _is_new(files, path, note):
        note.close()
    else:
        cut_to_note(files, path, note)


def _is_new(files: FileSystem, path: str, note: SyncedNote) -> bool:
    """Was the control log being replaced by a whole new one, which is synced, or has it its first record only? Then the note is
    0, or what lies below its position lacks a write that it covers."""
    position, number = note.read(), note.read_write_number()
    if not position or number is None or not files.exists(path):
        return position == 0
    file = files.open(path)
    content = file.read(position, 0)
    file.close()
    return last_number(decode_records(content, 0)) < number

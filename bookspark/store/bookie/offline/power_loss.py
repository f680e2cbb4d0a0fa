"""A simulated loss of power: all unsynced bytes of a dead bookie are cut.

Law: entries acknowledged as synced survive, because notes are written before acknowledgements. For tests only: ``LocalCluster``
calls it after it killed a bookie.
"""

from __future__ import annotations

from contextlib import closing

from bookspark.store.bookie.disk.control_log import control_note, decode_records, last_number
from bookspark.store.bookie.disk.entry_log import EntryLog, log_numbers
from bookspark.store.bookie.disk.file_system import FileSystem, RealFileSystem
from bookspark.store.bookie.disk.synced_note import SyncedNote, cut_to_note


def lose_unsynced(directory: str) -> None:
    """Cut every log of one directory of a dead bookie back to its synced note. Raises StorageError if a note can't be read, and
    OSError."""
    files = RealFileSystem()
    for number in log_numbers(files, directory):
        entry_log = EntryLog(files, directory, number)
        cut_to_note(files, entry_log.path, entry_log.note)
    path, note = control_note(files, directory)
    if _is_new(files, path, note):
        note.close()
    else:
        cut_to_note(files, path, note)


def _is_new(files: FileSystem, path: str, note: SyncedNote) -> bool:
    """Is the control log new: just rewritten and synced, or with its first record only? Its note is then 0, or still that of
    the former log, which covers a write that the new log lacks."""
    position, number = note.read(), note.read_write_number()
    if not position or number is None or not files.exists(path):
        return position == 0
    with closing(files.open(path)) as file:
        content = file.read(position, 0)
    return last_number(decode_records(content, 0)) < number

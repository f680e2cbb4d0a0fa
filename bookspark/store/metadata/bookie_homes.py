"""Where a bookie lives: the host on which it served last, beside the cookie, which has its directories.

Law: the bookie itself writes it, before it registers, so a bookie that is down can be named with its host. It says where to look
and decides nothing: a bookie is known by the cookie in its directories, and disks may be moved to another host. Record, as JSON::

    bookie_homes/<bookie id>    {"host": "nm1", "directories": ["/disk/bookspark/bookie-1"]}
"""

from __future__ import annotations

import msgspec

from bookspark.errors import MetadataVersionError, UnreadableRecordError
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore

HOMES = "bookie_homes"


class BookieHome(msgspec.Struct, frozen=True):
    """A bookie's host and directories."""

    host: str
    """The name of the host, as it calls itself."""
    directories: tuple[str, ...] = ()
    """Absolute paths on that host."""


learn(BookieHome)


def read_home(store: MetadataStore, bookie_id: str) -> BookieHome | None:
    """Where the bookie lives; None if nobody noted it, or if the note can't be read. Raises MetadataStoreError."""
    found = store.read_record(HOMES, bookie_id)
    try:
        return None if found is None else read_struct(found.value, BookieHome, f"home of {bookie_id}")
    except UnreadableRecordError:
        # The bookie writes it anew when it starts next.
        return None


def note_home(store: MetadataStore, bookie_id: str, home: BookieHome) -> None:
    """Write where the bookie lives, if that is not noted yet. Raises MetadataStoreError."""
    if read_home(store, bookie_id) == home:
        return
    found = store.read_record(HOMES, bookie_id)
    document = proven_struct(home, f"home of {bookie_id}")
    try:
        store.write_record(HOMES, bookie_id, document, None if found is None else found.version)
    except MetadataVersionError:
        # The locks of the directories let one process be the bookie, so this is the answer to a request that was sent twice.
        return

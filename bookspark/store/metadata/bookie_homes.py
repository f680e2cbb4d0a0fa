"""Homes of bookies: a bookie's last host, its directories there, rack and labels, beside its cookie.

Law: the bookie itself writes it, before it registers, so that a stopped bookie can be named with its host, and still counts in
its rack. It is a hint: the cookie in the directories identifies a bookie, and disks may move to another host. Record, as JSON::

    bookie_homes/<bookie id>    {"host": "nm1", "directories": ["/disk/bookspark/bookie-1"], "rack": "r1", "labels": {}}
"""

from __future__ import annotations

import msgspec

from bookspark.errors import MetadataVersionError, UnreadableRecordError
from bookspark.store.metadata.records.documents import learn, proven_struct, read_struct
from bookspark.store.metadata.store import MetadataStore

HOMES = "bookie_homes"


class BookieHome(msgspec.Struct, frozen=True):
    host: str
    directories: tuple[str, ...] = ()
    rack: str = ""
    labels: dict[str, str] = {}


learn(BookieHome)


def read_home(store: MetadataStore, bookie_id: str) -> BookieHome | None:
    """None without a readable note. Raises MetadataStoreError."""
    found = store.read_record(HOMES, bookie_id)
    try:
        return None if found is None else read_struct(found.value, BookieHome, f"home of {bookie_id}")
    except UnreadableRecordError:
        # The bookie rewrites the record at its next start.
        return None


def note_home(store: MetadataStore, bookie_id: str, home: BookieHome) -> None:
    """Write the bookie's home, if it changed. Raises MetadataStoreError."""
    if read_home(store, bookie_id) == home:
        return
    found = store.read_record(HOMES, bookie_id)
    document = proven_struct(home, f"home of {bookie_id}")
    try:
        store.write_record(HOMES, bookie_id, document, None if found is None else found.version)
    except MetadataVersionError:
        # The directories' locks permit one process for a bookie, so this answers a request that was sent twice.
        return

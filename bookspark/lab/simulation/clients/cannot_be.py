"""What can't be: events that nothing in the world leads to, for a machine that is handed one all the same.

Law: an answer of a bookie that was never asked, to what was never sent, or with a content that no bookie can give; an answer of
the metadata store or of placement that nobody waits for, or that does not fit the question; an append that can't be part of the
ledger. Nothing follows from such an event: the machine raises, or ignores it, and is what it was before.

The list is made of what the writer sent and was told, not of what its machine would check.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from bookspark.errors import MetadataStoreError, NotEnoughBookiesError
from bookspark.lab.simulation.clients.client import Client
from bookspark.protocol.ledger.actions import (
    AddAnswered,
    BookiesChosen,
    MetadataConflict,
    MetadataFailed,
    MetadataRead,
    MetadataWritten,
    NoBookies,
    ReadMetadata,
    SyncAnswered,
    SyncReport,
)
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.ledger.sync_cursor import Assignment
from bookspark.protocol.writing.writer_events import Append, ExplicitLacAnswered

STRANGER = "a stranger"
_OTHER = "another stranger"
_YES, _FENCED, _SILENT = Positive(), Unknown(UnknownReason.FENCED), Unknown(UnknownReason.TIMEOUT)
_VERSION = 1000


def for_a_writer(client: Client, pushed: int) -> list[Any]:
    """Events that can't be, for the machine of a writer that appended everything up to ``pushed``."""
    metadata: LedgerMetadata = client.machine.metadata
    volatile = metadata.ledger_type is LedgerType.VD_JOURNAL
    striped = metadata.ensemble_size > metadata.write_quorum
    return [
        *_of_bookies(client.machine, metadata, pushed, volatile),
        *_of_the_store(client, metadata),
        *_of_placement(client, metadata),
        Append(0, 0),
        Append(1, -1),
        *([Append(2, 2)] if striped else []),
    ]


def _of_bookies(machine: Any, metadata: LedgerMetadata, pushed: int, volatile: bool) -> Iterator[Any]:
    last = pushed + 1
    yield ExplicitLacAnswered(STRANGER, _SILENT, 0.0)
    for bookie in metadata.last_fragment.ensemble:
        mine = machine._adds.durability.grouped((bookie,))[0][0] if volatile else Assignment(0)
        said, ahead = SyncReport(NO_ENTRY, 1, mine), SyncReport(mine.next_held(last), 1, mine)
        ack = said if volatile else None
        yield AddAnswered(bookie, last, last, _YES, ack)
        yield AddAnswered(bookie, last, last, _FENCED)
        yield SyncAnswered(bookie, _YES, ahead)
        yield SyncAnswered(bookie, _YES)
        yield SyncAnswered(bookie, _FENCED, said)
        for add in machine.cursors.pending.values():
            first, end = add.first, add.last
            yield AddAnswered(STRANGER, first, end, _FENCED)
            yield AddAnswered(STRANGER, first, end, _YES, ack)
            yield AddAnswered(bookie, first, end + 1, _YES, ack)
            yield AddAnswered(bookie, first, end, _FENCED, said)
            yield AddAnswered(bookie, first, end, _YES, None if volatile else said)
            if volatile:
                yield AddAnswered(bookie, first, end, _YES, ahead)
    if not volatile:
        yield SyncAnswered(metadata.last_fragment.ensemble[0], _FENCED)
    yield SyncAnswered(STRANGER, _FENCED)


def _of_the_store(client: Client, metadata: LedgerMetadata) -> Iterator[Any]:
    reads = isinstance(client.store, ReadMetadata)
    if not reads:
        yield MetadataRead(metadata, _VERSION)
    if client.store is None or reads:
        yield MetadataWritten(_VERSION)
        yield MetadataConflict()
    if client.store is None and client.choosing is None:
        yield MetadataFailed(MetadataStoreError("nobody asked"))
    if reads:
        yield MetadataRead(replace(metadata, ledger_id=metadata.ledger_id + 1), _VERSION)


def _of_placement(client: Client, metadata: LedgerMetadata) -> Iterator[Any]:
    if client.choosing is None:
        yield BookiesChosen((STRANGER,))
        yield NoBookies(NotEnoughBookiesError("nobody asked"))
        return
    wanted = len(client.choosing.replaced)
    stays = [bookie for bookie in metadata.last_fragment.ensemble if bookie not in client.choosing.replaced]
    yield BookiesChosen((STRANGER,) * (wanted + 1))
    yield BookiesChosen((STRANGER, _OTHER)[: wanted - 1] if wanted < 3 else ())
    if wanted > 1:
        yield BookiesChosen((STRANGER,) * wanted)
    if stays:
        yield BookiesChosen((stays[0], *(f"{STRANGER} {i}" for i in range(wanted - 1))))

"""The layout of a world's state, and of a move.

Law: a state is a value, a tuple of small numbers from the world's tables (``values.Table``)::

    metadata │ crashes left │ losses left │ duplicates left │ departures left │ second ledger │ client … │ slot …

The second ledger's number is 0 in a world with one ledger (``second_ledger``).
"""

from __future__ import annotations

from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

State = tuple[int, ...]

METADATA, CRASHES, LOSSES, DUPLICATES, DEPARTURES, SECOND, CLIENTS = range(7)


class Move(NamedTuple):
    """A single step of the world. ``place`` is the index in the state of a client, a slot or the metadata. ``argument`` is
    the number of an event or a message."""

    kind: str
    place: int
    argument: int = 0


class Record(NamedTuple):
    """The ledger's record in the metadata store. For a deleted ledger, ``metadata`` is its last version."""

    metadata: LedgerMetadata
    version: int
    deleted: bool = False

"""The layout of a world's state, and what a move is.

Law: a state is a value, a tuple of small numbers from the world's tables (``values.Table``)::

    metadata │ crashes left │ losses left │ duplicates left │ departures left │ second ledger │ client … │ slot …

The number of the second ledger's state is 0 where there is none (``ledgers.second_ledger``).
"""

from __future__ import annotations

from typing import NamedTuple

from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata

State = tuple[int, ...]

METADATA, CRASHES, LOSSES, DUPLICATES, DEPARTURES, SECOND, CLIENTS = range(7)


class Move(NamedTuple):
    """One thing that happens. ``place`` is that of a client, of a slot or of the metadata in the state. ``argument`` is the
    number of an event or of a message."""

    kind: str
    place: int
    argument: int = 0


class Record(NamedTuple):
    """The ledger's record in the metadata store. If it was deleted, ``metadata`` is the last one."""

    metadata: LedgerMetadata
    version: int
    deleted: bool = False

"""A record together with its version in the metadata store, and the change of a record by compare-and-set."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Generic, NamedTuple, Protocol, TypeVar

from bookspark.errors import MetadataVersionError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.metadata.short_waits import patience_seconds
from bookspark.support.threads import BackOff

Value = TypeVar("Value")
Value_co = TypeVar("Value_co", covariant=True)


class Versioned(NamedTuple, Generic[Value]):
    """A record with the version that a compare-and-set on it must name."""

    value: Value
    version: int


class Record(NamedTuple):
    """A small record: its document, its version, and the time of its last change."""

    value: bytes
    version: int
    changed_ms: int
    """By the store's clock (ZooKeeper's), in ms since 1970: the ages of two records compare, whatever the clients' clocks say."""


class RecordVersion(NamedTuple):
    """A small record at a version: a write may depend on it, in one transaction."""

    kind: str
    name: str
    version: int


VersionedLedger = Versioned[LedgerMetadata]
"""The metadata of a ledger with the version of its record."""

PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.004, 2.0
"""Longest first pause after a lost write, and longest pause of all."""
CONTENDED_SECONDS_MAX = 300.0
"""Time for all attempts of one change, and their pauses."""


class _HasVersion(Protocol[Value_co]):
    @property
    def value(self) -> Value_co: ...

    @property
    def version(self) -> int: ...


def compare_and_set(
    what: str,
    read: Callable[[], _HasVersion[Value] | None],
    change: Callable[[Value | None], Value | None],
    write: Callable[[Value, int | None], object],
) -> Value | None:
    """Change a record by compare-and-set: read it, change it, write it; begin anew after a pause if another client wrote it in
    between. One of several simultaneous clients succeeds; drawn pauses spread the others.

    ``change`` gets the value (None: no record) and returns the new value, or None to leave the record. ``write`` gets the new
    value and the version that was read (None: create); it returns False or raises MetadataVersionError if it lost. Returns the
    value that stands. Raises MetadataVersionError if the writes of CONTENDED_SECONDS_MAX were lost (less within
    ``waits_at_most``), and the errors of the three functions."""
    deadline = time.monotonic() + min(CONTENDED_SECONDS_MAX, patience_seconds())
    pauses = BackOff(PAUSE_SECONDS, PAUSE_SECONDS_MAX, drawn=random.uniform)
    while True:
        found = read()
        value = change(None if found is None else found.value)
        if value is None:
            return None if found is None else found.value
        try:
            if write(value, None if found is None else found.version) is not False:
                return value
        except MetadataVersionError:
            pass
        pause = pauses.next()
        if time.monotonic() + pause > deadline:
            raise MetadataVersionError(f"{what}: other clients changed it whenever it was to be changed; try again")
        time.sleep(pause)

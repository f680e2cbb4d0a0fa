"""One ledger of a cluster of Apache BookKeeper's, copied into one of ours under its own id.

Law: only closed ledgers are copied: what an open one holds is its writer's, or its recovery's, to say. The copy has the payloads
of all entries under their ids, the quorums, the digest type, the password and the custom metadata. It counts as copied only after
all of it was read back from our bookies and is the same, payload by payload. What fails is an error that says what to do; a copy
that was broken off is never taken for a whole one.

A ledger that is here already is compared in the same way, so the same copy can be asked for again. One that a copy was broken off
at is finished, or deleted and copied anew (``copying``). Any other ledger that is here stays as it is.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from bookspark import errors
from bookspark.operations.moving.reads import EntryReader
from bookspark.operations.moving.source import Source
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client.bookkeeper import BookKeeper

log = logging.getLogger(__name__)


# -- A copy that was broken off: its process died, or was halted, before the copy was whole and read back.
#
# Law: a copy is known by its label, which it has from its beginning until it was compared, and which names the cluster that it
# comes from. Nothing else is ever taken away. A broken-off copy is recovered first, so its writer, should it still live, adds
# nothing more. If it has all entries then, it is only to be compared. Otherwise it is deleted and its entries are collected at
# every bookie, because its id is used again; so every bookie has to be up. Stale entries of a bookie that nobody knew of would
# be the same entries: what is copied is closed there and never changes.
#
# Of several that find the same broken-off copy one deletes it: who makes the record ``copies/<ledger>.<token>``, and finds the
# copy still there then. The token is the one that each ledger's record has from its creation. The record goes when the copy is
# gone. So nobody who looked long ago deletes the copy that was made in its place.
#
# Source: ours; BookKeeper has no such job.


LABEL = "bookspark.copy_from"
_RECORDS = "copies"
_COLLECT_SECONDS = 600.0
_ATTEMPTS = 5


def labelled(metadata: LedgerMetadata, source: str) -> dict[str, bytes]:
    """The custom metadata of a copy that is being made."""
    return {**metadata.custom_metadata, LABEL: source.encode()}


def is_broken_off(here: LedgerMetadata, source: str) -> bool:
    """Is it a copy from this cluster that was never compared?"""
    return here.custom_metadata.get(LABEL) == source.encode()


def recovered(bookkeeper: BookKeeper, there: LedgerMetadata) -> LedgerMetadata:
    """The copy of ``there`` after its recovery, by which its writer is fenced. Raises as ``BookKeeper.open_ledger``."""
    with bookkeeper.open_ledger(there.ledger_id, there.password):
        return bookkeeper.get_ledger_metadata(there.ledger_id)


def delete(bookkeeper: BookKeeper, here: LedgerMetadata) -> None:
    """Delete a broken-off copy, and have the bookies let go of its entries.

    Raises BookieError if a bookie is not up, and LedgerExistsError if somebody else deletes it or was stopped while he did.
    """
    store, ledger_id = bookkeeper.metadata, here.ledger_id
    away = sorted(set(store.list_cookies()) - store.bookies().keys())
    if away:
        raise errors.BookieError(
            f"the copy of ledger {ledger_id} was broken off, and {', '.join(away)} may hold entries of it and is not up; start "
            "it, or decommission it, and run the job again"
        )
    name = f"{ledger_id}.{here.c_token}"
    try:
        # Whose record it is has to be known if the answer is lost.
        store.write_record(_RECORDS, name, secrets.token_bytes(16), None)
    except errors.MetadataVersionError as error:
        raise _by_another(ledger_id) from error
    if not _is_there(bookkeeper, here):
        store.delete_record(_RECORDS, name)
        raise _by_another(ledger_id)
    log.warning("the copy of ledger %d was broken off; it is deleted and made anew", ledger_id)
    bookkeeper.delete_ledger(ledger_id)
    for bookie_id in store.bookies():
        bookkeeper.collect_now(bookie_id, _COLLECT_SECONDS)
    store.delete_record(_RECORDS, name)


def finish(bookkeeper: BookKeeper, ledger_id: int) -> None:
    """Take the label away: the copy is whole, and the same. Raises MetadataVersionError if the record changes all the time."""
    store = bookkeeper.metadata
    for attempt in range(_ATTEMPTS):
        found = store.read_ledger(ledger_id)
        labels = {name: value for name, value in found.value.custom_metadata.items() if name != LABEL}
        try:
            store.write_ledger(replace(found.value, custom_metadata=labels), found.version)
            return
        except errors.MetadataVersionError:
            # Autorecovery may have changed an ensemble.
            if attempt == _ATTEMPTS - 1:
                raise


def _is_there(bookkeeper: BookKeeper, here: LedgerMetadata) -> bool:
    """Is the ledger of this id still the one that ``here`` tells of?"""
    try:
        return bookkeeper.get_ledger_metadata(here.ledger_id).c_token == here.c_token
    except errors.NoSuchLedgerError:
        return False


def _by_another(ledger_id: int) -> errors.LedgerExistsError:
    return errors.LedgerExistsError(
        f"the copy of ledger {ledger_id} was broken off, and another run deletes it; if none is at work, that one was stopped: "
        f"`bookspark ledger delete {ledger_id}`, and run the job again"
    )


# --


_SECONDS = 120.0


class Copied(NamedTuple):
    """A ledger that is in both clusters, and the same."""

    ledger_id: int
    entries: int
    byte_count: int
    """Of the payloads."""
    was_there: bool
    """Was it there before?"""


class _Sum:
    """What some payloads are: how many, how long, and a digest over each one's length and bytes."""

    def __init__(self) -> None:
        self.entries = self.byte_count = 0
        self._digest = hashlib.sha256()

    def take(self, payloads: Iterable[bytes]) -> None:
        for payload in payloads:
            self.entries += 1
            self.byte_count += len(payload)
            self._digest.update(len(payload).to_bytes(8, "big"))
            self._digest.update(payload)

    def told(self) -> tuple[int, int, str]:
        return self.entries, self.byte_count, self._digest.hexdigest()


def copy_ledger(source: Source, reader: EntryReader, bookkeeper: BookKeeper, ledger_id: int) -> Copied:
    """Copy a ledger, or find that it is here and the same.

    Raises:
        NoSuchLedgerError: the source has none with this id.
        ReadError: it is not closed, or an entry can't be read from any of its bookies.
        LedgerExistsError: another ledger has this id here, or another run copies it.
        BookieError: a copy was broken off, and a bookie is away that may hold entries of it.
        BookKeeperError: as the writing and reading of a ledger.
    """
    metadata = source.ledger(ledger_id)
    if not metadata.closed:
        raise errors.ReadError(
            f"ledger {ledger_id} is {metadata.state.value} there; closed ledgers are copied: let its writer close it, or have it "
            f"recovered (bookkeeper shell readledger -ledgerid {ledger_id} -force-recovery)"
        )
    wrong = errors.DataLossError(f"the copy of ledger {ledger_id} is not what was copied; delete it, and copy it again")
    try:
        here = bookkeeper.get_ledger_metadata(ledger_id)
    except errors.NoSuchLedgerError:
        there = _written(reader, bookkeeper, metadata, source.identity)
    else:
        if is_broken_off(here, source.identity):
            there = _gone_on(source, reader, bookkeeper, metadata)
            _compare(bookkeeper, metadata, there, wrong)
            finish(bookkeeper, ledger_id)
            return Copied(ledger_id, there.entries, there.byte_count, was_there=False)
        if not here.closed or here.last_entry_id != metadata.last_entry_id:
            raise _another(ledger_id, f"it is {here.state.value}, and its last entry is {here.last_entry_id}")
        there = _read(reader, metadata)
        _compare(bookkeeper, metadata, there, _another(ledger_id, "its entries are others"))
        return Copied(ledger_id, there.entries, there.byte_count, was_there=True)
    _compare(bookkeeper, metadata, there, wrong)
    finish(bookkeeper, ledger_id)
    return Copied(ledger_id, there.entries, there.byte_count, was_there=False)


def _gone_on(source: Source, reader: EntryReader, bookkeeper: BookKeeper, metadata: LedgerMetadata) -> _Sum:
    """Make a copy whole that was broken off."""
    here = recovered(bookkeeper, metadata)
    if here.last_entry_id == metadata.last_entry_id:
        return _read(reader, metadata)
    delete(bookkeeper, here)
    return _written(reader, bookkeeper, metadata, source.identity)


def _read(reader: EntryReader, metadata: LedgerMetadata) -> _Sum:
    """All of it there."""
    there = _Sum()
    for entries in reader.entries(metadata):
        there.take(entry.payload for entry in entries)
    return there


def _written(reader: EntryReader, bookkeeper: BookKeeper, metadata: LedgerMetadata, identity: str) -> _Sum:
    there = _Sum()
    chunks = reader.entries(metadata)
    # A ledger that can't be read from its beginning on leaves nothing here.
    first = next(chunks, [])
    with bookkeeper.create_ledger_adv(
        metadata.ledger_id,
        metadata.ensemble_size,
        metadata.write_quorum,
        metadata.ack_quorum,
        metadata.digest_type,
        metadata.password,
        labelled(metadata, identity),
    ) as ledger:
        entries = first
        while entries:
            appended = [ledger.append_at_async(entry.entry_id, entry.payload) for entry in entries]
            there.take(entry.payload for entry in entries)
            # Read on meanwhile.
            entries = next(chunks, [])
            for each in appended:
                each.result(_SECONDS)
    return there


def _compare(bookkeeper: BookKeeper, metadata: LedgerMetadata, there: _Sum, wrong: errors.BookKeeperError) -> None:
    """Read all of it here. Raises ``wrong`` if it is not the same."""
    here = _Sum()
    if there.entries:
        with bookkeeper.open_ledger_no_recovery(metadata.ledger_id, metadata.password) as ledger:
            here.take(entry.payload for entry in ledger.read(0, metadata.last_entry_id))
    if here.told() != there.told():
        raise wrong


def _another(ledger_id: int, what: str) -> errors.LedgerExistsError:
    return errors.LedgerExistsError(
        f"ledger {ledger_id} is here already, and {what}: it is another one, or a copy that an earlier version broke off. "
        f"If it is that: `bookspark ledger delete {ledger_id}`, `bookspark bookie collect` for each bookie, then copy it again"
    )

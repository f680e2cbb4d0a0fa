"""Copy of one ledger from an Apache BookKeeper cluster, under the same ledger id.

Law: only closed ledgers are copied. The copy has the same payloads, entry ids, quorums, digest type, password and custom
metadata. It counts as copied only after every payload was read back here and is equal. Each failure is an error with its remedy.

A second run compares a ledger that is here already. It finishes an interrupted copy, or deletes it and copies again. Every other
ledger here stays unchanged.
"""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from bookspark import errors
from bookspark.operations.moving.reads import EntryReader
from bookspark.operations.moving.source import Source
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client.bookkeeper import BookKeeper
from bookspark.store.metadata.records.versioned import compare_and_set

log = logging.getLogger(__name__)


# -- Interrupted copies: the copying process ended before the copy was complete and compared.
#
# Law: a copy carries a label with the source cluster's identity until its comparison. Only labelled ledgers are deleted. Ledger
# recovery comes first and fences the copy's writer, which may still live. A copy with all entries is then only compared. Any
# other is deleted, and every bookie collects its entries, because the id is used again; so every bookie must be up. Stale entries
# on an unknown bookie are harmless: the source ledger is closed, so they equal the new ones.
#
# Only the creator of the record ``copies/<ledger>.<token>`` (token: of the ledger's creation) deletes, and only if the copy is
# still there afterwards. The record is deleted last. So a run with an old view never deletes the copy's replacement.


LABEL = "bookspark.copy_from"
_RECORDS = "copies"
_COLLECT_SECONDS = 600.0


def labelled(metadata: LedgerMetadata, source: str) -> dict[str, bytes]:
    """The custom metadata of an unfinished copy."""
    return {**metadata.custom_metadata, LABEL: source.encode()}


def is_broken_off(here: LedgerMetadata, source: str) -> bool:
    """Is the ledger an unfinished copy from this source cluster?"""
    return here.custom_metadata.get(LABEL) == source.encode()


def recovered(bookkeeper: BookKeeper, there: LedgerMetadata) -> LedgerMetadata:
    """Recover the copy of ``there``, which fences its writer, and return its metadata. Raises as ``BookKeeper.open_ledger``."""
    with bookkeeper.open_ledger(there.ledger_id, there.password):
        return bookkeeper.get_ledger_metadata(there.ledger_id)


def delete(bookkeeper: BookKeeper, here: LedgerMetadata) -> None:
    """Delete an interrupted copy and collect its entries on all bookies.

    Raises BookieError if a bookie is down, LedgerExistsError if another run deletes the copy or was stopped during the deletion.
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
        # The random value identifies this run's record if the reply is lost.
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
    """Remove the label of a complete, compared copy. Raises MetadataVersionError if each attempt meets a changed record."""
    store = bookkeeper.metadata

    def without_label(found: LedgerMetadata | None) -> LedgerMetadata:
        assert found is not None
        labels = {name: value for name, value in found.custom_metadata.items() if name != LABEL}
        return replace(found, custom_metadata=labels)

    def write(found: LedgerMetadata, version: int | None) -> int:
        assert version is not None
        return store.write_ledger(found, version)

    # Autorecovery may change an ensemble meanwhile.
    compare_and_set(f"ledger {ledger_id}", partial(store.read_ledger, ledger_id), without_label, write)


def _is_there(bookkeeper: BookKeeper, here: LedgerMetadata) -> bool:
    """Does the ledger id still name the ledger ``here``?"""
    try:
        return bookkeeper.get_ledger_metadata(here.ledger_id).c_token == here.c_token
    except errors.NoSuchLedgerError:
        return False


def _by_another(ledger_id: int) -> errors.LedgerExistsError:
    return errors.LedgerExistsError(
        f"the copy of ledger {ledger_id} was broken off, and another run deletes it; if none is at work, that one was stopped: "
        f"`bookspark ledger delete {ledger_id}`, and run the job again"
    )


# -- Copies of ledgers


_SECONDS = 120.0


class Copied(NamedTuple):
    """A ledger that is equal in both clusters."""

    ledger_id: int
    entries: int
    byte_count: int
    was_there: bool
    """The ledger was here before this run."""


class _Sum:
    """Count, bytes and digest of payloads; the digest covers each payload's length and bytes."""

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
    """Copy a ledger, or compare it with the ledger that is here already.

    Raises:
        NoSuchLedgerError: the source has no ledger with this id.
        ReadError: the source ledger is not closed, or no bookie there returns one of its entries.
        LedgerExistsError: another ledger has this id here, or another run copies it.
        BookieError: an interrupted copy must be deleted, and a bookie that may hold its entries is down.
        DataLossError: the copy differs from the source.
        BookKeeperError: errors of the writing and reading of a ledger.
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
    """Complete an interrupted copy."""
    here = recovered(bookkeeper, metadata)
    if here.last_entry_id == metadata.last_entry_id:
        return _read(reader, metadata)
    delete(bookkeeper, here)
    return _written(reader, bookkeeper, metadata, source.identity)


def _read(reader: EntryReader, metadata: LedgerMetadata) -> _Sum:
    """Read the whole source ledger."""
    there = _Sum()
    for entries in reader.entries(metadata):
        there.take(entry.payload for entry in entries)
    return there


def _written(reader: EntryReader, bookkeeper: BookKeeper, metadata: LedgerMetadata, identity: str) -> _Sum:
    there = _Sum()
    chunks = reader.entries(metadata)
    # Read before the creation, so an unreadable source ledger leaves nothing here.
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
            # Read the next chunk while the appends are pending.
            entries = next(chunks, [])
            for each in appended:
                each.result(_SECONDS)
    return there


def _compare(bookkeeper: BookKeeper, metadata: LedgerMetadata, there: _Sum, wrong: errors.BookKeeperError) -> None:
    """Read the whole copy. Raises ``wrong`` if it differs."""
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

"""A copy that was broken off: its process died, or was halted, before the copy was whole and read back.

Law: a copy is known by its label, which it has from its beginning until it was compared, and which names the cluster that it
comes from. Nothing else is ever taken away. A broken-off copy is recovered first, so its writer, should it still live, adds
nothing more. If it has all entries then, it is only to be compared. Otherwise it is deleted and its entries are collected at
every bookie, because its id is used again; so every bookie has to be up. Stale entries of a bookie that nobody knew of would be
the same entries: what is copied is closed there and never changes.

Of several that find the same broken-off copy one deletes it: who makes the record ``copies/<ledger>.<token>``, and finds the copy
still there then. The token is the one that each ledger's record has from its creation. The record goes when the copy is gone. So
nobody who looked long ago deletes the copy that was made in its place.

Source: ours; BookKeeper has no such job.
"""

from __future__ import annotations

import logging
import secrets
from dataclasses import replace

from bookspark import errors
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client.bookkeeper import BookKeeper

LABEL = "bookspark.copy_from"
_RECORDS = "copies"
_COLLECT_SECONDS = 600.0
_ATTEMPTS = 5

log = logging.getLogger(__name__)


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

"""Decommission: other bookies take over a bookie's copies for good, then its cookie is removed.

Law: the bookie must be stopped first, so that it gets no new entries. The call is refused if that bookie alone has entries of
a closed fragment. The cookie is removed last, when no ledger names the bookie any more; without it the bookie can't start.
Replication workers copy; errors name their failures. If only entries are left that no other bookie can supply, the call ends
and names them by range. The bookie itself may still have them, so it stays named for these and keeps its cookie, as it does
while an undecodable record may name it. The call may be interrupted and repeated at any time.

Source: ``BookieDecommission`` of BookKeeper.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from bookspark.errors import BookieError, EntriesNotCopiedError, InvalidCookieError, MetadataVersionError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.replication_plan import repairs, unreadable
from bookspark.protocol.repair.underreplication_task import Mark, Reason, Task
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.records.names import BookieId
from bookspark.store.metadata.records.versioned import RecordVersion
from bookspark.support.arguments import WaitSeconds, checked

_POLL_SECONDS = 1.0
_NAMED_MAX = 5


class DecommissionProgress(NamedTuple):
    ledgers: int
    ledgers_left: int
    problem: str = ""
    """Why a remaining ledger could not be repaired yet, or ""."""


@checked
def decommission(
    bookkeeper: BookKeeper,
    bookie_id: BookieId,
    *,
    timeout_seconds: WaitSeconds,
    progress: Callable[[DecommissionProgress], None] = lambda _: None,
    under: RecordVersion | None = None,
) -> None:
    """Return once no ledger names the bookie and its cookie is removed. ``progress`` is called about once a second. ``under``: a
    record; the cookie stays if it has changed.

    Raises InvalidCookieError for an unknown bookie. Raises BookieError if the bookie runs, if entries would be lost, if a
    ledger's record can't be decoded, or after ``timeout_seconds``; then repeat the call to go on. Raises EntriesNotCopiedError
    if all other entries are copied and no other bookie can supply the rest.
    """
    store = bookkeeper.metadata
    registered = store.bookies()
    if bookie_id in registered:
        raise BookieError(f"{bookie_id} is registered, at {registered[bookie_id].address}; stop it first")
    if store.read_cookie(bookie_id) is None:
        raise InvalidCookieError(f"there is no bookie {bookie_id}; `bookspark cookie list` shows those that there are")
    unreadable: dict[int, str] = {}
    named = naming(bookkeeper, bookie_id, store.list_ledgers(), unreadable)
    _refuse_if_alone(bookie_id, named, registered.keys())
    deadline, total = time.monotonic() + timeout_seconds, len(named)
    tasks = store.underreplication
    before = {task.ledger_id: task.attempts for one in named if (task := tasks.task(one.ledger_id))}
    while True:
        tasks.mark(Mark(one.ledger_id, {bookie_id: Reason.LOST}, f"{bookie_id} is decommissioned") for one in named)
        while named:
            found = [tasks.task(one.ledger_id) for one in named]
            problem = next((f"ledger {task.ledger_id}: {task.error}" for task in found if task and task.error), "")
            progress(DecommissionProgress(total, len(named), problem))
            # A task that is made anew counts its attempts anew; with as many as before it counts at its next attempt.
            tried = [task for task in found if task and task.attempts not in (0, before.get(task.ledger_id))]
            if len(tried) == len(named) and all(map(partial(_nothing_else, bookie_id), tried, named)):
                raise _not_given(bookie_id, total, tried)
            if time.monotonic() > deadline:
                why = f" ({problem})" if problem else "; is autorecovery running and enabled?"
                raise BookieError(
                    f"{len(named)} of {total} ledgers still name {bookie_id}{why} Call this again to go on"
                )
            threading.Event().wait(_POLL_SECONDS)
            named = naming(bookkeeper, bookie_id, [one.ledger_id for one in named], unreadable)
        # A client may have chosen the bookie while it was stopping.
        unreadable = {}
        named = naming(bookkeeper, bookie_id, store.list_ledgers(), unreadable)
        if not named:
            break
    refuse_unreadable(bookie_id, unreadable)
    progress(DecommissionProgress(total, 0))
    _remove_cookie(bookkeeper, bookie_id, under)


def _nothing_else(bookie_id: str, task: Task, metadata: LedgerMetadata) -> bool:
    """True if no other bookie can supply the entries for which the bookie is named."""
    given_up = [(one.first, one.last) for one in task.missed if one.lost or one.unreached == (bookie_id,)]
    if len(given_up) < len(task.missed):
        return False
    return all(
        last is not None and any(low <= last and fragment.first_entry_id <= high for low, high in given_up)
        for fragment, last in metadata.fragment_ranges()
        if bookie_id in fragment.ensemble
    )


def _not_given(bookie_id: str, total: int, tasks: Sequence[Task]) -> EntriesNotCopiedError:
    entries = [(task.ledger_id, one) for task in tasks for one in task.missed]
    told = "; ".join(f"ledger {ledger_id}: {one}" for ledger_id, one in entries)
    return EntriesNotCopiedError(
        f"{len(tasks)} of {total} ledgers still name {bookie_id}, for entries that no other bookie gives: {told}. Everything "
        f"else is copied. If {bookie_id} still has them, start it again: autorecovery copies them, then call this again. "
        "Otherwise they are lost: delete these ledgers, or leave the bookie named",
        entries,
    )


def naming(
    bookkeeper: BookKeeper, bookie_id: str, ledger_ids: Iterable[int], unreadable: dict[int, str]
) -> list[LedgerMetadata]:
    """Metadata of the ledgers that name the bookie now, in any fragment. Reasons of undecodable records go into
    ``unreadable``."""
    every = bookkeeper.metadata.read_ledgers(ledger_ids, unreadable)
    return [one for one, _ in every if any(bookie_id in fragment.ensemble for fragment in one.fragments)]


def refuse_unreadable(bookie_id: str, unreadable: Mapping[int, str]) -> None:
    """Raise BookieError if undecodable ledgers may name the bookie."""
    if unreadable:
        ledger_id, why = next(iter(unreadable.items()))
        more = f", and so are {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        raise BookieError(
            f"{bookie_id} keeps its cookie: ledger {ledger_id} may name it, and its record is unreadable ({why}){more}; "
            "delete such a ledger, restore its record, or upgrade Bookspark, and call this again"
        )


def _refuse_if_alone(bookie_id: str, named: Iterable[LedgerMetadata], registered: Iterable[str]) -> None:
    alive = set(registered)
    alone = []
    for metadata in named:
        members = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        if any(next(unreadable(metadata, repair), None) for repair in repairs(metadata, members - alive)):
            alone.append(str(metadata.ledger_id))
    if alone:
        more = f" and {len(alone) - _NAMED_MAX} more" if len(alone) > _NAMED_MAX else ""
        raise BookieError(
            f"ledgers {', '.join(alone[:_NAMED_MAX])}{more} have entries of which {bookie_id} and bookies that are down "
            f"hold the only copies; start {bookie_id} or the other bookies, or delete these ledgers"
        )


def _remove_cookie(bookkeeper: BookKeeper, bookie_id: str, under: RecordVersion | None) -> None:
    cookie = bookkeeper.metadata.read_cookie(bookie_id)
    if cookie is None:
        return
    try:
        bookkeeper.metadata.delete_cookie(bookie_id, cookie.version, under)
    except MetadataVersionError as error:
        raise BookieError(
            f"{bookie_id} keeps its cookie: {error}; see that it is stopped, and call this again"
        ) from error

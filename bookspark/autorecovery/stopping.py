"""Whether bookies can be stopped, by what the metadata store and the other bookies say now. No Spark is needed, no entry is read.

Law: ``protocol.repair.stopping`` decides. Whoever does not answer counts as down, and a ledger whose record can't be decoded is a
danger, because nobody knows whether it names the bookie. A bookie that says that it lacks something, or that a task of
autorecovery says it of, is asked for the list of all that it holds. The metadata of all ledgers is read, a few thousand records
a second.

What this can't see, the exact audit sees (``bookspark safe-to-stop``): a copy that is missing and that nobody has noticed yet; an
entry that was acknowledged a moment ago, and is still on its way to the last of its bookies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from bookspark.arguments import check_names
from bookspark.autorecovery.held_ranges import Ranges, held_ranges
from bookspark.client import BookKeeper
from bookspark.errors import ReadError
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.audit_plan import absent
from bookspark.protocol.repair.stopping import Danger, Known, dangers_of
from bookspark.protocol.repair.underreplication_task import Reason


def dangers(bookkeeper: BookKeeper, bookies: Sequence[str]) -> list[Danger]:
    """What would break if ``bookies`` (ids) were stopped; nothing: they can be. Raises ConfigurationError for a bookie that the
    cluster does not know, and MetadataStoreError."""
    store = bookkeeper.metadata
    registered = store.bookies()
    check_names(bookies, sorted({*registered, *store.list_cookies()}), "bookie")
    unreadable: dict[int, str] = {}
    stopped = set(bookies)
    named = [
        one
        for one, _ in store.read_ledgers(store.list_ledgers(), unreadable)
        if any(not stopped.isdisjoint(fragment.ensemble) for fragment in one.fragments)
    ]
    others = {bookie for one in named for fragment in one.fragments for bookie in fragment.ensemble} - stopped
    peers = _Peers(bookkeeper, others & registered.keys())
    peers.ask(_marked(bookkeeper, [one.ledger_id for one in named], unreadable))
    found = [
        danger for one in named for danger in dangers_of(one, stopped, peers.known(one, others - registered.keys()))
    ]
    return found + [Danger(ledger_id, None, None, None, 0, why) for ledger_id, why in sorted(unreadable.items())]


def _marked(bookkeeper: BookKeeper, ledger_ids: Sequence[int], unreadable: dict[int, str]) -> set[str]:
    """The bookies that lack something by a task of one of these ledgers."""
    store = bookkeeper.metadata.underreplication
    there = sorted(set(store.list_tasks()) & set(ledger_ids))
    return {bookie for task in store.tasks(there, unreadable) for bookie in task.of(Reason.LACKS)}


class _Peers:
    """The bookies that are to stay, as they answer."""

    def __init__(self, bookkeeper: BookKeeper, bookies: Iterable[str]) -> None:
        self._bookkeeper = bookkeeper
        self._bookies = sorted(bookies)
        self._silent: set[str] = set()
        self._held: dict[str, Mapping[int, Ranges]] = {}
        """What those hold that lack something, by bookie and ledger."""
        self._limbo: dict[str, set[int]] = defaultdict(set)

    def ask(self, doubtful: set[str]) -> None:
        """Ask each once. ``doubtful``: bookies that are to list what they hold, whatever they say of themselves."""
        for bookie in self._bookies:
            try:
                status = self._bookkeeper.bookie_status(bookie)
                if status.limbo_ledgers:
                    self._limbo[bookie] = set(self._bookkeeper.list_limbo(bookie))
                if status.limbo_ledgers or status.lacking_ledgers or bookie in doubtful:
                    self._held[bookie] = held_ranges(self._bookkeeper, bookie)
            except ReadError:
                self._silent.add(bookie)

    def known(self, metadata: LedgerMetadata, not_registered: set[str]) -> Known:
        """What is known of the bookies of one ledger."""
        ledger_id = metadata.ledger_id
        return Known(
            down=not_registered | self._silent,
            lacking={bookie: absent(metadata, bookie, held.get(ledger_id, ())) for bookie, held in self._held.items()},
            limbo={bookie for bookie, ledgers in self._limbo.items() if ledger_id in ledgers},
        )

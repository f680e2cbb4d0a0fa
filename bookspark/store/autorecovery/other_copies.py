"""What other bookies hold, asked by a bookie before it collects copies that the metadata does not name.

Law: silence is no answer: a bookie that can't be asked is left out (``protocol.bookie.unnamed_copies``), and not asked again in
the same call. The client lives for one call.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from bookspark.errors import BookKeeperError
from bookspark.store.client import BookKeeper
from bookspark.store.client.inspection.bookie_questions import held_of

log = logging.getLogger(__name__)


class OtherCopies:
    """Callable, an ``AskOthers`` of the bookie's garbage collection. ``connect`` makes a client."""

    def __init__(self, connect: Callable[[], BookKeeper]) -> None:
        self._connect = connect

    def __call__(self, asked: Iterable[tuple[str, int]]) -> Mapping[tuple[str, int], Sequence[tuple[int, int]]]:
        found: dict[tuple[str, int], Sequence[tuple[int, int]]] = {}
        silent: set[str] = set()
        if not (asked := list(asked)):
            return found
        try:
            with self._connect() as bookkeeper:
                for bookie_id, ledger_id in asked:
                    if bookie_id not in silent:
                        try:
                            found[bookie_id, ledger_id] = held_of(bookkeeper.context, bookie_id, ledger_id)
                        except BookKeeperError as error:
                            silent.add(bookie_id)
                            log.info(
                                "copies of %s's ledgers are kept here, because it does not answer: %s", bookie_id, error
                            )
        except BookKeeperError as error:
            log.warning("other bookies can't be asked what they hold: %s", error)
        return found

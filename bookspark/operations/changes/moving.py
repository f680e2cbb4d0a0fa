"""Copies go from one bookie to another.

Law: ``protocol.repair.ledger_replication`` moves them, as a replication worker does: a copy is synced before the record names it,
by compare-and-set; a last fragment that is still written to is left to its writer. Only the choice of the bookie is the plan's. A
move that was made already, or whose fragment was changed meanwhile, is none.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from bookspark.errors import BookKeeperError, NoSuchLedgerError, NotEnoughBookiesError
from bookspark.protocol.changes.steps import Move
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.repair.ledger_replication import LedgerReplication
from bookspark.store.autorecovery.copying import RUN_ENTRIES_MAX, Copying, RepairDriver
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client import BookKeeper
from bookspark.store.client.runtime.store_actions import StoreAction, StoreAnswer
from bookspark.store.decisions.seam import made

_GRACE_SECONDS = 0.0
"""Never waited: a move that would have to wait for a writer ends there."""


class Moving:
    """Moves fragments, several ledgers at a time. ``stopping`` ends it early."""

    def __init__(self, bookkeeper: BookKeeper, config: ChangesConfig, stopping: threading.Event) -> None:
        self._bookkeeper = bookkeeper
        self._config = config
        self._copying = Copying(config.copy_bytes_per_second, stopping)
        self._stopping = stopping

    @property
    def moved_bytes(self) -> int:
        """Bytes that were copied so far."""
        return self._copying.progress.bytes_copied

    def move(self, moves: Sequence[Move], down: Collection[str]) -> dict[int, str]:
        """Make the moves. Returns why a ledger's could not be made, by ledger. ``down``: bookies that need not be asked."""
        by_ledger: dict[int, list[Move]] = {}
        for one in moves:
            by_ledger.setdefault(one.ledger_id, []).append(one)
        with ThreadPoolExecutor(self._config.ledgers_at_once, thread_name_prefix="move") as pool:
            found = list(pool.map(partial(self._move_ledger, down), by_ledger.values()))
        return {ledger_id: why for ledger_id, why in zip(by_ledger, found, strict=True) if why}

    def _move_ledger(self, down: Collection[str], moves: list[Move]) -> str:
        if self._stopping.is_set():
            return ""
        ledger_id = moves[0].ledger_id
        try:
            metadata, version = self._bookkeeper.metadata.read_ledger(ledger_id)
            sources = {one.source for one in moves}
            with self._copying.room(ledger_id) as room:
                lost = sources & set(down)
                machine = made(LedgerReplication, lost, _GRACE_SECONDS, RUN_ENTRIES_MAX, sources - lost, room)
                driver = _MoveDriver(self._bookkeeper, metadata, self._copying, _chosen(metadata, moves))
                driver.run(machine.step, machine.step(act.MetadataRead(metadata, version)))
        except (NoSuchLedgerError, NotEnoughBookiesError):
            # It was deleted; or it has more fragments than those that are moved now.
            return ""
        except BookKeeperError as error:
            return str(error)
        return ""


def _chosen(metadata: LedgerMetadata, moves: Sequence[Move]) -> dict[tuple[str, ...], dict[str, str]]:
    """By ensemble, who replaces whom."""
    by_first = {one.first_entry_id: one for one in moves}
    return {
        fragment.ensemble: {move.source: move.target}
        for fragment in metadata.fragments
        if (move := by_first.get(fragment.first_entry_id)) is not None and move.target not in fragment.ensemble
    }


class _MoveDriver(RepairDriver):
    """Drives a replication whose bookies are chosen already."""

    def __init__(
        self,
        bookkeeper: BookKeeper,
        metadata: LedgerMetadata,
        copying: Copying,
        chosen: Mapping[tuple[str, ...], Mapping[str, str]],
    ) -> None:
        super().__init__(bookkeeper, metadata, copying)
        self._chosen = chosen

    def _ask_store(self, action: StoreAction) -> StoreAnswer:
        if not isinstance(action, act.ChooseBookies):
            return super()._ask_store(action)
        targets = self._chosen.get(action.ensemble, {})
        if all(bookie in targets for bookie in action.replaced):
            return act.BookiesChosen(tuple(targets[bookie] for bookie in action.replaced))
        return act.NoBookies(NotEnoughBookiesError("this fragment is not moved now"))

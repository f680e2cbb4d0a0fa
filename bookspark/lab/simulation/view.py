"""What a checker is shown of a state.

Law: a checker sees the metadata, the bookies and what each client was told. It sees no message under way: such a message has not
happened yet, and states that differ in messages only share one verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from bookspark.lab.simulation.bookie import SimulatedBookie
from bookspark.lab.simulation.clients.client import Client
from bookspark.lab.simulation.clients.reader import ReaderClient
from bookspark.lab.simulation.clients.recoverer import RecovererClient
from bookspark.lab.simulation.clients.repair import ReplicatorClient
from bookspark.lab.simulation.clients.writer import WriterClient
from bookspark.lab.simulation.simulation_options import CrashLoses, SimulationOptions
from bookspark.protocol.ledger.accepted_loss import LossKind
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata


class Violation(NamedTuple):
    """``invariant`` is the checker's name, which is the TLA+ specification's where it has it."""

    invariant: str
    what: str


class WorldView:
    """One state. ``lost_boots``: how often a bookie may have lost entries; ``disks_lost``: how often all. If the ledger is
    ``deleted``, ``metadata`` is the last one: its copies don't matter any more, but what was fenced stays fenced."""

    def __init__(
        self,
        options: SimulationOptions,
        metadata: LedgerMetadata,
        clients: Sequence[Client],
        bookies: Mapping[str, SimulatedBookie],
        deleted: bool = False,
    ) -> None:
        writer = clients[0]
        assert isinstance(writer, WriterClient)
        self.options = options
        self.metadata = metadata
        self.writer = writer
        self.clients = clients
        self.bookies = bookies
        self.deleted = deleted
        self.readers = [client for client in clients if isinstance(client, ReaderClient)]
        self.recoverers = [client for client in clients if isinstance(client, RecovererClient)]
        self.replicators = [client for client in clients if isinstance(client, ReplicatorClient)]
        self.lost_boots = sum(bookie.lost_boots for bookie in bookies.values())
        self.disks_lost = sum(bookie.gone for bookie in bookies.values())
        if options.crash_loses is CrashLoses.EVERYTHING:
            self.disks_lost = self.lost_boots

    def accepted_as_lost(self, entry_id: int) -> bool:
        """Is it an entry of the ledger that an operator gave up?"""
        loss = self.metadata.accepted_loss
        entries = () if loss is None else (one for one in loss.losses if one.kind is LossKind.ENTRIES)
        return any(one.first <= entry_id <= one.last for one in entries)

    def holders(self, entry_id: int) -> list[str]:
        """The bookies that hold the entry and that the metadata assigns to it."""
        bookies = self.bookies
        return [name for name in self.metadata.write_set_of(entry_id) if entry_id in bookies[name].rows]

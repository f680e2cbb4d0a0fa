"""A state as a checker sees it.

Law: a checker sees the metadata, the bookies and each client's results. It sees no message under way: such a message has no
effect yet, and states that differ only in messages share a verdict.
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
    """``invariant`` is the checker's name, from the TLA+ specification where it has the invariant."""

    invariant: str
    what: str


class WorldView:
    """A state. ``lost_boots``: times that a bookie may have lost entries; ``disks_lost``: times that it lost all. For a
    ``deleted`` ledger, ``metadata`` is its last version: its copies no longer matter, but fenced bookies stay fenced."""

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
        """Whether an operator gave the entry up as lost."""
        loss = self.metadata.accepted_loss
        entries = () if loss is None else (one for one in loss.losses if one.kind is LossKind.ENTRIES)
        return any(one.first <= entry_id <= one.last for one in entries)

    def holders(self, entry_id: int) -> list[str]:
        """The bookies of the entry's write set that hold it."""
        bookies = self.bookies
        return [name for name in self.metadata.write_set_of(entry_id) if entry_id in bookies[name].rows]

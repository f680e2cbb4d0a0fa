"""What a checker is shown of a state.

Law: a checker sees the metadata, the bookies and what each client was told, and no message under way: what is under way has not
happened yet, and the verdict on a state is looked up by the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from bookspark.protocol.ledger_metadata import LedgerMetadata
from bookspark.protocol.quorum import write_set
from bookspark.simulation.bookie import SimulatedBookie
from bookspark.simulation.client import Client
from bookspark.simulation.clients import ReaderClient, RecovererClient, WriterClient
from bookspark.simulation.options import SimulationOptions


class Violation(NamedTuple):
    """``invariant`` is the checker's name, which is the TLA+ specification's where it has it."""

    invariant: str
    what: str


@dataclass(frozen=True, slots=True)
class WorldView:
    options: SimulationOptions
    metadata: LedgerMetadata
    clients: tuple[Client, ...]
    bookies: dict[str, SimulatedBookie]

    @property
    def writer(self) -> WriterClient:
        writer = self.clients[0]
        assert isinstance(writer, WriterClient)
        return writer

    @property
    def readers(self) -> Iterator[ReaderClient]:
        return (client for client in self.clients if isinstance(client, ReaderClient))

    @property
    def recoverers(self) -> Iterator[RecovererClient]:
        return (client for client in self.clients if isinstance(client, RecovererClient))

    @property
    def lost_boots(self) -> int:
        """On how many occasions a bookie may have lost entries."""
        return sum(bookie.lost_boots for bookie in self.bookies.values())

    def holders(self, entry_id: int) -> list[str]:
        """The bookies that hold the entry and that the metadata assigns to it."""
        m = self.metadata
        ensemble = m.fragment_of(entry_id).ensemble
        assigned = [ensemble[i] for i in write_set(entry_id, m.ensemble_size, m.write_quorum)]
        return [bookie for bookie in assigned if entry_id in self.bookies[bookie].rows]

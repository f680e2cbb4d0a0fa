"""Which clients a world has, in what order, and what a story calls them.

Law: a client's number is its place in this order. The writer is number 0.
"""

from __future__ import annotations

from bookspark.lab.simulation.clients.client import Client
from bookspark.lab.simulation.clients.reader import ReaderClient
from bookspark.lab.simulation.clients.recoverer import RecovererClient
from bookspark.lab.simulation.clients.repair import HealingClient, ReplicatorClient
from bookspark.lab.simulation.clients.writer import WriterClient
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata


def make_clients(
    metadata: LedgerMetadata, version: int, bookies: tuple[str, ...], options: SimulationOptions
) -> list[Client]:
    """The writer first, then recoverers, readers, replicators, and one healing for each bookie if they heal."""
    clients: list[Client] = [WriterClient(metadata, version, options)]
    clients += [RecovererClient() for _ in range(options.recoverers)]
    clients += [ReaderClient(options) for _ in range(options.readers)]
    clients += [ReplicatorClient(bookies) for _ in range(options.replicators)]
    if options.heals:
        clients += [HealingClient(bookie) for bookie in bookies]
    return clients


def names_of(clients: list[Client]) -> tuple[str, ...]:
    """The kind of each client, with a number if there are several of the same kind."""
    names: list[str] = []
    for client in clients:
        if isinstance(client, HealingClient):
            names.append(f"healing of {client.bookie}")
            continue
        same = sum(other.kind == client.kind for other in clients)
        count = 1 + sum(name.startswith(client.kind) for name in names)
        names.append(f"{client.kind} {count}" if same > 1 else client.kind)
    return tuple(names)

"""Copies of a ledger by the bookies' own lists (the audit query for a single ledger, without Spark), and power cuts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from bookspark.local import LocalBookie
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that


def held_by(client: BookKeeper, bookie_id: str, ledger_id: int) -> set[int]:
    """Entries of a ledger that a bookie lists."""
    rows = client.list_ranges(bookie_id, ledger_id).to_pylist()
    return {entry for row in rows for entry in range(row["first_entry_id"], row["last_entry_id"] + 1)}


def replication_factors(client: BookKeeper, metadata: LedgerMetadata, count: int) -> list[int]:
    """For each of the first ``count`` entries, the number of its bookies that hold it."""
    members = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
    held = {bookie: held_by(client, bookie, metadata.ledger_id) for bookie in members}
    return [sum(entry in held[bookie] for bookie in metadata.write_set_of(entry)) for entry in range(count)]


def await_copies(client: BookKeeper, ledger_id: int) -> None:
    """Wait until each entry of a closed ledger is on its whole write set: the close needed only an ack quorum."""
    metadata = client.get_ledger_metadata(ledger_id)
    count, copies = metadata.last_entry_id + 1, metadata.write_quorum
    await_that(lambda: set(replication_factors(client, metadata, count)) <= {copies}, what="all copies")


def cut_power(*bookies: LocalBookie, start: bool = True) -> None:
    """All at once: each process dies, and its logs lose their unsynced data."""
    for bookie in bookies:
        bookie.kill()
        bookie.lose_unsynced()
    if start:
        start_all(*bookies)


def start_all(*bookies: LocalBookie) -> None:
    """Return once every bookie serves."""
    with ThreadPoolExecutor(max(len(bookies), 1)) as pool:
        list(pool.map(lambda bookie: bookie.start(), bookies))

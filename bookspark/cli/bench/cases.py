"""What ``bookspark bench ledger`` measures: the cases L1 to L12, as workloads that a peer can be given too.

Law: a workload says all that matters of what is done (sizes, counts, entries in flight); a label is one workload's for good, as
results are compared by it. What needs a cluster of its own is a *turn*: within one, workloads share a fresh cluster of three
bookies, E 3, WQ 3, AQ 2, CRC32C.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication


class Kind(StrEnum):
    """What is timed."""

    ADD = "add"
    """Appends to one ledger, after a warm-up of another one."""
    BATCH = "batch"
    """The same by ``append_batch_async``; a peer that has no such thing appends entry by entry."""
    MANY = "many"
    """Appends to many ledgers in turn."""
    READ = "read"
    """A closed ledger, in order, by one call, which asks for more while the caller uses what came. A peer whose call returns only
    once it has all of it makes many. It was written before, not timed."""
    READ_COLD = "read_cold"
    """The same after the bookies were restarted and their files dropped from the page cache."""
    RECOVER = "recover"
    """Opening ledgers that their writer left open, all appends acknowledged."""
    CREATE_CLOSE = "create_close"
    """A ledger's creation and its close, empty."""
    WRITTEN = "written"
    """Bytes written to disk by the bookies in all their life, for each byte of payload and copy."""
    RESIDENT = "resident"
    """Memory of the bookies, idle and after appends."""


class Turn(StrEnum):
    """Workloads on one cluster."""

    SYNCED = "synced"
    DURABILITY = "durability"
    COLD = "cold"
    UNJOURNALED = "unjournaled"
    DISK = "disk"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Workload:
    """``in_flight`` counts calls, not entries; ``entries`` is per ledger for RECOVER and in all for the others."""

    label: str
    kind: Kind
    size: int = 1024
    entries: int = 1
    in_flight: int = 1
    batch: int = 1
    ledgers: int = 1
    sync_every: int = 0
    """0: each entry is synced before it is acknowledged (PD_JOURNAL). Otherwise it is not (VD_JOURNAL), and a sync is asked for
    after each so many entries, and at the end, which counts to the time."""
    replication: Replication = Replication.BEST_EFFORT

    @property
    def ledger_type(self) -> LedgerType:
        return LedgerType.VD_JOURNAL if self.sync_every else LedgerType.PD_JOURNAL

    @property
    def warm_up(self) -> int:
        """Entries appended before the timed ones, so that a peer's compiler has seen the code."""
        return self.entries // 3

    def scaled(self, scale: float) -> Workload:
        """The same with fewer (or more) entries and ledgers; recovered ledgers keep their length."""
        entries = self.entries if self.kind is Kind.RECOVER else max(self.batch, 10, round(self.entries * scale))
        return replace(self, entries=entries, ledgers=max(1, round(self.ledgers * scale)))

    def numbers(self) -> dict[str, Any]:
        """What its JSON line says of it."""
        told = {name: value for name, value in asdict(self).items() if name not in ("label", "kind")}
        return told | {"replication": self.replication.value}


_LENGTHS = {100: 300_000, 1024: 200_000, 16384: 40_000}
"""Entries by their size."""

WORKLOADS: dict[Turn, tuple[Workload, ...]] = {
    Turn.SYNCED: (
        Workload("L1", Kind.ADD, entries=3_000),
        *(Workload(f"L2-{size}", Kind.ADD, size, n, in_flight=1000) for size, n in _LENGTHS.items()),
        *(
            Workload(f"L3-{size}x{batch}", Kind.BATCH, size, n, in_flight, batch)
            for batch, in_flight in ((100, 64), (1000, 16))
            for size, n in ((100, 3_000_000), (1024, 1_000_000))
        ),
        *(Workload(f"L4-{size}-warm", Kind.READ, size, n, in_flight=1000) for size, n in _LENGTHS.items()),
        Workload("L5", Kind.RECOVER, entries=2_000, in_flight=1000, ledgers=9),
        Workload("L6", Kind.CREATE_CLOSE, ledgers=100),
        Workload("L7", Kind.MANY, entries=100_000, in_flight=1000, ledgers=1000),
    ),
    Turn.DURABILITY: tuple(
        Workload(f"L12-{name}", Kind.ADD, entries=200_000, in_flight=1000, sync_every=entries, replication=replication)
        for name, entries, replication in (
            ("pd", 0, Replication.BEST_EFFORT),
            ("pd-guaranteed", 0, Replication.GUARANTEED),
            ("vd", 10_000, Replication.BEST_EFFORT),
            ("vd-guaranteed", 10_000, Replication.GUARANTEED),
        )
    ),
    Turn.COLD: tuple(
        Workload(f"L4-{size}-cold", Kind.READ_COLD, size, n, in_flight=1000) for size, n in _LENGTHS.items()
    ),
    Turn.UNJOURNALED: (Workload("L8", Kind.ADD, entries=200_000, in_flight=1000),),
    Turn.DISK: (Workload("L9", Kind.WRITTEN, entries=300_000, in_flight=1000),),
    Turn.MEMORY: (Workload("L11", Kind.RESIDENT, size=100, entries=10_000_000, in_flight=16, batch=1000),),
}
"""L10, processor time, is in the line of ``L2-1024``."""

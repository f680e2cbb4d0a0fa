"""The cases of ``bookspark bench ledger``: L1 to L14, as workloads in a form for peers too.

Law: a workload holds every number that matters: sizes, counts, entries in flight. A label belongs to one workload for ever,
since results are compared by label. A *turn* is a group of workloads that share a fresh cluster of three bookies, with
ensemble size (E) 3, write quorum (WQ) 3, ack quorum (AQ) 2 and CRC32C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import Any

from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication


class Kind(StrEnum):
    ADD = "add"
    """Appends to one ledger. A warm-up on another ledger comes first."""
    BATCH = "batch"
    """Appends by ``append_batch_async``. A peer without such a call appends entry by entry."""
    MANY = "many"
    """Appends to many ledgers in turn."""
    READ = "read"
    """Reads of a closed ledger, in order, by one call that fetches ahead of the caller. A peer whose call returns only with
    the whole range makes many calls. Writing the ledger is not timed."""
    READ_COLD = "read_cold"
    """Reads as READ, after a restart of the bookies with their files dropped from the page cache."""
    RECOVER = "recover"
    """Opens of ledgers left open by their writer, with all appends acknowledged."""
    CREATE_CLOSE = "create_close"
    WRITTEN = "written"
    """Bytes that the bookies wrote to disk from start to stop, for each byte of payload and copy."""
    RESIDENT = "resident"
    """Resident memory of the bookies, idle and after appends."""
    IDLE = "idle"
    """Resident memory of a client for each open idle ledger with an entry."""
    RANDOM = "random"
    """Reads of single entries at random places of a closed ledger, one after the other."""


class Turn(StrEnum):
    """A group of workloads on the same cluster."""

    SYNCED = "synced"
    LEDGERS = "ledgers"
    DURABILITY = "durability"
    COLD = "cold"
    UNJOURNALED = "unjournaled"
    DISK = "disk"
    MEMORY = "memory"


@dataclass(frozen=True, slots=True)
class Workload:
    """A measured piece of work."""

    label: str
    kind: Kind
    size: int = 1024
    """In bytes."""
    entries: int = 1
    """Number of entries: of each ledger for RECOVER, of all ledgers together for the other kinds."""
    in_flight: int = 1
    """Maximum number of unacknowledged calls. A call of BATCH has ``batch`` entries."""
    batch: int = 1
    ledgers: int = 1
    reads: int = 0
    """Reads of RANDOM."""
    sync_every: int = 0
    """0: the ledgers are PD_JOURNAL, each entry is synced before its acknowledgement. Otherwise they are VD_JOURNAL, and the
    writer asks for a sync after this many entries and at the end. The time of the syncs counts."""
    replication: Replication = Replication.BEST_EFFORT
    """Copies of each entry in a closed ledger."""

    @property
    def ledger_type(self) -> LedgerType:
        """The durability that ``sync_every`` implies."""
        return LedgerType.VD_JOURNAL if self.sync_every else LedgerType.PD_JOURNAL

    @property
    def case(self) -> str:
        """The workload's case, such as L2."""
        return self.label.partition("-")[0]

    @property
    def warm_up(self) -> int:
        """Number of appends before the timed ones, to warm up a peer's JIT compiler."""
        return self.entries // 3

    def scaled(self, scale: float) -> Workload:
        """The same workload with ``scale`` times the entries and ledgers. Recovered ledgers keep their length."""
        entries = self.entries if self.kind is Kind.RECOVER else max(self.batch, 10, round(self.entries * scale))
        reads = self.reads and max(10, round(self.reads * scale))
        return replace(self, entries=entries, ledgers=max(1, round(self.ledgers * scale)), reads=reads)

    def numbers(self) -> dict[str, Any]:
        """The workload's numbers, as in its JSON line."""
        told = {name: value for name, value in asdict(self).items() if name not in ("label", "kind")}
        return told | {"replication": self.replication.value}


_LENGTHS = {100: 300_000, 1024: 200_000, 16384: 40_000}
"""Payload size in bytes → number of entries."""

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
        Workload("L14", Kind.RANDOM, entries=50_000, in_flight=1000, reads=2000),
    ),
    Turn.LEDGERS: (
        # First, because it measures the memory of a process without earlier work.
        Workload("L13", Kind.IDLE, size=100, ledgers=1500, in_flight=1000),
        Workload("L7", Kind.MANY, entries=100_000, in_flight=1000, ledgers=1000),
        Workload("L7-10000", Kind.MANY, entries=100_000, in_flight=1000, ledgers=10_000),
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
"""L10 is processor time, taken from the line of ``L2-1024``."""


def chosen(turn: Turn, cases: Sequence[str], scale: float) -> list[Workload]:
    """The workloads of ``turn`` in ``cases``, such as L2, or all without ``cases``, ``scaled``."""
    return [one.scaled(scale) for one in WORKLOADS[turn] if not cases or one.case in cases]


CASES = sorted({one.case for workloads in WORKLOADS.values() for one in workloads}, key=lambda case: int(case[1:]))
"""Names of all cases with a workload of their own."""

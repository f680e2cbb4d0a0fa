"""The options of a simulation: sizes, modes, budgets of mishaps, and switches of protections.

Law: the world around the real machines switches a protection off (it drops a record, or clears a flag). The machines
themselves, which run in production, have no such switch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication, check_quorums
from bookspark.protocol.writing.ensemble_change import ChangeMode


class CrashLoses(Enum):
    """Extent of a bookie's crash: all unsynced data, or all its disks."""

    UNSYNCED = "unsynced"
    EVERYTHING = "everything"


def _switch(help_text: str) -> Any:
    return field(default=True, metadata={"switch": help_text})


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options for a ledger with one writer. Each budget is a maximum over a whole run."""

    ensemble: int = 3
    write_quorum: int = 3
    """Copies of each entry."""
    ack_quorum: int = 2
    """Copies that confirm an entry."""
    spares: int = 0
    """Bookies outside the first ensemble."""
    entries: int = 1
    """Maximum number of the writer's appends."""
    closes: bool = True
    """Whether the writer's user may close the ledger."""
    abandons: bool = False
    """Whether the writer's client may end without a close, at any moment."""
    holds_back: bool = False
    """Whether adds wait for a slow bookie. An entry that the writer finishes meanwhile is no longer sent to it."""
    hold_ups: int = 0
    """Times that a bookie is reported to hold the writer up."""
    recoverers: int = 1
    """Attempts at ledger recovery. They begin at any time, and may overlap."""
    readers: int = 0
    reads: int = 2
    """Times that each reader asks for the LAC (last add confirmed) and reads up to it."""
    long_polls: bool = False
    """Whether readers may wait for the next entry to be confirmed."""
    explicit_lacs: int = 0
    """Times that the writer may send its LAC without an entry."""
    replicators: int = 0
    """Autorecovery's attempts to replace a bookie that it believes lost. They begin at any time."""
    second_ledger: bool = False
    """Whether the bookies have a second ledger, with a writer and a recoverer. Only for random schedules."""
    deletes: bool = False
    """Whether the ledger may be deleted and then collected by its bookies."""
    crashes: int = 0
    losses: int = 0
    """Requests and answers that time out. The request may still arrive, at any later time."""
    duplicates: int = 0
    """Requests that arrive twice."""
    departures: int = 0
    """Bookies that leave for good, with their disks."""
    accept_loss: bool = False
    """Whether an operator accepts a loss if a recoverer can't know. The operator names the bookies that are gone for good."""
    crash_loses: CrashLoses = CrashLoses.UNSYNCED
    heals: bool = False
    """Whether a bookie goes through phase two after a lossy boot."""
    journal_write_data: bool = True
    ledger_type: LedgerType = LedgerType.PD_JOURNAL
    replication: Replication = Replication.BEST_EFFORT
    ensemble_changes: ChangeMode = ChangeMode.OFF
    """When the writer replaces a failed bookie. Recovery replaces bookies unless this is OFF."""

    limbo: bool = _switch("put ledgers in limbo at a lossy boot (BP-46)")
    boot_fencing: bool = _switch("fence ledgers at a lossy boot (BP-46)")
    lossy_boot_mark: bool = _switch("refuse a closed ledger's old writer after a lossy boot")
    fence_on_recovery_read: bool = _switch("recovery reads carry the fence flag (BookKeeper #2614)")
    sync_on_recovery_add: bool = _switch("what recovery writes is synced before its ack")
    collection_mark: bool = _switch("remember that deleted ledgers were collected with their fences (BookKeeper #4462)")
    named_losses: bool = _switch("what can't be reached is accepted as lost only of bookies that are gone, and named")
    later_entries: bool = _switch("an entry that a bookie holds is not cut off behind one that nobody knows")
    pinning: bool = _switch("keep bookies that hold confirmed entries below the write quorum (guaranteed ledgers)")

    def __post_init__(self) -> None:
        check_quorums(self.ensemble, self.write_quorum, self.ack_quorum)
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int) and value < 0:
                name = option.name.replace("_", "-")
                raise ConfigurationError(f"--{name} {value} is negative; give 0 or more")

    @classmethod
    def switches(cls) -> Iterator[tuple[str, str]]:
        """Names of the switchable protections, each with its effect."""
        for option in fields(cls):
            if "switch" in option.metadata:
                yield option.name, option.metadata["switch"]

    def without(self, *protections: str) -> SimulationOptions:
        off: dict[str, Any] = dict.fromkeys(protections, False)
        return replace(self, **off)

    def arguments(self, names: Collection[str] | None = None) -> str:
        """The command-line options of ``bookspark simulate`` for these options: those in ``names``, or all that differ from
        their default."""
        words: list[str] = []
        default = SimulationOptions()
        for option in fields(self):
            value = getattr(self, option.name)
            name = option.name.replace("_", "-")
            if option.name not in names if names is not None else value == getattr(default, option.name):
                continue
            if isinstance(value, bool):
                words.append(f"--{name}" if value else f"--no-{name}")
            else:
                words.append(f"--{name} {word_of(value) if isinstance(value, Enum) else value}")
        return " ".join(words)


def word_of(choice: Enum) -> str:
    """A choice as a word of the command line."""
    return str(choice.value).replace(" ", "-")

"""What a simulation is of: sizes, modes, budgets of mishaps, and the protections that are switched off.

Law: a protection is switched off by the world around the real machines (it drops a record, clears a flag), never inside them: the
code that production runs has no such switch.
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
    """What a bookie's crash takes with it: what was not synced, or all its disks."""

    UNSYNCED = "unsynced"
    EVERYTHING = "everything"


def _switch(help_text: str) -> Any:
    return field(default=True, metadata={"switch": help_text})


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """One ledger with one writer. Each budget is a maximum over a whole run."""

    ensemble: int = 3
    write_quorum: int = 3
    ack_quorum: int = 2
    spares: int = 0
    """Bookies outside the first ensemble."""
    entries: int = 1
    closes: bool = True
    """May the writer's user close the ledger?"""
    abandons: bool = False
    """May the writer's client be unable to go on, at any moment?"""
    holds_back: bool = False
    """Do adds wait for a bookie that is behind? What the writer is done with meanwhile is not sent any more."""
    recoverers: int = 1
    """Attempts at ledger recovery, at any time and at once."""
    readers: int = 0
    reads: int = 2
    """How often each reader asks for the LAC and reads up to it."""
    long_polls: bool = False
    """May readers wait for the next entry to be confirmed?"""
    explicit_lacs: int = 0
    """How often the writer may tell its LAC without an entry."""
    replicators: int = 0
    """Attempts of autorecovery to replace a bookie that it takes for lost, at any time."""
    deletes: bool = False
    """May the ledger be deleted, and then be collected by its bookies?"""
    crashes: int = 0
    losses: int = 0
    """Requests and answers that time out. The request may still arrive, at any later time."""
    duplicates: int = 0
    crash_loses: CrashLoses = CrashLoses.UNSYNCED
    heals: bool = False
    """Does a bookie go through phase two after a lossy boot?"""
    journal_write_data: bool = True
    ledger_type: LedgerType = LedgerType.PD_JOURNAL
    replication: Replication = Replication.BEST_EFFORT
    ensemble_changes: ChangeMode = ChangeMode.OFF
    """When the writer replaces a bookie that failed. Recovery replaces bookies unless this is off."""

    limbo: bool = _switch("put ledgers in limbo at a lossy boot (BP-46)")
    boot_fencing: bool = _switch("fence ledgers at a lossy boot (BP-46)")
    lossy_boot_mark: bool = _switch("refuse a closed ledger's old writer after a lossy boot")
    fence_on_recovery_read: bool = _switch("recovery reads carry the fence flag (BookKeeper #2614)")
    sync_on_recovery_add: bool = _switch("what recovery writes is synced before its ack")
    collection_mark: bool = _switch("remember that deleted ledgers were collected with their fences (BookKeeper #4462)")
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
        """Names of the protections that can be switched off, with what each does."""
        for option in fields(cls):
            if "switch" in option.metadata:
                yield option.name, option.metadata["switch"]

    def without(self, *protections: str) -> SimulationOptions:
        """These options with some protections switched off."""
        off: dict[str, Any] = dict.fromkeys(protections, False)
        return replace(self, **off)

    def arguments(self, names: Collection[str] | None = None) -> str:
        """The options of ``bookspark simulate`` that give these: ``names``, or all that are not as by default."""
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
    """How the command line names it."""
    return str(choice.value).replace(" ", "-")

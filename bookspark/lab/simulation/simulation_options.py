"""The options of a simulation: sizes, modes, budgets of mishaps, and the protections that are switched off.

Law: the world around the real machines switches a protection off (it drops a record, or clears a flag). The machines themselves,
which production runs, have no such switch.
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
    """What a bookie's crash loses: everything that was not synced, or all its disks."""

    UNSYNCED = "unsynced"
    EVERYTHING = "everything"


def _switch(help_text: str) -> Any:
    return field(default=True, metadata={"switch": help_text})


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """The options for one ledger with one writer. Each budget is a maximum over a whole run."""

    ensemble: int = 3
    """How many bookies the ledger's ensemble has."""
    write_quorum: int = 3
    """How many copies each entry has."""
    ack_quorum: int = 2
    """How many copies confirm an entry."""
    spares: int = 0
    """How many bookies there are outside the first ensemble."""
    entries: int = 1
    """How many entries the writer appends at most."""
    closes: bool = True
    """May the writer's user close the ledger?"""
    abandons: bool = False
    """May the writer's client end without a close, at any moment?"""
    holds_back: bool = False
    """Do adds wait for a bookie that is behind? Entries that the writer is done with meanwhile are not sent to it any more."""
    hold_ups: int = 0
    """How often the writer finds that a bookie holds it up, beside the others."""
    recoverers: int = 1
    """How many attempts at ledger recovery are made. They begin at any time, and may run at once."""
    readers: int = 0
    """How many tailing readers there are."""
    reads: int = 2
    """How often each reader asks for the LAC and reads up to it."""
    long_polls: bool = False
    """May readers wait for the next entry to be confirmed?"""
    explicit_lacs: int = 0
    """How often the writer may tell its LAC without an entry."""
    replicators: int = 0
    """How many attempts autorecovery makes to replace a bookie that it takes for lost. They begin at any time."""
    second_ledger: bool = False
    """Do the bookies have a second ledger, with a writer and a recoverer? Only random schedules have it."""
    deletes: bool = False
    """May the ledger be deleted, and then be collected by its bookies?"""
    crashes: int = 0
    """How often a bookie crashes."""
    losses: int = 0
    """How many requests and answers time out. The request may still arrive, at any later time."""
    duplicates: int = 0
    """How many requests arrive twice."""
    departures: int = 0
    """How many bookies go away for good, with their disks."""
    accept_loss: bool = False
    """Does an operator accept a loss where a recoverer can't know? The operator names the bookies that are gone for good."""
    crash_loses: CrashLoses = CrashLoses.UNSYNCED
    heals: bool = False
    """Does a bookie go through phase two after a lossy boot?"""
    journal_write_data: bool = True
    ledger_type: LedgerType = LedgerType.PD_JOURNAL
    replication: Replication = Replication.BEST_EFFORT
    ensemble_changes: ChangeMode = ChangeMode.OFF
    """When the writer replaces a bookie that failed. Recovery replaces bookies unless this is OFF."""

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
        """Names of the protections that can be switched off, with what each does."""
        for option in fields(cls):
            if "switch" in option.metadata:
                yield option.name, option.metadata["switch"]

    def without(self, *protections: str) -> SimulationOptions:
        """These options with some protections switched off."""
        off: dict[str, Any] = dict.fromkeys(protections, False)
        return replace(self, **off)

    def arguments(self, names: Collection[str] | None = None) -> str:
        """The command-line options of ``bookspark simulate`` that give these options: those in ``names``, or all that differ
        from their default."""
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
    """The word for a choice on the command line."""
    return str(choice.value).replace(" ", "-")

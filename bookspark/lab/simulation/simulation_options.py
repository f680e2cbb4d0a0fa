"""The options of a simulation: sizes, modes, budgets of mishaps, and switches of protections.

Law: the world around the real machines switches a protection off (it drops a record, or clears a flag). The machines
themselves, which run in production, have no such switch.
"""

from __future__ import annotations

from collections.abc import Collection
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


SIZES, TROUBLE, MODES, SWITCHES = "Sizes", "Trouble", "Modes", "Safety switches"
"""Groups of the command line's options."""


def _number(default: int, group: str, help_text: str) -> Any:
    return field(default=default, metadata=_words(group, f"{help_text} ({default})."))


def _yes_no(default: bool, help_text: str) -> Any:
    return field(default=default, metadata=_words(MODES, help_text))


def _switch(help_text: str) -> Any:
    return field(default=True, metadata=_words(SWITCHES, f"Off: {help_text}."))


def _words(group: str, help_text: str) -> dict[str, str]:
    """Words of ``bookspark simulate`` about an option."""
    return {"group": group, "help": help_text}


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """Options for a ledger with one writer. Each budget is a maximum over a whole run."""

    ensemble: int = _number(3, SIZES, "Bookies in an ensemble")
    write_quorum: int = _number(3, SIZES, "Copies of an entry")
    ack_quorum: int = _number(2, SIZES, "Copies that confirm an entry")
    spares: int = _number(0, SIZES, "Bookies outside the first ensemble")
    entries: int = _number(1, SIZES, "Entries appended, at most")
    closes: bool = _yes_no(True, "May the writer close the ledger?")
    abandons: bool = _yes_no(False, "May the writer's client end at any moment?")
    holds_back: bool = _yes_no(False, "Do adds wait for a bookie that is behind?")
    """An entry that the writer finishes meanwhile is no longer sent to it."""
    hold_ups: int = _number(0, TROUBLE, "Times that the writer is held up")
    lost_bookies: int = _number(0, TROUBLE, "Lost bookies that the writer notices")
    """Any bookie of its ensemble, which may be alive."""
    recoverers: int = _number(1, SIZES, "Attempts at ledger recovery")
    """They begin at any time, and may overlap."""
    readers: int = _number(0, SIZES, "Tailing readers")
    reads: int = _number(2, SIZES, "Reads of each reader")
    """It asks for the LAC (last add confirmed) and reads up to it."""
    long_polls: bool = _yes_no(False, "May readers wait for an entry?")
    explicit_lacs: int = _number(0, SIZES, "Explicit LACs (last add confirmed) of the writer")
    copies_wanted: int = _number(0, SIZES, "Copies wanted by the log, if more than an entry has")
    """Once it is closed, autorecovery adds the others. Striped and guaranteed ledgers want no other copies."""
    replicators: int = _number(0, SIZES, "Attempts of autorecovery")
    """Attempts to replace a bookie that it believes lost, or to add copies. They begin at any time."""
    second_ledger: bool = _yes_no(False, "A second ledger? Random schedules only.")
    """It has a writer and a recoverer."""
    deletes: bool = _yes_no(False, "May the ledger be deleted and collected?")
    crashes: int = _number(0, TROUBLE, "Bookie crashes")
    losses: int = _number(0, TROUBLE, "Messages that time out")
    """The request may still arrive, at any later time."""
    duplicates: int = _number(0, TROUBLE, "Duplicated requests")
    departures: int = _number(0, TROUBLE, "Bookies gone for good")
    """They leave with their disks."""
    accept_loss: bool = _yes_no(False, "Does an operator accept losses?")
    """If a recoverer can't know. The operator names the bookies that are gone for good."""
    crash_loses: CrashLoses = field(default=CrashLoses.UNSYNCED, metadata=_words(TROUBLE, "Data lost in a crash."))
    heals: bool = _yes_no(False, "Do bookies heal after a lossy boot?")
    """A healing bookie goes through phase two after a lossy boot."""
    journal_write_data: bool = _yes_no(True, "Acknowledgements after the sync, or before it (BP-46)?")
    ledger_type: LedgerType = field(
        default=LedgerType.PD_JOURNAL, metadata=_words(MODES, "Durability of the ledger (BP-14).")
    )
    replication: Replication = field(
        default=Replication.BEST_EFFORT,
        metadata=_words(MODES, "Copies of a closed ledger: ack quorum or write quorum (guaranteed)."),
    )
    ensemble_changes: ChangeMode = field(
        default=ChangeMode.OFF, metadata=_words(MODES, "When failed bookies are replaced.")
    )
    """Recovery replaces bookies unless this is OFF."""

    limbo: bool = _switch("limbo at a lossy boot (BP-46)")
    boot_fencing: bool = _switch("fences at a lossy boot (BP-46)")
    lossy_boot_mark: bool = _switch("refusal of a closed ledger's old writer after a lossy boot")
    fence_on_recovery_read: bool = _switch("fence flag of recovery reads (BookKeeper #2614)")
    sync_on_recovery_add: bool = _switch("sync of recovery's writes before their ack")
    collection_mark: bool = _switch("memory of collected ledgers' fences (BookKeeper #4462)")
    named_losses: bool = _switch("losses are accepted only of bookies gone and named")
    later_entries: bool = _switch("held entries behind an unknown one are kept")
    pinning: bool = _switch("keeping holders of confirmed entries below the write quorum (guaranteed ledgers)")

    def __post_init__(self) -> None:
        check_quorums(self.ensemble, self.write_quorum, self.ack_quorum)
        for option in fields(self):
            value = getattr(self, option.name)
            if isinstance(value, int) and value < 0:
                name = option.name.replace("_", "-")
                raise ConfigurationError(f"--{name} {value} is negative; give 0 or more")

    @property
    def is_small(self) -> bool:
        """Is the ledger made with fewer copies than wanted, as a log's is while bookies are missing?"""
        striped = self.ensemble > self.write_quorum
        return self.copies_wanted > self.write_quorum and not striped and self.replication is Replication.BEST_EFFORT

    @classmethod
    def switches(cls) -> list[str]:
        """Names of the switchable protections."""
        return [option.name for option in fields(cls) if option.metadata["group"] == SWITCHES]

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

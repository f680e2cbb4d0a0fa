"""The steps of a change, and the decision at one moment.

Law: each step may be made twice, because a successor after a crash does not know whether the last step was made.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SetReadOnly:
    """The bookie takes no new entries from now on, so writers replace it. Repairs still write to it."""

    bookie_id: str

    def __str__(self) -> str:
        return f"make {self.bookie_id} read-only, so that writers replace it"


@dataclass(frozen=True, slots=True)
class Restart:
    """The bookie's process ends, and another serves the same directories."""

    bookie_id: str
    version: str = ""

    def __str__(self) -> str:
        return f"restart {self.bookie_id}" + (f" with version {self.version}" if self.version else "")


@dataclass(frozen=True, slots=True)
class ReplaceDisk:
    """The bookie's process ends, the directory gets an empty disk, and the bookie heals itself."""

    bookie_id: str
    directory: str

    def __str__(self) -> str:
        return f"stop {self.bookie_id}, put an empty disk under {self.directory}, and start it again"


@dataclass(frozen=True, slots=True)
class Resume:
    """The bookie is back and takes new entries again, if the change had made it read-only."""

    bookie_id: str

    def __str__(self) -> str:
        return f"{self.bookie_id} is back, and needs nothing any more: let it take new entries again"


@dataclass(frozen=True, slots=True)
class Move:
    """Copy a fragment from ``source`` to ``target``, which then replaces ``source`` in the record."""

    ledger_id: int
    first_entry_id: int
    source: str
    target: str
    byte_count: int

    def __str__(self) -> str:
        what = f"ledger {self.ledger_id} from entry {self.first_entry_id} on"
        return f"move {what} from {self.source} to {self.target}"


@dataclass(frozen=True, slots=True)
class Stop:
    """The process of a bookie that no ledger names ends for good."""

    bookie_id: str

    def __str__(self) -> str:
        return f"stop {self.bookie_id} for good"


@dataclass(frozen=True, slots=True)
class Forget:
    """The cookie of a stopped bookie that no ledger names is removed."""

    bookie_id: str

    def __str__(self) -> str:
        return f"remove the cookie of {self.bookie_id}"


Step = SetReadOnly | Restart | ReplaceDisk | Resume | Move | Stop | Forget
Takes = (Restart, ReplaceDisk, Stop)
"""Steps that take a bookie down."""


@dataclass(frozen=True, slots=True)
class Decision:
    """All empty: the change is complete."""

    steps: tuple[Step, ...] = ()
    """Safe to make now. After each step but a ``Move`` the cluster is observed again."""
    waits: tuple[str, ...] = ()
    """Conditions that must come true by themselves first, in words."""
    refusals: tuple[str, ...] = ()
    """Reasons against the change in the present cluster, in words, with the remedy."""

    @property
    def complete(self) -> bool:
        return not (self.steps or self.waits or self.refusals)

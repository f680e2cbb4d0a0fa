"""An operator's wish for a cluster, and the progress of a change.

Law: ``Progress`` has only facts that can't be observed after a crash of the applying process: a bookie's state before the change,
and the bookies that the change made read-only or took down. It is kept durably *before* the step that needs it, so a successor
after a crash knows every affected bookie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bookspark.protocol.changes.observed import Observed
from bookspark.protocol.changes.steps import Forget, ReplaceDisk, Restart, Resume, SetReadOnly, Step, Stop


@dataclass(frozen=True)
class Wanted:
    """Bookies are named by their ids."""

    restart: frozenset[str] = frozenset()
    version: str = ""
    """For the bookies in ``restart``; bookies that already run it stay up. Empty: any."""
    replace_disks: Mapping[str, str] = field(default_factory=dict)
    """The directory that gets another disk, by bookie."""
    move: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Bookies that leave, each with the targets of its copies."""
    remove: frozenset[str] = frozenset()
    """Bookies that leave, with any targets."""
    balance: bool = False
    """Move copies to the bookies with the fewest bytes."""
    at_once: int = 1
    """Most bookies read-only or down because of the change."""
    below_write_quorum: bool = False
    """Restart bookies under ledgers that are being written, as long as an ack quorum stays up. False: wait until their writers
    have replaced the bookie."""

    @property
    def leaving(self) -> frozenset[str]:
        return self.remove | self.move.keys()

    def named(self) -> frozenset[str]:
        return self.restart | self.leaving | self.replace_disks.keys()

    def taking(self, bookie_id: str) -> Restart | ReplaceDisk | Stop | None:
        """The step that takes the bookie down; None if none is wanted."""
        if bookie_id in self.leaving:
            return Stop(bookie_id)
        if (disk := self.replace_disks.get(bookie_id)) is not None:
            return ReplaceDisk(bookie_id, disk)
        return Restart(bookie_id, self.version) if bookie_id in self.restart else None


class Before(NamedTuple):
    """A bookie's state when the change began."""

    incarnation: int
    """0: it was down."""
    lossy_boot: int


@dataclass(frozen=True)
class Progress:
    """Facts of a change that can't be observed."""

    before: Mapping[str, Before]
    quieted: frozenset[str] = frozenset()
    """Bookies that the change made read-only, and has to make writable again."""
    away: frozenset[str] = frozenset()
    """Bookies that the change took down, or is about to."""

    def begun(self, step: Step) -> Progress:
        """The progress to keep before the step is made."""
        match step:
            case SetReadOnly():
                return replace(self, quieted=self.quieted | {step.bookie_id})
            case Restart() | Stop() | ReplaceDisk():
                return replace(self, away=self.away | {step.bookie_id})
        return self

    def ended(self, step: Step) -> Progress:
        """The progress to keep once the step is made."""
        if isinstance(step, Resume | Forget):
            return replace(self, quieted=self.quieted - {step.bookie_id}, away=self.away - {step.bookie_id})
        return self


def begin(wanted: Wanted, observed: Observed) -> Progress:
    """Progress at the start. Other bookies that an earlier change left read-only become writable first."""
    seen = ((bookie, observed.bookies.get(bookie)) for bookie in sorted(wanted.named()))
    left = (name for name, one in observed.bookies.items() if one.read_only_by_change and name not in wanted.named())
    before = {bookie: Before(one.incarnation, one.lossy_boot) for bookie, one in seen if one is not None}
    return Progress(before, frozenset(left))

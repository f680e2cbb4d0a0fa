"""What an operator wants of a cluster, and how far a change is.

Law: what can be seen of the cluster is never kept here. ``Progress`` has only what nobody could see after a crash of the one who
applies the change: how a bookie was before it, which bookies the change itself made read-only, and which it took down. It is kept
durably *before* a step that needs it is made, so a change that goes on after a crash never forgets a bookie.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bookspark.protocol.changes.observed import Observed
from bookspark.protocol.changes.steps import Forget, ReplaceDisk, Restart, Resume, SetReadOnly, Step, Stop


@dataclass(frozen=True)
class Wanted:
    """A change of a cluster. Bookies are named by their ids."""

    restart: frozenset[str] = frozenset()
    """Bookies that are to run anew."""
    version: str = ""
    """The version that the bookies in ``restart`` are to run; those that run it already stay up. Empty: any."""
    replace_disks: Mapping[str, str] = field(default_factory=dict)
    """The directory that is to be on another disk, by bookie."""
    move: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Bookies that leave, each with those that get its copies."""
    remove: frozenset[str] = frozenset()
    """Bookies that leave; any others get their copies."""
    balance: bool = False
    """Copies are moved to the bookies that have the fewest bytes, as after new ones were started."""
    at_once: int = 1
    """How many bookies may be read-only or down at a time because of the change."""
    below_write_quorum: bool = False
    """Restart bookies under ledgers that are being written, as long as an ack quorum stays up. False: first wait until the
    ledgers' writers have replaced the bookie."""

    @property
    def leaving(self) -> frozenset[str]:
        """The bookies that are not to be part of the cluster any more."""
        return self.remove | self.move.keys()

    def named(self) -> frozenset[str]:
        """Every bookie that the change is about."""
        return self.restart | self.leaving | self.replace_disks.keys()


class Before(NamedTuple):
    """How a bookie was when the change began."""

    incarnation: int
    """0: it was down."""
    lossy_boot: int


@dataclass(frozen=True)
class Progress:
    """What a change has done, and what can't be seen."""

    before: Mapping[str, Before]
    quieted: frozenset[str] = frozenset()
    """Bookies that the change made read-only, and has to make writable again."""
    away: frozenset[str] = frozenset()
    """Bookies that the change took down, or is about to."""

    def begun(self, step: Step) -> Progress:
        """To be kept before the step is made."""
        match step:
            case SetReadOnly():
                return replace(self, quieted=self.quieted | {step.bookie_id})
            case Restart() | Stop() | ReplaceDisk():
                return replace(self, away=self.away | {step.bookie_id})
        return self

    def ended(self, step: Step) -> Progress:
        """To be kept once the step is made."""
        if isinstance(step, Resume | Forget):
            return replace(self, quieted=self.quieted - {step.bookie_id}, away=self.away - {step.bookie_id})
        return self


def begin(wanted: Wanted, observed: Observed) -> Progress:
    """The progress of a change that begins now."""
    seen = ((bookie, observed.bookies.get(bookie)) for bookie in sorted(wanted.named()))
    return Progress({bookie: Before(one.incarnation, one.lossy_boot) for bookie, one in seen if one is not None})

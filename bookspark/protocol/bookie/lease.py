"""The lease on a bookie: its holder looks after the process; a process without a holder ends at the deadline.

Law: at most one connection holds the lease; a lapsed lease never comes back; a stopping bookie grants none. So a client with the
lease has a bookie that serves on, and a refused client gets the reason::

                 Claim                      Drop (by the holder)      deadline passed      Stop
    UNCLAIMED    HELD, Grant                –                         STOPPING, End        STOPPING, End
    HELD         Refuse (names the holder)  UNCLAIMED, counts down    – (it has none)      STOPPING, End
    STOPPING     Refuse (is stopping)       –                         –                    –

A bookie starts UNCLAIMED, counting down; in the foreground it starts HELD by its own process, until it stops. Time is an
argument, in seconds of any monotonic clock, and is judged before the event: after the deadline a claim meets a stopping bookie.

Source: docs/decisions/bookies-outlive-tasks.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bookspark.protocol.ledger.transitions import LATE, cell_of, row


class LeaseState(Enum):
    UNCLAIMED = "unclaimed"
    HELD = "held"
    STOPPING = "stopping"


@dataclass(frozen=True, slots=True)
class Claim:
    """``connection`` asks for the lease; ``holder`` names its owner to people."""

    connection: int
    holder: str


@dataclass(frozen=True, slots=True)
class Drop:
    """``connection`` was closed, or its owner died. Only the holder's counts."""

    connection: int


@dataclass(frozen=True, slots=True)
class Stop:
    """``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Only time has passed."""


Event = Claim | Drop | Stop | Tick


@dataclass(frozen=True, slots=True)
class Grant:
    """``connection`` holds the lease now."""

    connection: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """``holder``: the lease's holder; empty if the bookie is stopping."""

    connection: int
    reason: str
    holder: str


@dataclass(frozen=True, slots=True)
class End:
    """Stop the bookie cleanly. Returned exactly once."""

    why: str


Action = Grant | Refuse | End


TRANSITIONS = {
    LeaseState.UNCLAIMED: row(taken=(Claim, Stop), late=(Drop, Tick)),
    LeaseState.HELD: row(taken=(Claim, Drop, Stop), late=(Tick,)),
    LeaseState.STOPPING: row(taken=(Claim,), late=(Drop, Stop, Tick)),
}


class Lease:
    """One bookie's lease. ``deadline``: the time of the next ``Tick``; None if none is due. ``holder``: name, for people, of a
    permanent holder from the start; "" for none."""

    def __init__(self, lease_seconds: float, now: float, holder: str = "") -> None:
        self.lease_seconds = lease_seconds
        self.state = LeaseState.HELD if holder else LeaseState.UNCLAIMED
        self.deadline: float | None = None if holder else now + lease_seconds
        self.holder = holder
        self._connection: int | None = None

    def step(self, event: Event, now: float) -> list[Action]:
        """The actions that follow from ``event`` at time ``now``, to be carried out in order.

        Raises IllegalEventError, and changes nothing, for an object that is no event of a lease.
        """
        cell_of(TRANSITIONS, self.state, event)
        actions: list[Action] = []
        if self.deadline is not None and now >= self.deadline:
            actions += self._end(f"nobody has held its lease for {self.lease_seconds:g} s")
        if cell_of(TRANSITIONS, self.state, event) is LATE:
            return actions
        match event:
            case Claim():
                actions += self._claim(event)
            case Drop() if event.connection == self._connection:
                self.state, self.deadline = LeaseState.UNCLAIMED, now + self.lease_seconds
                self.holder, self._connection = "", None
            case Stop():
                actions += self._end(event.why)
        return actions

    def _claim(self, claim: Claim) -> list[Action]:
        if self.state is LeaseState.STOPPING:
            return [Refuse(claim.connection, "the bookie is stopping", "")]
        if self.state is LeaseState.HELD and claim.connection != self._connection:
            return [Refuse(claim.connection, f"the lease is held by {self.holder}", self.holder)]
        self.state, self.deadline = LeaseState.HELD, None
        self.holder, self._connection = claim.holder, claim.connection
        return [Grant(claim.connection)]

    def _end(self, why: str) -> list[Action]:
        self.state, self.deadline = LeaseState.STOPPING, None
        self.holder, self._connection = "", None
        return [End(why)]

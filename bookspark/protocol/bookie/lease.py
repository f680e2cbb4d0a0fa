"""The lease on a bookie: who looks after the process, and when a process that nobody looks after has to end.

Law: at most one connection holds the lease; a lease that has lapsed never comes back; a bookie that is stopping is
adopted by nobody. So an adopter that was granted the lease has a bookie that serves on, and one that was refused learns
why::

                 Claim                      Drop (by the holder)      deadline passed      Stop
    UNCLAIMED    HELD, Grant                –                         STOPPING, End        STOPPING, End
    HELD         Refuse (names the holder)  UNCLAIMED, counts down    – (it has none)      STOPPING, End
    STOPPING     Refuse (is stopping)       –                         –                    –

A bookie starts UNCLAIMED, counting down. One that runs in the foreground starts HELD: its own process holds the lease until it
stops, so nobody else can claim it. Time comes in as an argument, in seconds of any clock that only goes forward. It is
looked at before the event is: a claim that comes after the deadline finds the bookie stopping.

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
    """``connection`` asks for the lease; ``holder`` says for whom, to people."""

    connection: int
    holder: str


@dataclass(frozen=True, slots=True)
class Drop:
    """``connection`` was closed: its owner closed it or died. Only the holder's counts."""

    connection: int


@dataclass(frozen=True, slots=True)
class Stop:
    """The bookie is to stop; ``why`` is for people."""

    why: str


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time has passed."""


Event = Claim | Drop | Stop | Tick


@dataclass(frozen=True, slots=True)
class Grant:
    """``connection`` holds the lease now."""

    connection: int


@dataclass(frozen=True, slots=True)
class Refuse:
    """``holder`` is who has the lease. It is empty if the bookie is stopping."""

    connection: int
    reason: str
    holder: str


@dataclass(frozen=True, slots=True)
class End:
    """Stop the bookie cleanly. Given exactly once."""

    why: str


Action = Grant | Refuse | End


TRANSITIONS = {
    LeaseState.UNCLAIMED: row(taken=(Claim, Stop), late=(Drop, Tick)),
    LeaseState.HELD: row(taken=(Claim, Drop, Stop), late=(Tick,)),
    LeaseState.STOPPING: row(taken=(Claim,), late=(Drop, Stop, Tick)),
}


class Lease:
    """One bookie's lease. ``deadline`` is the time at which a ``Tick`` is due; None if none is. ``holder``: who holds it from the
    beginning and for good, for people; "": nobody does."""

    def __init__(self, lease_seconds: float, now: float, holder: str = "") -> None:
        self.lease_seconds = lease_seconds
        self.state = LeaseState.HELD if holder else LeaseState.UNCLAIMED
        self.deadline: float | None = None if holder else now + lease_seconds
        self.holder = holder
        self._connection: int | None = None

    def step(self, event: Event, now: float) -> list[Action]:
        """The actions that follow from ``event`` at time ``now``, to be carried out in order.

        Raises IllegalEventError, and changes nothing, for what is no event of a lease.
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

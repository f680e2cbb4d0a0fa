"""A small world around the change planner: bookies that crash, writers, an operator, and an applier that dies.

The damage of taking a bookie down is counted here again, entry by entry, without the planner's arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from bookspark.protocol.changes import planner
from bookspark.protocol.changes.observed import Fragments, Observed, ObservedBookie, Placed
from bookspark.protocol.changes.steps import (
    Decision,
    Forget,
    Move,
    ReplaceDisk,
    Restart,
    Resume,
    SetReadOnly,
    Step,
    Stop,
    Takes,
)
from bookspark.protocol.changes.wanted import Progress, Wanted, begin


@dataclass(frozen=True)
class World:
    """A state of the world. All of it is values, so that states can be compared."""

    bookies: tuple[ObservedBookie, ...]
    fragments: tuple[Placed, ...]
    quieted: frozenset[str]
    away: frozenset[str]
    asked: frozenset[Step] = frozenset()
    """Steps an operator was asked for and has not done yet."""
    pending: Step | None = None
    """A step decided earlier and not applied yet."""
    noted: bool = False
    crashes: int = 0
    deaths: int = 0
    """How often the applier may still die."""
    new_ledgers: int = 0

    def of(self, name: str) -> ObservedBookie | None:
        return next((one for one in self.bookies if one.bookie_id == name), None)

    def with_bookie(self, name: str, **changes: object) -> World:
        return replace(self, bookies=tuple(replace(b, **changes) if b.bookie_id == name else b for b in self.bookies))


class Violated(AssertionError):
    """A law was broken by a step of the change."""


class Model:
    """Moves of one change of one small cluster."""

    def __init__(self, wanted: Wanted, fragments: list[Placed], bookies: int, autorecovery: bool = True) -> None:
        self.wanted = wanted
        names = [chr(ord("a") + k) for k in range(bookies)]
        every = tuple(ObservedBookie(name) for name in names)
        self.autorecovery = autorecovery
        self.before = begin(wanted, Observed({b.bookie_id: b for b in every})).before
        self.first = World(every, tuple(fragments), frozenset(), frozenset())
        self._decisions: dict[object, Decision] = {}

    # -- the change itself

    def progress(self, world: World) -> Progress:
        return Progress(self.before, world.quieted, world.away)

    def observed(self, world: World) -> Observed:
        bookies = {one.bookie_id: one for one in world.bookies}
        return Observed(bookies, Fragments(world.fragments), {}, {}, self.autorecovery)

    def decision(self, world: World) -> Decision:
        key = world.bookies, world.fragments, world.quieted, world.away
        if key not in self._decisions:
            self._decisions[key] = planner.decide(self.wanted, self.progress(world), self.observed(world), 4)
        return self._decisions[key]

    def applies(self, world: World) -> Iterator[World]:
        """Next states of the applier of the change."""
        if world.pending is None:
            steps = [step for step in self.decision(world).steps if step not in world.asked]
            if steps:
                yield replace(world, pending=steps[0])
            return
        step = world.pending
        if not world.noted:
            after = self.progress(world).begun(step)
            yield replace(world, noted=True, quieted=after.quieted, away=after.away)
            return
        bookie = None if isinstance(step, Move) else world.of(step.bookie_id)
        if isinstance(step, Takes) and bookie is not None and bookie.registered:
            if planner.permitted(self.wanted, self.progress(world), self.observed(world), step):
                yield replace(world, pending=None, noted=False)
                return
            self.check(world, step)
        yield replace(self.made(world, step), pending=None, noted=False)

    def made(self, world: World, step: Step) -> World:
        match step:
            case SetReadOnly() | Resume() if (bookie := world.of(step.bookie_id)) is None or not bookie.registered:
                return world
            case SetReadOnly():
                return world.with_bookie(step.bookie_id, read_only=True)
            case Resume():
                asked = frozenset(one for one in world.asked if getattr(one, "bookie_id", "") != step.bookie_id)
                world = replace(world, asked=asked)
                if step.bookie_id in world.quieted:
                    world = world.with_bookie(step.bookie_id, read_only=False)
            case Move():
                return self.moved(world, step)
            case Forget():
                if any(step.bookie_id in one.ensemble for one in world.fragments):
                    raise Violated(f"{step.bookie_id} is forgotten, and a ledger names it")
                world = replace(world, bookies=tuple(b for b in world.bookies if b.bookie_id != step.bookie_id))
            case _:
                return replace(world, asked=world.asked | {step})
        after = self.progress(world).ended(step)
        return replace(world, quieted=after.quieted, away=after.away)

    def moved(self, world: World, move: Move) -> World:
        """Copies are made only from a live source to a target that accepts them."""
        target = world.of(move.target)

        def after(one: Placed) -> Placed:
            sources = [b for b in one.ensemble if (found := world.of(b)) is not None and found.counts]
            if (
                (one.ledger_id, one.first_entry_id) != (move.ledger_id, move.first_entry_id)
                or one.open
                or target is None
                or not target.registered
                or move.target in one.ensemble
                or not sources
            ):
                return one
            return one._replace(ensemble=tuple(move.target if b == move.source else b for b in one.ensemble))

        return replace(world, fragments=tuple(map(after, world.fragments)))

    # -- the law, counted again

    def check(self, world: World, step: Step) -> None:
        """Taking this bookie down makes no entry unreadable and no open ledger unwritable."""
        assert not isinstance(step, Move)
        down = {one.bookie_id for one in world.asked if not isinstance(one, Move)} | {step.bookie_id}
        for one in world.fragments:
            if step.bookie_id not in one.ensemble:
                continue
            if one.open and not self.wanted.below_write_quorum:
                raise Violated(f"{step}: the open ledger {one.ledger_id} would be below its write quorum")
            size = len(one.ensemble)
            for entry_id in range(size):
                holders = {one.ensemble[(entry_id + k) % size] for k in range(one.write_quorum)}
                if step.bookie_id not in holders:
                    continue
                live = {b for b in holders - down if (found := world.of(b)) is not None and found.counts}
                if len(live) < one.ack_quorum:
                    raise Violated(
                        f"{step}: entry {entry_id} of ledger {one.ledger_id} would be on {sorted(live)} only"
                    )

    # -- everything outside the change

    def others(self, world: World) -> Iterator[World]:
        """Events that may befall the cluster meanwhile."""
        if world.deaths and world.pending is not None:
            yield replace(world, pending=None, noted=False, deaths=world.deaths - 1)
        for one in world.bookies:
            if world.crashes and one.registered:
                crashed = world.with_bookie(one.bookie_id, registered=False)
                yield replace(crashed, crashes=world.crashes - 1)
        if world.new_ledgers:
            members = tuple(b.bookie_id for b in world.bookies if b.registered)[:3]
            if len(members) == 3:
                new = Placed(90 + world.new_ledgers, 0, members, 3, 2, True, 1)
                yield replace(world, fragments=(*world.fragments, new), new_ledgers=world.new_ledgers - 1)
        yield from self.help(world)

    def help(self, world: World) -> Iterator[World]:
        """Events that happen sooner or later."""
        for step in sorted(world.asked, key=str):
            yield self.obeyed(world, step)
        stopped = {one.bookie_id for one in world.asked if isinstance(one, Stop)} | self.wanted.leaving
        for one in world.bookies:
            if not one.registered and one.bookie_id not in stopped:
                yield world.with_bookie(one.bookie_id, registered=True, incarnation=2)
            if one.registered and not one.settled:
                yield world.with_bookie(one.bookie_id, settled=True)
        for one in world.fragments:
            bad = [b for b in one.ensemble if (found := world.of(b)) is None or not found.writable]
            if one.open and bad:
                free = [b.bookie_id for b in world.bookies if b.writable and b.bookie_id not in one.ensemble]
                if free:
                    yield self.replaced(world, one, bad[0], free[0])

    def obeyed(self, world: World, step: Step) -> World:
        """The operator does the requested step; the process comes back later."""
        assert isinstance(step, Restart | ReplaceDisk | Stop)
        world = replace(world, asked=world.asked - {step})
        if isinstance(step, ReplaceDisk):
            return world.with_bookie(step.bookie_id, registered=False, settled=False, lossy_boot=1)
        return world.with_bookie(step.bookie_id, registered=False)

    def replaced(self, world: World, fragment: Placed, bad: str, other: str) -> World:
        """The writer moves to another bookie. Acknowledged entries stay; an empty fragment disappears."""
        ensemble = tuple(other if b == bad else b for b in fragment.ensemble)
        kept = [one for one in world.fragments if one != fragment]
        following = fragment._replace(first_entry_id=fragment.first_entry_id + 1, ensemble=ensemble)
        return replace(world, fragments=(*kept, fragment._replace(open=False), following))


def explore(model: Model, first: World, states_max: int, seen: Callable[[World], None] = lambda _: None) -> int:
    """Visit every reachable state. Raises Violated, and AssertionError above ``states_max`` states."""
    known = {first}
    left = [first]
    while left:
        world = left.pop()
        seen(world)
        for after in (*model.applies(world), *model.others(world)):
            if after not in known:
                known.add(after)
                left.append(after)
        assert len(known) <= states_max, "the bounds are too wide"
    return len(known)


def settle(model: Model, world: World) -> tuple[World, Decision]:
    """Apply inevitable events until there are none. Returns the final world and the decision there."""
    for _ in range(400):
        nexts = list(model.help(world)) or list(model.applies(world))
        if not nexts:
            return world, model.decision(world)
        world = nexts[0]
    raise AssertionError(f"the change does not end: {world}")

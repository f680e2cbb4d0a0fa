"""Every order within the bounds of the options, breadth first, so the story of the first violation is a shortest one.

Law: a state is left out only if ``Reductions`` replaces it by another, and a search reports whether it finished. A machine
makes each step once. So a state costs some lookups and a place in the set of visited states.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations, product
from operator import getitem
from sys import maxsize
from typing import Any, NamedTuple

from bookspark.errors import ConfigurationError
from bookspark.lab.simulation import messages as msg
from bookspark.lab.simulation.bookie import SimulatedBookie
from bookspark.lab.simulation.clients.client import content_of
from bookspark.lab.simulation.moves import Group, Terms
from bookspark.lab.simulation.search import calm
from bookspark.lab.simulation.search.calm import goes_on, waits_for_ever
from bookspark.lab.simulation.search.uncollected import uncollected
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.slots import SAME
from bookspark.lab.simulation.state import CLIENTS, CRASHES, Move, State
from bookspark.lab.simulation.values import Table
from bookspark.lab.simulation.verdicts import Alike
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World
from bookspark.protocol.bookie.bookie_ledger import IN_LIMBO, NO_SUCH_ENTRY
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerType
from bookspark.protocol.ledger.responses import FENCED, Positive
from bookspark.protocol.writing.ensemble_change import ChangeMode

# -- Reductions: states that a search may treat as equal
#
# Law: two states are treated as equal only if each violation reachable from either is reachable from the other. There are three
# reasons; for comparison, a test can switch off the first, or the other two:
#
# - *exchange*: the bookies of a ledger whose write set is its whole ensemble are alike. To exchange bookies in a client's
#   state, the client is stepped through the exchanged events (``World.origins``), however its machine keeps names. Not with
#   readers (they ask one bookie before another), spares or healing.
# - *ignored answers*: an answer that its client ignores now and for ever counts as lost, and a request with only such answers
#   has no waiting client. A trial step of the client decides. An answer ignored now is ignored for ever if the machine's
#   phases go one way: a lone recoverer never fences twice, a writer without spares never asks for an ack again.
# - *requests without effect*: a request without a waiting client that changes nothing now never will, because a bookie's
#   knowledge only grows, unless a crash or a collection can make it forget. An exception is an explicit LAC (last add
#   confirmed) refused because of an unsure fence: the metadata may settle the fence.


Known = tuple[tuple[int, ...], bool]
_NOTHING: Known = ((), False)


class Reductions:
    """Maps each state of a world to the state visited in its place."""

    def __init__(self, world: World, *, exchange: bool = True, prune: bool = True) -> None:
        o = world.options
        self.exchanges = (
            exchange
            and o.ensemble == o.write_quorum
            and not (o.readers or o.spares or o.heals or o.replicators or o.accept_loss or o.hold_ups or o.lost_bookies)
        )
        self.prunes = (
            prune
            and not (o.spares or o.heals or o.losses or o.duplicates or o.replicators or o.departures)
            and o.ensemble_changes is ChangeMode.OFF
            and o.ledger_type is LedgerType.PD_JOURNAL
        )
        self._forgets = o.deletes
        self._world = world
        writer_and_recoverers = range(CLIENTS, CLIENTS + (2 if o.recoverers == 1 else 1))
        self._one_way = frozenset(place - CLIENTS for place in writer_and_recoverers)
        self._last = CLIENTS + len(self._one_way)
        self._ignored: dict[tuple[int, int, int], bool] = {}
        self._pruned: dict[tuple[object, ...], int] = {}
        self._without: dict[int, int] = {}
        """Slots without their requests without effect."""
        self._renamed: dict[tuple[int, tuple[int, ...]], int] = {}

    def visited(self, state: State) -> State:
        """The state visited in place of this one."""
        if self.prunes:
            start, known = self._world.slots_from, self.knows(state)
            slots = [self.pruned(slot, place, known) for place, slot in enumerate(state[start:])]
            state = (*state[:start], *slots)
        return self.exchange(state) if self.exchanges else state

    def knows(self, state: State) -> Known:
        """The facts that decide a slot's reduction beside the slot: some clients, and whether bookies can no longer forget."""
        return (state[CLIENTS : self._last], not (state[CRASHES] or self._forgets)) if self.prunes else _NOTHING

    def pruned(self, slot: int, place: int, known: Known) -> int:
        """A slot without messages that make no difference."""
        if not self.prunes:
            return slot
        key = (slot, place, known)
        after = self._pruned.get(key)
        if after is None:
            after = self._pruned[key] = self._prune(slot, place, *known)
        return after

    # -- Ignored answers, requests without effect

    def _prune(self, slot: int, place: int, clients: tuple[int, ...], settled: bool) -> int:
        slots = self._world.slots
        messages, one_way = slots.messages.values, self._one_way
        for number in slots.table.values[slot].messages:
            of = messages[number].client
            if of not in one_way:
                continue
            if self._all_ignored(number, clients[of], place):
                slot = slots.take(slot, number)
                if msg.matters(messages[number].body):
                    slot = slots.put(slot, slots.message(msg.Message(msg.NOBODY, messages[number].body)))
        for message in slots.bookie(slot).waiting:
            if (
                message.client in one_way
                and not msg.is_request(message.body)
                and self._all_ignored(slots.message(message), clients[message.client], place)
            ):
                slot = slots.unheard(slot, message)
        return self._without_inert(slot) if settled else slot

    def _all_ignored(self, number: int, client: int, place: int) -> bool:
        """Whether the client, in this state, ignores every possible answer of the bookie at this place."""
        found = self._ignored.get((number, client, place))
        if found is not None:
            return found
        answers = self._answers(self._world.slots.messages[number])
        of = self._world.slots.messages[number].client
        found = all(self._ignores(of, client, place, answer) for answer in answers)
        self._ignored[number, client, place] = found
        return found

    def _answers(self, message: msg.Message) -> Iterator[msg.Answer]:
        if not msg.is_request(message.body):
            yield message.body  # type: ignore[misc]
        else:
            yield from _possible_answers(message.body, self._world.options.entries)  # type: ignore[arg-type]

    def _ignores(self, index: int, client: int, place: int, answer: msg.Answer) -> bool:
        world = self._world
        _, event = world.event(
            world.slots_from + place, msg.Message(index, answer), world.slots.bookie(world.slots.empty).incarnation
        )
        step = world.client_step(CLIENTS + index, client, event)
        return step.after == client and not step.sends

    def _without_inert(self, slot: int) -> int:
        found = self._without.get(slot)
        if found is not None:
            return found
        slots, after = self._world.slots, slot
        bookie = slots.bookie(slot)
        for number in slots.table[slot].messages:
            message = slots.messages[number]
            if message.client == msg.NOBODY and bookie.booting is None and not _in_doubt(bookie, message):
                delivered = slots.deliver(after, number, sync_at_once=True)
                if slots.table[delivered].bookie == slots.table[slot].bookie:
                    after = delivered
        self._without[slot] = after
        return after

    # -- Exchange of bookies

    def exchange(self, state: State) -> State:
        """The state with its bookies sorted, in an order that depends on their states only."""
        start = self._world.slots_from
        slots = state[start:]
        ordered = tuple(sorted(slots))
        alike = len(set(slots)) < len(slots)
        if not alike and ordered == slots:
            return state
        clients = state[CLIENTS:start]
        orders = _orders(slots) if alike else [tuple(map(slots.index, ordered))]
        best = min(tuple(self._rename(client, order) for client in clients) for order in orders)
        return (*state[:CLIENTS], *best, *ordered)

    def _rename(self, client: int, order: tuple[int, ...]) -> int:
        """The client as if bookie ``order[i]`` had been bookie i all along."""
        key = (client, order)
        found = self._renamed.get(key)
        if found is None:
            world = self._world
            origin = world.origins.get(client)
            if origin is None:
                found = client
            else:
                place, before, number = origin
                event = self._renamed_event(world.events[number], order)
                found = world.client_step(place, self._rename(before, order), world.events.number(event)).after
            self._renamed[key] = found
        return found

    def _renamed_event(self, event: Any, order: tuple[int, ...]) -> Any:
        bookie = getattr(event, "bookie", None)
        if bookie is None:
            return event
        bookies = self._world.bookies
        return replace(event, bookie=bookies[order.index(bookies.index(bookie))])


def _in_doubt(bookie: SimulatedBookie, message: msg.Message) -> bool:
    """Whether the metadata may decide if the bookie accepts this message."""
    unsure_to = max(bookie.mark.highest_ledger_id, bookie.collected.highest_ledger_id)
    return isinstance(message.body, msg.WriteLac) and unsure_to >= bookie.ledger_id


def _orders(slots: tuple[int, ...]) -> list[tuple[int, ...]]:
    """All orders of places that sort ``slots``."""
    groups = [[i for i, slot in enumerate(slots) if slot == value] for value in sorted(set(slots))]
    return [tuple(i for group in order for i in group) for order in product(*map(permutations, groups))]


def _possible_answers(request: msg.Request, entries: int) -> Iterator[msg.Answer]:
    match request:
        case msg.Add():
            for response in (Positive(), FENCED, IN_LIMBO):
                yield msg.AddAnswer(request.first, request.last, response)
        case msg.Read():
            first = request.first
            for negative in (NO_SUCH_ENTRY, IN_LIMBO):
                for last in range(first - 1, min(entries - 1, request.last) + 1):
                    contents = tuple(content_of(i) for i in range(first, last + 1))
                    yield msg.ReadAnswer(first, last, negative if last < request.last else Positive(), contents)
        case msg.WriteLac():
            for response in (Positive(), FENCED, IN_LIMBO):
                yield msg.WriteLacAnswer(response)
        case msg.HeldFrom():
            for last in range(request.first - 1, max(entries, request.first)):
                yield msg.HeldFromAnswer(request.first, last, Positive())
        case msg.ReadLac():
            yield msg.LacAnswer(IN_LIMBO)
            for last_add_confirmed in range(NO_ENTRY, entries):
                yield msg.LacAnswer(Positive(), last_add_confirmed, last_add_confirmed)


# -- The states after a state, as lookups: the work that many states share is done once.
#
# Law: the states after a state are those of ``World.moves``, ``World.apply`` and ``Reductions.visited``, in the order of the
# moves. A packed state is the number of its *head* (the record, the budgets and the clients), followed by its slots. The
# effect of a move is remembered by the least that it depends on:
#
# - a bookie's own move, and an arriving request: by the slot, and by the reductions' knowledge of the head;
# - an answer: by the head, the place and the message, whatever else is in the slot;
# - other moves of a slot: by the head and the slot; moves of clients and of the metadata: by the head.
#
# The effect on another slot is a list of new messages and of clients that stop waiting (``slots.SAME``). So a state costs a
# lookup for each of its slots, and each state after it a lookup for each changed slot.
#
# With an operator who names departed bookies, a move depends on several slots; then nothing is remembered.


Packed = tuple[int, ...]

NOWHERE = -1
"""No slot."""
_OWN = ("request", "boot", "sync", "told", "collect")
"""Moves that change only their slot, by its content and by whether everything is synced at once."""
_Own = dict[int, list[Any]]


class _After(dict[int, int]):
    """By slot at a place: the slot after the change ``symbolic``, reduced."""

    __slots__ = ("_known", "_parent", "_place", "_symbolic")

    def __init__(self, parent: Successors, known: Known, place: int, symbolic: int) -> None:
        self._parent, self._known, self._place, self._symbolic = parent, known, place, symbolic

    def __missing__(self, slot: int) -> int:
        after = self._parent.resolved(self._known, self._place, self._symbolic, slot)
        self[slot] = after
        return after


class _Step(NamedTuple):
    """A move: the head after it, and the change of each slot. A move that changes only its own slot is stored as the new slot,
    without a step."""

    head: int
    slots: tuple[dict[int, int], ...]


class _Head:
    """Known facts of a head. Its lists and dictionaries are by place."""

    def __init__(self, state: State, known: Known, terms: Terms, may_heal: list[bool], own: list[_Own]) -> None:
        self.state = state
        self.known = known
        self.terms = terms
        self.may_heal = may_heal
        self.own = own
        """By the number of a slot's moves (``PossibleMoves.numbers``): new slots, and moves that depend on the head."""
        self.alike: Alike | None = None
        self.waits = False
        """Whether an operation waits for ever if nothing is under way to and from bookies."""
        self.of_clients: list[Any] | None = None
        self.of_slots: list[dict[int, list[Any]]] = [{} for _ in own]
        """Slots and steps, by the slot."""
        self.heard: list[dict[tuple[int, int], Any]] = [{} for _ in own]
        """Effect of an answer, by its number and the incarnation of the bookie."""


class Successors:
    """The states after those of a world, under its reductions. ``moves_first``: a bookie's moves come before its crash, and
    answers after that."""

    def __init__(self, world: World, reductions: Reductions, *, moves_first: bool) -> None:
        self._world = world
        self._possible = world.possible
        self._reductions = reductions
        self._moves_first = moves_first
        self._remembers = not world.options.accept_loss
        self._numbers: Table[State] = Table(tuple)
        self._heads: list[_Head] = []
        self._own: dict[tuple[object, ...], list[_Own]] = {}
        self._after: dict[tuple[object, ...], _After] = {}
        self._exchanged: dict[tuple[int, tuple[int, ...]], int] = {}
        self._go_on: dict[int, bool] = {}
        self._start = world.slots_from
        self._bookies = len(world.bookies)
        self._same = (SAME,) * self._bookies
        self._empty = (world.slots.empty,) * self._bookies

    # -- packed states

    def pack(self, state: State) -> Packed:
        return (self._head(state[: self._start]), *state[self._start :])

    def unpack(self, packed: Packed) -> State:
        return (*self._numbers.values[packed[0]], *packed[1:])

    def _head(self, head: State) -> int:
        number = self._numbers.number(head)
        if number == len(self._heads):
            known, possible = self._reductions.knows(head), self._possible
            state = (*head, *self._empty)
            terms, sync_at_once = possible.terms(state), self._world.sync_at_once(head)
            key = (terms, known, sync_at_once)
            own = self._own.get(key)
            if own is None:
                own = self._own[key] = [{} for _ in range(self._bookies)]
            may_heal = [number < 0 for number in possible.numbers(state)[-self._bookies :]]
            self._heads.append(_Head(head, known, terms, may_heal, own))
        return number

    def violation(self, packed: Packed) -> Violation | None:
        """The first checker's violation in a state, or an operation that waits for ever in it."""
        head, verdicts = self._heads[packed[0]], self._world.verdicts
        if head.alike is None:
            head.alike = verdicts.alike(head.state)
            head.waits = self._waits(head.state)
        found = verdicts.of_slots(head.alike, packed[1:])
        return waits_for_ever(self._world, self.unpack(packed)) if found is None and head.waits else found

    def _waits(self, head: State) -> bool:
        """Whether an operation waits for ever if nothing is under way. Each client's answer is computed once."""
        for client in head[CLIENTS:]:
            found = self._go_on.get(client)
            if found is None:
                found = self._go_on[client] = goes_on(self._world, client)
            if found:
                return False
        return waits_for_ever(self._world, (*head, *self._empty)) is not None

    # -- Successors

    def of(self, packed: Packed) -> list[Packed]:
        """The reduced states after each move in a reduced state, possibly with repetitions."""
        if not self._remembers:
            return self._made(packed)
        number, slots = packed[0], packed[1:]
        head, exchanges, found = self._heads[number], self._reductions.exchanges, list[Packed]()
        if head.of_clients is None:
            head.of_clients = self._steps_of_clients(head)
        steps: list[Any] = [table.get(slot) for table, slot in zip(head.of_slots, slots, strict=True)]
        if None in steps:
            self._make_steps(head, slots, steps)
        for after, changes in head.of_clients:
            new = tuple(map(getitem, changes, slots))
            found.append(self._exchange(after, new) if exchanges else (after, *new))
        for at, mine in enumerate(steps):
            before, behind = slots[:at], slots[at + 1 :]
            least, most = (before[-1] if at else -1), (behind[0] if behind else maxsize)
            for step in mine:
                if isinstance(step, int):
                    # The bookies stay in order, and equal slots were equal before: no exchange is needed.
                    if not exchanges or least < step < most:
                        found.append((number, *before, step, *behind))
                    else:
                        found.append(self._exchange(number, (*before, step, *behind)))
                else:
                    after, changes = step
                    new = tuple(map(getitem, changes, slots))
                    found.append(self._exchange(after, new) if exchanges else (after, *new))
        return found

    def _made(self, packed: Packed) -> list[Packed]:
        world, state = self._world, self.unpack(packed)
        return [self.pack(self._reductions.visited(world.apply(state, move))) for move in world.moves(state)]

    def _exchange(self, head: int, slots: tuple[int, ...]) -> Packed:
        last = -1
        for slot in slots:
            if slot <= last:
                break
            last = slot
        else:
            return (head, *slots)
        ordered = sorted(slots)
        places = tuple(map(ordered.index, slots))
        found = self._exchanged.get((head, places))
        if found is None:
            state = self._reductions.exchange((*self._heads[head].state, *slots))
            found = self._exchanged[head, places] = self._head(state[: self._start])
        return (found, *ordered)

    # -- each move once

    def _steps_of_clients(self, head: _Head) -> list[Any]:
        state = (*head.state, *self._same)
        moves = self._possible.moves_of_clients(head.state, head.terms)
        return [self._step(head, self._world.apply(state, move), NOWHERE, SAME) for move in moves]

    def _make_steps(self, head: _Head, slots: tuple[int, ...], steps: list[Any]) -> None:
        """Make the missing steps."""
        for at, slot in enumerate(slots):
            if steps[at] is None:
                steps[at] = head.of_slots[at][slot] = self._steps_of_slot(head, at, slot)

    def _steps_of_slot(self, head: _Head, at: int, slot: int) -> list[Any]:
        number = ~slot if head.may_heal[at] else slot
        own = head.own[at].get(number)
        if own is None:
            moves = self._ordered(self._possible.group_of(self._start + at, number, head.terms))
            own = head.own[at][number] = [self._own_step(head, at, slot, move) for move in moves]
        return [self._step_of(head, at, slot, step) if isinstance(step, Move) else step for step in own]

    def _ordered(self, group: Group) -> list[Move]:
        """A crash comes after the bookie's other moves, and answers come last."""
        if not self._moves_first:
            return list(group)
        return sorted(
            group, key=lambda move: ("crash", "answer").index(move.kind) + 1 if move.kind in ("crash", "answer") else 0
        )

    def _own_step(self, head: _Head, at: int, slot: int, move: Move) -> int | Move:
        """The slot after a move that depends on nothing else, or the move."""
        if move.kind not in _OWN:
            return move
        after = self._world.apply(self._with(head, at, slot), move)
        return self._reductions.pruned(after[self._start + at], at, head.known)

    def _step_of(self, head: _Head, at: int, slot: int, move: Move) -> Any:
        slots = self._world.slots
        if move.kind != "answer" or slots.message_traits[move.argument].reachable:
            step = self._step(head, self._world.apply(self._with(head, at, slot), move), at, slot)
        else:
            key = (move.argument, slots.bookie(slot).incarnation)
            step = head.heard[at].get(key)
            if step is None:
                after = self._world.heard((*head.state, *self._same), move.place, *key)
                step = head.heard[at][key] = self._step(head, after, at, SAME)
        if not isinstance(step, _Step):
            return step[slot]
        # Slot numbers follow the order of first use, so this slot is resolved now and not at its lookup.
        step.slots[at][slot]
        return step

    def _with(self, head: _Head, at: int, slot: int) -> State:
        return (*head.state, *[slot if i == at else SAME for i in range(self._bookies)])

    def _step(self, head: _Head, after: State, at: int, slot: int) -> Any:
        """The step from ``head`` to ``after``, or the new slot at place ``at`` if nothing else changes. Slots in ``after``
        are symbolic, except the result of ``slot``."""
        number, symbols = self._head(after[: self._start]), after[self._start :]
        known = self._heads[number].known
        changes = [
            self._changes(known, i, one) if one < 0 else {slot: self._reductions.pruned(one, i, known)}
            for i, one in enumerate(symbols)
        ]
        others = [one for i, one in enumerate(symbols) if i != at]
        if at != NOWHERE and self._heads[number] is head and others.count(SAME) == len(others):
            return changes[at]
        return _Step(number, tuple(changes))

    def _changes(self, known: Known, at: int, symbolic: int) -> _After:
        key = (known, at, symbolic)
        found = self._after.get(key)
        if found is None:
            found = self._after[key] = _After(self, known, at, symbolic)
        return found

    def resolved(self, known: Known, at: int, symbolic: int, slot: int) -> int:
        """The reduced slot after the change ``symbolic`` of ``slot``."""
        return self._reductions.pruned(self._world.slots.resolved(symbolic, slot), at, known)


# -- The search


@dataclass(frozen=True, slots=True)
class Result:
    """``finished``: every state within the bounds was seen, or a violation was found."""

    states: int
    finished: bool
    violation: Violation | None
    moves: tuple[Move, ...]
    """A shortest story of the violation."""
    seconds: float
    """Processor time."""


class Exhaustive:
    def __init__(
        self,
        options: SimulationOptions,
        *,
        exchange: bool = True,
        prune: bool = True,
        invariant: str | None = None,
        moves_max: int | None = None,
    ) -> None:
        """``invariant``: search for a violation of this invariant, and ignore others. ``moves_max``: maximum length of
        stories."""
        if options.second_ledger:
            raise ConfigurationError("--second-ledger is for random schedules; leave it out of an exhaustive search")
        self.world = World(options)
        self._invariant = invariant
        self._moves_max = moves_max
        reductions = Reductions(self.world, exchange=exchange, prune=prune)
        self._visited = reductions.visited
        self._successors = Successors(self.world, reductions, moves_first=not _entangled(options))

    def run(self, states_max: int | None = None, seconds_max: float | None = None) -> Result:
        """Search until all states are seen, a violation is found, or a bound is reached."""
        with uncollected():
            return self._run(states_max, seconds_max)

    def _run(self, states_max: int | None, seconds_max: float | None) -> Result:
        started, used = time.monotonic(), time.process_time()
        world = self.world
        pack, successors = self._successors.pack, self._successors.of
        first = pack(self._visited(world.initial))
        numbers: dict[Packed, int] = {first: 0}
        parents = array("L", [0])
        layer, base = [first], 0

        def result(finished: bool, violated: Packed | None) -> Result:
            seconds = time.process_time() - used
            if violated is None:
                return Result(len(numbers), finished, None, (), seconds)
            moves, violation = self._story(violated, numbers, parents), self._successors.violation(violated)
            if violation is not None and violation.invariant == calm.INVARIANT:
                # Messages without effect may still be under way.
                moves = tuple(calm.until_stuck(world, moves) or moves)
            return Result(len(numbers), True, violation, moves, seconds)

        depth = 0
        while layer and depth != self._moves_max:
            depth += 1
            found: list[Packed] = []
            for offset, state in enumerate(layer):
                for after in successors(state):
                    new = len(parents)
                    if numbers.setdefault(after, new) == new:
                        parents.append(base + offset)
                        found.append(after)
                        violation = self._successors.violation(after)
                        if violation is not None and self._invariant in (None, violation.invariant):
                            return result(True, after)
                if states_max is not None and len(numbers) >= states_max:
                    return result(False, None)
                if seconds_max is not None and not offset % 256 and time.monotonic() - started > seconds_max:
                    return result(False, None)
            base += len(layer)
            layer = found
        return result(not layer, None)

    def successors(self, state: State) -> list[State]:
        """The visited states after the visited ``state``, possibly with repetitions."""
        after = self._successors
        return [after.unpack(packed) for packed in after.of(after.pack(state))]

    # -- the story

    def _story(self, state: Packed, numbers: dict[Packed, int], parents: array[int]) -> tuple[Move, ...]:
        """Moves with real names from the beginning to ``state``, or to a state that exchanges into it."""
        path = [numbers[state]]
        while path[-1]:
            path.append(parents[path[-1]])
        wanted = dict.fromkeys(path)
        by_number = {number: self._successors.unpack(one) for one, number in numbers.items() if number in wanted}
        world, here = self.world, self.world.initial
        moves: list[Move] = []
        for number in reversed(path[:-1]):
            for move in world.moves(here):
                after = world.apply(here, move)
                if self._visited(after) == by_number[number]:
                    break
            else:
                raise AssertionError("a visited state has no move that leads to it")
            moves.append(move)
            here = after
        return tuple(moves)


def _entangled(options: SimulationOptions) -> bool:
    """Whether a move may depend on, or change, more than its slot, its client, the record and the remaining crashes. Then
    lookups can't replace it: it spends budgets, a new connection ends requests of the old one, a departed bookie answers no
    client, the writer's progress forgets requests, or an operator names bookies."""
    o = options
    connects_anew = bool(o.losses or (o.crashes and o.ledger_type is LedgerType.VD_JOURNAL))
    return bool(connects_anew or o.duplicates or o.departures or o.heals or o.deletes or o.holds_back or o.accept_loss)

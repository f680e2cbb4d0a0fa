"""Reductions: states that a search may treat as equal.

Law: two states are treated as equal only if each violation reachable from either is reachable from the other. There are three
reasons; for comparison, a test can switch off the first, or the other two:

- *exchange*: the bookies of a ledger whose write set is its whole ensemble are alike. To exchange bookies in a client's
  state, the client is stepped through the exchanged events (``World.origins``), however its machine keeps names. Not with
  readers (they ask one bookie before another), spares or healing.
- *ignored answers*: an answer that its client ignores now and for ever counts as lost, and a request with only such answers
  has no waiting client. A trial step of the client decides. An answer ignored now is ignored for ever if the machine's
  phases go one way: a lone recoverer never fences twice, a writer without spares never asks for an ack again.
- *requests without effect*: a request without a waiting client that changes nothing now never will, because a bookie's
  knowledge only grows, unless a crash or a collection can make it forget. An exception is an explicit LAC (last add
  confirmed) refused because of an unsure fence: the metadata may settle the fence.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations, product
from typing import Any

from bookspark.lab.simulation import messages as msg
from bookspark.lab.simulation.bookie import SimulatedBookie
from bookspark.lab.simulation.clients.client import content_of
from bookspark.lab.simulation.state import CLIENTS, CRASHES, State
from bookspark.lab.simulation.world import World
from bookspark.protocol.bookie.bookie_ledger import IN_LIMBO, NO_SUCH_ENTRY
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerType
from bookspark.protocol.ledger.responses import FENCED, Positive
from bookspark.protocol.writing.ensemble_change import ChangeMode

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

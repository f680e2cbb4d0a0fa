"""The messages of a list of moves: sender, sending step and fate of each.

Law: a drawing comes from a replay of the moves in the world, and shows each message once: sent at a step, and at a later step
arrived, given up, or still under way at the end. Among equal messages the oldest arrives first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace

from bookspark.lab.simulation.clients.client import Begin
from bookspark.lab.simulation.messages import NOBODY, Message, is_request
from bookspark.lab.simulation.state import CLIENTS, METADATA, SECOND, Move, State
from bookspark.lab.simulation.story import say_answer, say_request
from bookspark.lab.simulation.world import World

METADATA_LANE = 0
_ASKS = frozenset(("store", "ask", "crash", "heal", "delete"))


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message between two lanes. ``arrived``, ``given_up``: the step, or None."""

    what: str
    sender: int
    receiver: int
    sent: int
    is_answer: bool
    arrived: int | None = None
    given_up: int | None = None


class Drawing:
    """The contents of a page's drawing. Steps count from 1."""

    def __init__(self, lanes: Seq[str] = ()) -> None:
        """``lanes``: names of the metadata store, of clients and of bookies."""
        self.lanes = lanes
        self.places: list[int] = []
        """The lane of each step."""
        self.arrows: list[Arrow] = []
        """The messages, in order of sending."""
        self.asked: set[int] = set()
        """The steps that talk to the metadata store."""


class Sequence(Drawing):
    """The drawing of a story."""

    def __init__(self, world: World, moves: Iterable[Move]) -> None:
        super().__init__(("metadata", *world.client_names, *world.bookies))
        self._world = world
        self._under_way: dict[tuple[int, int], list[int]] = {}
        """Indices of arrows by slot place and message number, oldest first."""
        state = world.initial
        for step, move in enumerate(moves, 1):
            after = world.apply(state, move)
            self._step(step, move, state, after)
            state = after

    def _step(self, step: int, move: Move, before: State, after: State) -> None:
        world = self._world
        hears = move.kind in ("answer", "timeout", "forget")
        client = world.slots.messages[move.argument].client if hears else 0
        self.places.append(self._lane(CLIENTS + client if hears else move.place))
        if move.kind in _ASKS or before[METADATA] != after[METADATA] or _begins(world, move):
            self.asked.add(step)
        for place in range(world.slots_from, len(after)):
            under_way, new = (Counter(world.slots.table[state[place]].messages) for state in (before, after))
            if place == move.place and move.kind == "duplicate":
                self.arrows.append(replace(self.arrows[self._under_way[place, move.argument][0]], arrived=step))
            if place == move.place and move.kind in ("request", "answer"):
                under_way[move.argument] -= 1
                self._end(place, move.argument, arrived=step)
            made = new - under_way
            for number in (under_way - new).elements():
                # A request without a waiting client may stay under way.
                orphan = world.slots.message(Message(NOBODY, world.slots.messages[number].body))
                if made[orphan] > 0:
                    made[orphan] -= 1
                    self._under_way.setdefault((place, orphan), []).append(self._under_way[place, number].pop(0))
                else:
                    self._end(place, number, given_up=step)
            for number in made.elements():
                self._under_way.setdefault((place, number), []).append(len(self.arrows))
                self.arrows.append(self._made(place, number, step))

    def _made(self, place: int, number: int, step: int) -> Arrow:
        message = self._world.slots.messages[number]
        bookie, client = self._lane(place), self._lane(CLIENTS + message.client)
        if is_request(message.body):
            return Arrow(say_request(message.body), client, bookie, step, is_answer=False)  # type: ignore[arg-type]
        return Arrow(say_answer(message.body), bookie, client, step, is_answer=True)  # type: ignore[arg-type]

    def _end(self, place: int, number: int, arrived: int | None = None, given_up: int | None = None) -> None:
        at = self._under_way[place, number].pop(0)
        self.arrows[at] = replace(self.arrows[at], arrived=arrived, given_up=given_up)

    def _lane(self, place: int) -> int:
        return METADATA_LANE if place in (METADATA, SECOND) else 1 + place - CLIENTS


def _begins(world: World, move: Move) -> bool:
    return move.kind == "user" and isinstance(world.events[move.argument], Begin)

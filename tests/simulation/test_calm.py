"""What becomes of a ledger once nothing goes wrong any more: its writer comes to an end.

A schedule is broken off at a random step. From there on no message is lost, no bookie crashes, all that is under way arrives, in
any order, and the writer's user closes the ledger.
"""

from __future__ import annotations

from random import Random

import pytest

from bookspark.protocol.ledger.actions import BookiesChosen, NoBookies
from bookspark.protocol.ledger.ledger_metadata import LedgerType, Replication
from bookspark.protocol.writing.writer import BookiesChanged, Close
from bookspark.simulation.search.random_schedules import RandomSchedules
from bookspark.simulation.state import CLIENTS, Move
from bookspark.simulation.story import tell
from bookspark.simulation.world import World

ALONE = {
    "departures": 0,
    "recoverers": 0,
    "readers": 0,
    "replicators": 0,
    "closes": True,
    "heals": False,
    "deletes": False,
}
_KINDS = ("request", "answer", "store", "boot", "sync", "told", "ask")
_STEPS_MAX = 1000
_NEWS_MAX = 3


def calm_moves(world: World, state: tuple[int, ...], news: int) -> list[Move]:
    """What happens if nothing goes wrong; news of bookies only if nothing else is left, and so many times."""
    user = [(move, world.events[move.argument]) for move in world.moves(state) if move.kind == "user"]
    found = [move for move in world.moves(state) if move.kind in _KINDS]
    found += [move for move, event in user if isinstance(event, Close | BookiesChosen | NoBookies)]
    return found or [move for move, event in user if isinstance(event, BookiesChanged) and news < _NEWS_MAX]


@pytest.mark.parametrize("replication", list(Replication))
@pytest.mark.parametrize("ledger_type", list(LedgerType))
def test_a_writer_that_is_left_alone_comes_to_an_end(ledger_type, replication):
    """A VD writer asked a bookie that had come back at another place in the ensemble to sync for ever, without a pause."""
    given = ALONE | {"losses": 2, "ledger_type": ledger_type, "replication": replication}
    schedules = RandomSchedules(given)
    for seed in range(101_600, 101_900):
        world, moves, _ = schedules.schedule(seed)
        random = Random(seed)
        del moves[random.randrange(len(moves) + 1) :]
        state = world.initial
        for move in moves:
            state = world.apply(state, move)
        steps = news = 0
        while steps < _STEPS_MAX and (possible := calm_moves(world, state, news)):
            moves.append(random.choice(possible))
            news += isinstance(world.events[moves[-1].argument], BookiesChanged) if moves[-1].kind == "user" else 0
            state = world.apply(state, moves[-1])
            steps += 1
        assert world.clients[state[CLIENTS]].outcome, "\n".join((str(seed), *tell(world, moves)[:200]))

"""Without further faults, all begun operations end.

From some moment on no message is lost, no bookie crashes or leaves, all messages under way arrive, in any order, users
begin nothing, and the writer's user closes the ledger. Requests to departed bookies time out. Then the writer, each
recovery, each repair and each read end, with success or an error. Exempt are a client that waits for new bookies because
only departed ones are left, and a writer without enough bookies that may not replace them, or must keep them.

In half of the cases the writer's user waits before the close: each append is acknowledged, and after a sync confirmed; on a
guaranteed ledger each entry is on all of its bookies. The idle writer then sends its LAC (last add confirmed), and each
remaining bookie knows it.

A schedule is continued in this way from a random moment, because at its end little is under way. Clients then get
impossible events, which must have no effect (``clients.writer``). In half of the cases, if all bookies are there, a bookie
leaves, so that the others are needed. An operation that does not end has no possible next move, or goes on for ever. A
second ledger on the same bookies must end, too.

An exhaustive search has all these continuations among its states. So it only looks for states without a possible next move
(``waits_for_ever``), and does not detect endless loops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Set
from operator import itemgetter
from random import Random
from types import UnionType
from typing import Any

from bookspark.lab.simulation.bookie import SimulatedBookie
from bookspark.lab.simulation.clients.client import CannotBe
from bookspark.lab.simulation.clients.writer import WriterClient
from bookspark.lab.simulation.second_ledger import TwoLedgers
from bookspark.lab.simulation.state import CLIENTS, CRASHES, DEPARTURES, Move, State
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World
from bookspark.protocol.ledger.actions import BookiesChosen, NoBookies
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.reading.lac_wait import LacWait
from bookspark.protocol.repair.ledger_replication import WriterWaitedFor
from bookspark.protocol.writing.ensemble_change import ChangeMode, quorum_lost
from bookspark.protocol.writing.writer import State as WriterState
from bookspark.protocol.writing.writer_events import BookiesChanged, Close, Sync

INVARIANT = "everything_begun_ends"
_KINDS = frozenset(("request", "answer", "store", "boot", "sync", "told", "ask"))
_ENDING = (Close, NoBookies, WriterWaitedFor)
_STEPS_MAX = 1000
"""Sixty times the usual number. Three recoveries and two repairs of a ledger took 354."""
_IMPOSSIBLE = 4
"""Maximum number of impossible events for a schedule's clients."""
_NEWS_MAX = 3
"""Maximum number of reports of new bookies to a writer, once nothing else is left, and of idle times after that."""


def calm_down(world: World, moves: Sequence[Move], random: Random) -> tuple[list[Move], Violation | None]:
    """Break a schedule off at a random moment and let all begun operations end. Returns the moves from the beginning, and the
    violation if an operation does not end."""
    state, done = world.initial, list[Move]()
    patient = random.random() < 0.5
    for move in moves[: random.randrange(len(moves) + 1)]:
        if _takes_answers_along(world, state, move):
            break
        state = world.apply(state, move)
        done.append(move)
    impossible = list(_impossible(world, state))
    for place, event in random.sample(impossible, min(_IMPOSSIBLE, len(impossible))):
        move = Move("user", place, world.events.number(CannotBe(event)))
        before, state = state, world.apply(state, move)
        done.append(move)
        if (violation := world.violation_after(before, state)) is not None:
            return done, violation
    if random.random() < 0.5 and not _gone(world, state):
        goes = Move("depart", random.randrange(world.slots_from, len(state)))
        if not _takes_answers_along(world, state, goes):
            state = world.apply(state, goes)
            done.append(goes)
    ends, _ = _let_end(world, state, done, random.choice, patient=patient)
    return done, ends


def _let_end(
    world: World, state: State, done: list[Move], choose: Callable[[list[Move]], Move], *, patient: bool
) -> tuple[Violation | None, bool]:
    """Let all begun operations end, and add the moves to ``done``. Returns the violation, if any, and whether moves remain.
    ``patient``: the writer is closed only after all other moves."""
    later, asked = 0, False
    for _ in range(_STEPS_MAX):
        possible = _moves(world, state, closes=not patient)
        if not possible and not asked:
            possible, asked = _sync(world, state), True
        if not possible:
            possible = (_news(world, state) if later < _NEWS_MAX else []) or _idle(world, state, later)
            later += 1
        if not possible:
            found = untold(world, state) or behind(world, state)
            if found is not None:
                return found, False
            if not patient or not (possible := _moves(world, state)):
                return stuck(world, state), False
            patient = False
        move = choose(possible)
        state = world.apply(state, move)
        done.append(move)
    return _violation(world, state, f"goes on for {_STEPS_MAX} steps"), True


def _impossible(world: World, state: State) -> Iterator[tuple[int, Any]]:
    for place in range(CLIENTS, world.slots_from):
        yield from ((place, event) for event in world.clients[state[place]].cannot_be())


def is_impossible(world: World, move: Move) -> bool:
    return _is_of_user(world, move, CannotBe)


def is_calms_own(world: World, state: State, move: Move) -> bool:
    """Whether calm may make this move regardless of the budgets."""
    if move.kind == "depart":
        return not _gone(world, state)
    return is_impossible(world, move) or move in (*_idle(world, state, 0), *_sync(world, state))


def stuck(world: World, state: State) -> Violation | None:
    """The violation of a state with a begun operation and without a move that could end it."""
    if _moves(world, state):
        return None
    return _violation(world, state, "waits for ever")


def waits_for_ever(world: World, state: State) -> Violation | None:
    """``stuck``, also after reports of new bookies, for a state with an unknown history. None after a crash or departure of a
    bookie, which may have taken answers along."""
    if state[CRASHES] < world.initial[CRASHES] or state[DEPARTURES] < world.initial[DEPARTURES]:
        return None
    found = stuck(world, state)
    for _ in range(_NEWS_MAX):
        news = _news(world, state) if found is not None else []
        if not news:
            break
        state = world.apply(state, news[0])
        found = stuck(world, state)
    return found


def _violation(world: World, state: State, what: str) -> Violation | None:
    left = list(_unended(world, state))
    return Violation(INVARIANT, f"{' and '.join(left)} {what}") if left else None


def until_stuck(world: World, moves: Sequence[Move]) -> list[Move] | None:
    """``moves``, continued by possible moves until an operation is stuck. None if all operations end."""
    state, done = world.initial, list(moves)
    for move in done:
        if _takes_answers_along(world, state, move):
            return None
        state = world.apply(state, move)
    for patient in (False, True):
        tried = list(done)
        violation, goes_on = _let_end(world, state, tried, itemgetter(0), patient=patient)
        if violation is not None and not goes_on:
            return done + _until_it_waits(world, state, tried[len(done) :])
    return None


def _until_it_waits(world: World, state: State, moves: list[Move]) -> list[Move]:
    """The part of ``moves`` after which a client waits for ever in any continuation; all of them if no client does."""
    waits: int | None = None
    for number, move in enumerate(moves):
        if not _moves(world, state):
            waits = None if stuck(world, state) is None else number if waits is None else waits
        state = world.apply(state, move)
    return moves if stuck(world, state) is None else moves[:waits]


def _takes_answers_along(world: World, state: State, move: Move) -> bool:
    """Whether the move ends a bookie that still owes answers. Their clients would run out of time, and there is no clock here."""
    if move.kind not in ("crash", "depart"):
        return False
    at = move.place - world.slots_from
    return any(one.slots.bookie(slots[one.slots_from + at]).owes_answers for one, slots in _ledgers(world, state))


def _ledgers(world: World, state: State) -> Iterator[tuple[World, State]]:
    """The world of each created ledger, with its state."""
    yield world, state
    if isinstance(world, TwoLedgers) and world.is_made(state):
        yield world.second, world.state_of_second(state)


def _moves(world: World, state: State, *, closes: bool = True) -> list[Move]:
    """The moves without faults. ``closes``: whether the writer's user may close the ledger."""
    gone = _gone(world, state)
    calm = [move for move in world.moves(state) if _is_calm(world, state, move, gone)]
    return calm if closes else [move for move in calm if not _is_of_user(world, move, Close)]


def _is_of_user(world: World, move: Move, event: type | UnionType) -> bool:
    return move.kind == "user" and isinstance(world.events[move.argument], event)


def _gone(world: World, state: State) -> Set[str]:
    slots = state[world.slots_from :]
    return {bookie for bookie, slot in zip(world.bookies, slots, strict=True) if world.slots.traits(slot).gone}


def _is_calm(world: World, state: State, move: Move, gone: Set[str]) -> bool:
    if move.kind == "second":
        assert isinstance(world, TwoLedgers)
        inner = world.move_of_second(move.argument)
        return inner is not None and _is_calm(world.second, world.state_of_second(state), inner, gone)
    if move.kind == "user":
        return _is_ending(world.events[move.argument], gone)
    return move.kind in _KINDS or (move.kind == "timeout" and world.slots.traits(state[move.place]).gone)


def goes_on(world: World, client: int) -> bool:
    """Whether a client can end its operation, or come nearer to its end, regardless of messages under way. All bookies are
    present."""
    return any(kind == "store" or _is_ending(world.events[event], set()) for kind, event in world.choices(client))


def _is_ending(event: Any, gone: Set[str]) -> bool:
    return isinstance(event, _ENDING) or (isinstance(event, BookiesChosen) and gone.isdisjoint(event.bookies))


def _news(world: World, state: State) -> list[Move]:
    return [move for move in world.moves(state) if _is_news(world, move)]


def _is_news(world: World, move: Move) -> bool:
    if move.kind == "second":
        assert isinstance(world, TwoLedgers)
        inner = world.move_of_second(move.argument)
        return inner is not None and _is_news(world.second, inner)
    return _is_of_user(world, move, BookiesChanged)


def _idle(world: World, state: State, told: int) -> list[Move]:
    """A move that sends the writer's LAC, unless it was made often enough."""
    writer = _writer(world, state)
    if told > 2 * _NEWS_MAX or writer.machine is None or not writer.machine.owes_explicit_lac:
        return []
    return [Move("user", CLIENTS, world.events.number(writer.idle()))]


def _sync(world: World, state: State) -> list[Move]:
    """Confirms the appends of a VD ledger (volatile durability)."""
    machine = _writer(world, state).machine
    volatile = world.options.ledger_type is LedgerType.VD_JOURNAL
    open_still = volatile and machine is not None and machine.state is WriterState.OPEN
    return [Move("user", CLIENTS, world.events.number(Sync()))] if open_still else []


def behind(world: World, state: State) -> Violation | None:
    """An append that waits for ever, though there are bookies enough and no other moves."""
    writer, gone = _writer(world, state), frozenset(_gone(world, state))
    machine, copies = writer.machine, world.options.ack_quorum
    if machine is None or machine.state is not WriterState.OPEN or writer.choosing or world.metadata(state) is None:
        return None
    metadata, guaranteed = machine.metadata, world.options.replication is Replication.GUARANTEED
    waited_for = [
        ("acknowledged", writer.last_add_acknowledged, copies),
        ("confirmed", writer.last_add_confirmed, copies),
    ]
    if guaranteed:
        waited_for.append(("fully replicated", writer.last_add_fully_replicated, world.options.write_quorum))
    for what, up_to, copies in waited_for:
        if up_to < writer.last_add_pushed and not quorum_lost(metadata, gone, copies):
            return Violation(INVARIANT, f"entry {up_to + 1} is not {what}, and nothing happens any more")
    return None


def untold(world: World, state: State) -> Violation | None:
    """A bookie that does not know the LAC of a writer that is idle and owes nothing. A bookie that may have lost it, or
    that accepts nothing more from the writer, is exempt."""
    writer = _writer(world, state)
    machine = writer.machine
    if machine is None or machine.state is not WriterState.OPEN or machine.cursors.pending:
        return None
    wanted = (writer.last_add_confirmed, writer.last_add_fully_replicated)
    if state[CRASHES] < world.initial[CRASHES]:
        # A LAFR is only in memory.
        wanted = (wanted[0], NO_ENTRY)
    for name in machine.metadata.last_fragment.ensemble if world.metadata(state) is not None else ():
        bookie = world.slots.bookie(state[world.slots_from + world.bookies.index(name)])
        known = _known(bookie)
        if known is not None and (known[0] < wanted[0] or known[1] < wanted[1]):
            what = f"{name} knows LAC {known[0]} and LAFR {known[1]} and is not told that they are {wanted[0]} and {wanted[1]}"
            return Violation(INVARIANT, what)
    return None


def untold_at_rest(world: World, state: State) -> Violation | None:
    """``untold`` and ``behind``, for a state with an unknown history: None while a move is possible or the writer owes a LAC."""
    machine = _writer(world, state).machine
    at_rest = machine is not None and not machine.owes_explicit_lac and not _moves(world, state, closes=False)
    return (untold(world, state) or behind(world, state)) if at_rest else None


def _known(bookie: SimulatedBookie) -> tuple[int, int] | None:
    """The LAC and the LAFR known to a bookie; None for an exempt bookie."""
    ledger = bookie.ledger
    if bookie.gone or bookie.lost_boots:
        return None
    if ledger is None:
        return NO_ENTRY, NO_ENTRY
    if ledger.fenced or ledger.limbo or ledger.fence_unsure:
        return None
    return ledger.last_add_confirmed, ledger.last_add_fully_replicated


def _writer(world: World, state: State) -> WriterClient:
    writer = world.clients[state[CLIENTS]]
    assert isinstance(writer, WriterClient)
    return writer


def _unended(world: World, state: State) -> Iterator[str]:
    """The clients with a begun operation that has not ended."""
    for one, of_one in _ledgers(world, state):
        of = "" if one is world else f" of ledger {one.ledger_id}"
        yield from (f"{client}{of}" for client in _unended_of_one(one, of_one))


def _unended_of_one(world: World, state: State) -> Iterator[str]:
    gone = _gone(world, state)
    for name, number in zip(world.client_names, state[CLIENTS : world.slots_from], strict=True):
        client = world.clients[number]
        # A long poll waits for an entry that may never come, and a ledger without a close stays open.
        endless = isinstance(client.machine, LacWait) or (
            isinstance(client, WriterClient) and (not world.options.closes or _lacks_bookies(world, state, gone))
        )
        if client.machine is not None and client.choosing is None and not endless:
            yield f"the {name}"


def _lacks_bookies(world: World, state: State, gone: Set[str]) -> bool:
    """Whether too few bookies are left for a writer that can't replace them: it may not, or its policy keeps bookies with
    confirmed entries. Any other writer gives up without bookies. Bookies keep nothing of a deleted ledger."""
    options, writer = world.options, _writer(world, state)
    guaranteed, metadata = options.replication is Replication.GUARANTEED, world.metadata(state)
    if writer.machine is None or not (guaranteed or options.ensemble_changes is ChangeMode.OFF):
        return False
    if metadata is None:
        return True
    left, copies = writer.machine.metadata, options.write_quorum if guaranteed else options.ack_quorum
    return quorum_lost(left, frozenset(gone), copies) and not _can_replace(world, left, gone)


def _can_replace(world: World, metadata: LedgerMetadata, gone: Set[str]) -> bool:
    """Whether there are bookies to replace the departed ones, and a copy of each confirmed entry is left."""
    options, ensemble = world.options, {*metadata.last_fragment.ensemble}
    lost, others = len(gone & ensemble), len({*world.bookies} - ensemble - gone)
    may_replace = options.ensemble_changes is not ChangeMode.OFF
    return may_replace and lost < options.ack_quorum and lost <= others

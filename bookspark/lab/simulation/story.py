"""A list of moves, told in plain, numbered sentences.

Law: a story comes from a replay of the moves in the world, so it tells only real events. An impossible move ends it with an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from bookspark.lab.simulation import messages as msg
from bookspark.lab.simulation.bookie import SimulatedBookie
from bookspark.lab.simulation.clients.client import Begin, CannotBe
from bookspark.lab.simulation.clients.reader import BeginWaiting, MetadataWatched
from bookspark.lab.simulation.clients.recoverer import BeginAccepting
from bookspark.lab.simulation.clients.repair import LookForCopies, TakeForLost
from bookspark.lab.simulation.search.calm import is_calms_own, stuck, untold_at_rest
from bookspark.lab.simulation.second_ledger import TwoLedgers
from bookspark.lab.simulation.state import CLIENTS, METADATA, SECOND, Move, State
from bookspark.lab.simulation.values import clone
from bookspark.lab.simulation.world import World
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.ledger_metadata import LedgerMetadata
from bookspark.protocol.ledger.responses import Negative, Positive, Response, Unknown
from bookspark.protocol.repair.ledger_replication import WriterWaitedFor
from bookspark.protocol.writing.writer_events import Abandon, Append, BookiesLost, Close, HeldUp, Idle, Sync, TellLac


def tell(world: World, moves: Iterable[Move]) -> list[str]:
    """A sentence for each move, numbered from 1, and at the end the violation, if any.

    Raises ValueError for an impossible move.
    """
    lines: list[str] = []
    state = world.initial
    for number, move in enumerate(moves, 1):
        if move not in world.moves(state) and not is_calms_own(world, state, move):
            raise ValueError(f"step {number} of the story, {move}, is not possible")
        after = world.apply(state, move)
        lines.append(f"{number:3}. {sentence(world, state, move, after)}")
        state = after
    violation = world.violation(state) or stuck(world, state) or untold_at_rest(world, state)
    if violation is not None:
        lines.append(f"     → {violation.invariant}: {violation.what}.")
    return lines


def sentence(world: World, state: State, move: Move, after: State) -> str:
    """The sentence for ``move``, which leads from ``state`` to ``after``."""
    kind, place, argument = move
    slots = world.slots
    if kind == "delete":
        return f"the ledger is deleted ({say_metadata(world.records[state[METADATA]].metadata)})"
    if isinstance(world, TwoLedgers) and place == SECOND:
        said = world.in_second(state, argument)
        return f"ledger {world.second.ledger_id}: " + (
            "it is made" if said is None else sentence(world.second, said.before, said.move, said.after)
        )
    if place < world.slots_from:
        name = world.client_names[place - CLIENTS]
        match kind:
            case "user":
                return _user(world, state, place, name, argument)
            case "store":
                return _store(world, state, place, name)
            case "store_lost":
                return f"the {name} hears nothing from the metadata store, and fails"
            case "deadline":
                return f"the {name} runs out of time"
    bookie = world.bookies[place - world.slots_from]
    match kind:
        case "request" | "duplicate":
            message = slots.messages[argument]
            again = ", and a copy of it stays under way" if kind == "duplicate" else ""
            what = f"{_whose(world, message.client)}{say_request(message.body)} reaches {bookie}{again}"  # type: ignore[arg-type]
            return f"{what}: {_outcome(world, state[place], after[place])}"
        case "answer":
            message = slots.messages[argument]
            told = _told(
                world,
                state,
                CLIENTS + message.client,
                world.event(place, message, world.slots.bookie(state[place]).incarnation)[1],
            )
            return f"the {_name(world, message.client)} hears from {bookie}: {say_answer(message.body)}{told}"  # type: ignore[arg-type]
        case "forget":
            message = slots.messages[argument]
            return f"{say_request(message.body)} waited for {bookie} and is forgotten, as the writer is done with it"  # type: ignore[arg-type]
        case "timeout":
            message = slots.messages[argument]
            return f"the {_name(world, message.client)} waits no longer for {bookie} ({type(message.body).__name__})"
        case "crash":
            lost = "everything" if world.options.crash_loses.value == "everything" else "what was not synced"
            booting = slots.bookie(after[place]).booting is not None
            return f"{bookie} crashes and loses {lost}" + (
                ": its boot is lossy, it reads the metadata" if booting else ""
            )
        case "depart":
            return f"{bookie} is gone for good"
        case "boot":
            return f"{bookie} serves again ({_condition(slots.bookie(after[place]))})"
        case "sync":
            return f"{bookie} syncs"
        case "ask":
            return f"{bookie} reads the metadata ({say_store(world, state)}) for an add"
        case "told":
            return f"{bookie} decides the add that waited: {_outcome(world, state[place], after[place])}"
        case "heal":
            return f"{bookie} begins to heal the ledger"
        case "collect":
            return f"{bookie} collects the ledger"
    raise AssertionError(f"unknown move {kind}")


def _user(world: World, state: State, place: int, name: str, argument: int) -> str:
    match world.events[argument]:
        case Append():
            writer = world.clients[state[place]].machine
            return f"the writer appends e{writer.cursors.last_add_pushed + 1}"
        case Close():
            return f"the writer's user closes the ledger{_told(world, state, place, argument)}"
        case act.BookiesChosen() as chosen:
            return f"the {name} is to use {', '.join(chosen.bookies)}{_told(world, state, place, argument)}"
        case act.NoBookies():
            return f"the {name} finds no bookies for an ensemble change{_told(world, state, place, argument)}"
        case Abandon():
            return "the writer's client ends without a close"
        case act.DeadlinePassed():
            return f"the time of the {name} is over"
        case CannotBe() as told:
            return f"the {name} is told what can't be, {told.event}"
        case Sync():
            return f"the {name}'s user asks for a sync"
        case HeldUp() as held:
            return f"the writer is held up by {', '.join(held.bookies)}{_told(world, state, place, argument)}"
        case BookiesLost() as lost:
            return f"the writer hears that {', '.join(lost.bookies)} is lost{_told(world, state, place, argument)}"
        case act.ReadIsLate():
            return f"the {name} asks another replica for entry {world.events[argument].first} as well"
        case TakeForLost() as taken:
            return f"the {name} takes {taken.bookie} for lost, and reads the metadata ({say_store(world, state)})"
        case LookForCopies():
            return f"the {name} looks for lacking copies, and reads the metadata ({say_store(world, state)})"
        case WriterWaitedFor():
            seen = (
                "and a bookie is connected with it"
                if world.events[argument].lives
                else "and no bookie is connected with it"
            )
            return f"the {name} has waited for the writer to replace the bookie, {seen}"
        case TellLac():
            writer = world.clients[state[place]].machine
            return f"the writer tells its LAC {writer.cursors.last_add_confirmed} without an entry"
        case Idle():
            writer = world.clients[state[place]].machine
            return f"the writer is idle, and tells its LAC {writer.cursors.last_add_confirmed} to those that may not know it"
        case BeginWaiting():
            return f"the {name} opens the ledger to wait for the next entry ({say_store(world, state)})"
        case MetadataWatched():
            return f"the {name}, still waiting, looks at the metadata"
        case BeginAccepting() as begun:
            named = f", naming {', '.join(begun.named)} as lost" if begun.named else ""
            return f"the {name} opens the ledger, accepts a loss{named}, and reads its metadata ({say_store(world, state)})"
        case Begin():
            return f"the {name} opens the ledger and reads its metadata ({say_store(world, state)})"
    return f"the {name}: {world.events[argument]}"


def _store(world: World, state: State, place: int, name: str) -> str:
    record = world.records[state[METADATA]]
    match world.clients[state[place]].store:
        case act.ReadMetadata():
            return f"the {name} reads the metadata ({say_store(world, state)})"
        case act.WriteMetadata() as write:
            won = "" if write.version == record.version else ", and loses: the record has changed"
            won = ", and loses: the ledger is deleted" if record.deleted else won
            return f"the {name} writes the metadata ({say_metadata(write.metadata)}){won}"
        case act.MetadataWritten() as answer:
            return f"the {name} learns that its metadata was written{_told(world, state, place, world.events.number(answer))}"
        case act.MetadataConflict():
            return f"the {name} learns that the record had changed"
        case act.MetadataFailed():
            return f"the {name} learns that the ledger is deleted"
    return f"the {name} waits for nothing"


def _told(world: World, state: State, place: int, event: int) -> str:
    """The client's results for its user, after a semicolon."""
    copy = clone(world.clients[state[place]])
    _, told = copy.stepped(world.events[event], world.options)
    failed = f"; its machine fails: {copy.defect}" if copy.defect else ""
    return "".join(f"; {said}" for action in told for said in _say_told(action)) + failed


def _say_told(action: Any) -> Iterator[str]:
    match action:
        case act.Confirm():
            yield f"entry {action.last_add_confirmed} is confirmed"
        case act.Deliver():
            yield f"{', '.join(action.entries)} is read"
        case act.Finish() if isinstance(action.metadata, LedgerMetadata) and action.metadata.closed:
            yield f"done, the ledger is {say_metadata(action.metadata)}"
        case act.Fail():
            yield f"it ends with {type(action.error).__name__}"


def say_store(world: World, state: State) -> str:
    """The ledger's record in the metadata store, in words."""
    record = world.records[state[METADATA]]
    return "it is deleted" if record.deleted else say_metadata(record.metadata)


def _name(world: World, client: int) -> str:
    return world.client_names[client]


def _whose(world: World, client: int) -> str:
    return "a forgotten " if client == msg.NOBODY else f"the {_name(world, client)}'s "


def say_metadata(metadata: LedgerMetadata) -> str:
    """The state, the end of a closed ledger, and the fragments if there are several."""
    words = metadata.state.value
    if metadata.closed:
        words += f" at entry {metadata.last_entry_id}"
    if metadata.accepted_loss is not None:
        words += " with an accepted loss"
    if len(metadata.fragments) > 1:
        words += "".join(f", from {f.first_entry_id} on {' '.join(f.ensemble)}" for f in metadata.fragments)
    return words


def say_request(request: msg.Request) -> str:
    match request:
        case msg.Add():
            who = "write-back" if request.recovery else "add"
            return f"{who} of {', '.join(request.contents)} (LAC {request.last_add_confirmed})"
        case msg.Read():
            return f"{'fencing read' if request.fence else 'read'} of entry {request.first} on"
        case msg.ReadLac():
            return f"{'fencing ' if request.fence else ''}LAC read"
        case msg.HeldFrom():
            return f"question for entries from {request.first} on"
        case msg.SyncLedger():
            return "request to sync"
        case msg.WriteLac():
            return f"explicit LAC {request.last_add_confirmed}"
    return type(request).__name__.lower()


def say_answer(answer: msg.Answer) -> str:
    match answer:
        case msg.AddAnswer():
            synced = f", synced up to {answer.synced.last_add_synced}" if answer.synced else ""
            return f"add of {answer.first} {say_response(answer.response)}{synced}"
        case msg.SyncAnswer():
            return f"synced up to {answer.synced.last_add_synced}" if answer.synced else say_response(answer.response)
        case msg.WriteLacAnswer():
            return f"explicit LAC {say_response(answer.response)}"
        case msg.Reachable():
            return "it can be reached again"
        case msg.ReadAnswer():
            end = (
                "" if isinstance(answer.following, Positive) else f"{answer.last + 1} {say_response(answer.following)}"
            )
            return ", ".join(filter(None, (*answer.contents, end)))
        case msg.HeldFromAnswer():
            has = (
                f"it has entry {answer.last}" if answer.last >= answer.first else f"it has none from {answer.first} on"
            )
            return has if isinstance(answer.response, Positive) else say_response(answer.response)
        case msg.LacAnswer():
            told = f"LAC {answer.last_add_confirmed}"
            return told if isinstance(answer.response, Positive) else f"LAC {say_response(answer.response)}"
    return type(answer).__name__


def say_response(response: Response) -> str:
    match response:
        case Positive():
            return "ok"
        case Negative():
            return response.reason.value
        case Unknown():
            return f"unknown ({response.reason.value})"


def _outcome(world: World, before: int, after: int) -> str:
    """The effect of the request, from the changes in the slot."""
    slots = world.slots
    old, new = slots.bookie(before), slots.bookie(after)
    was = slots.table[before].messages
    answers = [
        slots.messages[m] for m in slots.table[after].messages if slots.table[after].messages.count(m) > was.count(m)
    ]
    words = [_answered(answer) for answer in answers]
    if len(new.unsure) > len(old.unsure):
        words.append("it waits for the metadata")
    if len(new.waiting) > len(old.waiting):
        words.append("its ack waits for the sync")
    if (held := new.rows.keys() - old.rows.keys()) and not words:
        words.append(f"it holds {', '.join(f'e{i}' for i in sorted(held))} now")
    if _fenced(new) and not _fenced(old):
        words.append("it is fenced now")
    return ", ".join(words) or "nothing comes of it"


def _answered(message: msg.Message) -> str:
    return f"it answers {say_answer(message.body)}"  # type: ignore[arg-type]


def _fenced(bookie: SimulatedBookie) -> bool:
    return bookie.ledger is not None and bookie.ledger.fenced


def _condition(bookie: SimulatedBookie) -> str:
    words = []
    if bookie.mark.highest_ledger_id >= 0:
        words.append("lossy-boot mark set")
    words.append("fenced" if _fenced(bookie) else "not fenced")
    words.append("in limbo" if bookie.ledger is not None and bookie.ledger.limbo else "not in limbo")
    return ", ".join(words)

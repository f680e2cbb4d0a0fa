"""A ledger's history, repeated in the simulator: recorded steps of its writer and recoverers become moves of a world.

Law: nothing is invented. A message arrives only because its answer was heard, in the order of the record; the world's own
machines and bookies decide. So the story ends with the history, with a violation that the protocol allows, or where reality
leaves the simulator: a bookie's answer differs, or a step has no move.

A batch is appended entry by entry. Steps without a counterpart in the simulator are skipped and counted: a restored
connection, a reader, an explicit LAC (last add confirmed) that no client owes there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from bookspark.lab.replay.joining import Ledger
from bookspark.lab.replay.replaying import Step, ledger_of
from bookspark.lab.replay.telling import NOT_HEARD, say_heard
from bookspark.lab.simulation import messages as msg
from bookspark.lab.simulation.clients.client import Begin
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.state import CLIENTS, Move, State
from bookspark.lab.simulation.story import say_answer, sentence, tell
from bookspark.lab.simulation.view import Violation
from bookspark.lab.simulation.world import World
from bookspark.protocol.ledger import actions as act
from bookspark.protocol.ledger.responses import Positive, Unknown, UnknownReason
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer_events import Abandon, Append, Close, ExplicitLacAnswered, Idle, TellLac

ENTRIES_MAX = 500
_RECOVERERS_MAX = 4
_ANSWERS: dict[type, tuple[type, type]] = {
    act.AddAnswered: (msg.Add, msg.AddAnswer),
    act.ReadAnswered: (msg.Read, msg.ReadAnswer),
    act.LacAnswered: (msg.ReadLac, msg.LacAnswer),
    act.HeldAnswered: (msg.HeldFrom, msg.HeldFromAnswer),
    ExplicitLacAnswered: (msg.WriteLac, msg.WriteLacAnswer),
}


class Played(NamedTuple):
    """Result of a history in the simulator."""

    world: World
    moves: list[Move]
    violation: Violation | None
    left: str
    """Step at which reality differs from the simulator, in words; "": none."""
    passed_over: int

    def lines(self) -> list[str]:
        lines = tell(self.world, self.moves)
        if self.left:
            lines.append(f"     → here reality left the simulator: {self.left}.")
        return lines


class _LeftError(Exception):
    """A recorded step without a move in the world."""


class Staging:
    """Collects the steps of a ledger's writer and recoverers. Give ``observe`` to a replay, then ``play``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._steps: list[tuple[int, Step]] = []
        self._ours: dict[tuple[str, int], bool] = {}

    def observe(self, step: Step) -> None:
        """Record a decision, if it concerns the ledger."""
        if step.kind not in ("LedgerWriter", "LedgerRecovery") or step.error is not None:
            return
        who = (step.process, step.number)
        if who not in self._ours:
            event = step.args[0]
            about = event.metadata.ledger_id if isinstance(event, act.MetadataRead) else ledger_of(step.machine)
            self._ours[who] = about == self._ledger.ledger_id
        if self._ours[who]:
            # Safe to keep: nothing reads the step's machine later, though it changes.
            self._steps.append((step.at_ns, step))

    def play(self) -> Played:
        steps = [step for _, step in sorted(self._steps, key=lambda one: one[0])]
        stage = _Stage(self._ledger, steps)
        left = ""
        for step in steps:
            try:
                stage.play(step)
            except _LeftError as error:
                left = str(error)
                break
            if stage.violation is not None:
                break
        return Played(stage.world, stage.moves, stage.violation, left, stage.passed_over)


class _Stage:
    """A world, its current state and the moves so far."""

    def __init__(self, ledger: Ledger, steps: list[Step]) -> None:
        m = ledger.begun or ledger.metadata
        assert m is not None
        first = m.fragments[0].ensemble
        named = [b for s in steps for b in (getattr(s.args[0], "bookie", None), *_chosen(s)) if b is not None]
        bookies = list(dict.fromkeys((*first, *named)))
        recoverers = list(dict.fromkeys((s.process, s.number) for s in steps if s.kind == "LedgerRecovery"))
        self.world = World(
            SimulationOptions(
                m.ensemble_size,
                m.write_quorum,
                m.ack_quorum,
                spares=len(bookies) - m.ensemble_size,
                entries=min(ENTRIES_MAX, sum(s.args[0].count for s in steps if _appends(s))),
                recoverers=min(_RECOVERERS_MAX, len(recoverers)),
                explicit_lacs=sum(isinstance(s.args[0], TellLac | Idle) for s in steps if s.answer),
                losses=sum(_unheard(s.args[0]) for s in steps),
                abandons=any(isinstance(s.args[0], Abandon) for s in steps),
                ledger_type=m.ledger_type,
                replication=m.replication,
                ensemble_changes=ChangeMode.AT_ONCE,
            )
        )
        self.state: State = self.world.initial
        self.moves: list[Move] = []
        self.passed_over = 0
        self._names = dict(zip(bookies, self.world.bookies, strict=True))
        self._taken = {(self._names[bookie], entry_id) for bookie, entry_id in _taken(steps)}
        """Pairs of a bookie and an entry that it accepted from the writer."""
        self._clients = {who: number for number, who in enumerate(recoverers, 1)}

    @property
    def violation(self) -> Violation | None:
        return self.world.violation(self.state)

    def play(self, step: Step) -> None:
        """Make the moves of a step. Raises _LeftError if there are none."""
        client = self._clients.get((step.process, step.number), 0)
        event = step.args[0]
        match event:
            case Append(count):
                for _ in range(count):
                    self._user(client, Append, event)
            case Close() | Abandon() | act.BookiesChosen() | act.NoBookies():
                self._user(client, type(event), event)
            case act.MetadataRead() if (
                step.kind == "LedgerRecovery" and self.world.clients[self._at(client)].machine is None
            ):
                self._user(client, Begin, event)
            case act.MetadataRead():
                self._store(client, event)
            case TellLac() | Idle():
                if step.answer:
                    self._tell_lac(client, event)
            case act.MetadataWritten() | act.MetadataConflict():
                self._store(client, event)
                self._store(client, event)
            case (
                act.AddAnswered() | act.ReadAnswered() | act.LacAnswered() | act.HeldAnswered() | ExplicitLacAnswered()
            ):
                self._answered(client, event, bool(step.answer))
            case _:
                self.passed_over += 1

    def _answered(self, client: int, event: Any, matters: bool) -> None:
        ids = range(event.first, event.last + 1) if isinstance(event, act.AddAnswered) and not client else (None,)
        for entry_id in ids:
            first = getattr(event, "first", None) if entry_id is None else entry_id
            self._heard(client, event, first, matters)
            # The first refusal ends the writer; the rest comes late.
            matters = matters and not _is_fenced(event)

    def _heard(self, client: int, event: Any, first: int | None, matters: bool) -> None:
        """Deliver a bookie's answer, or a timeout, to a client. ``first``: the first requested entry. ``matters``: the client
        reacted to the answer."""
        asked, answer = _ANSWERS[type(event)]
        name = self._names[event.bookie]
        if _unheard(event):
            given_up = self._message("timeout", name, client, (asked, answer), first)
            if given_up is None:
                self.passed_over += 1
            else:
                self._make(given_up)
            return
        if _is_fenced(event):
            self._fence(name)
        arrives = self._message("request", name, client, (asked,), first)
        if arrives is not None:
            if _fences(self.world.slots.messages[arrives.argument].body):
                self._adds_before(name)
            if isinstance(event, act.LacAnswered):
                self._lacs_before(name, event.last_add_confirmed)
            self._make(arrives)
        hears = self._message("answer", name, client, (answer,), first)
        if hears is None and (syncs := self._syncs(name)) is not None:
            self._make(syncs)
            hears = self._message("answer", name, client, (answer,), first)
        if hears is None and not matters:
            self.passed_over += 1
            return
        if hears is None:
            raise _LeftError(f"nothing of {name} answers: the record has {say_heard(event)[0]}")
        body: Any = self.world.slots.messages[hears.argument].body
        if not _same_class(event, body):
            raise _LeftError(
                f"{name} answered {say_heard(event)[0]} in reality, and answers {say_answer(body)} in the simulator"
            )
        self._make(hears)

    def _fence(self, name: str) -> None:
        """Deliver the recoverer's fencing request: a refusal as fenced shows its arrival, even before its answer is heard."""
        for move in self._at_bookie("request", name):
            if _fences(self.world.slots.messages[move.argument].body):
                self._adds_before(name)
                self._make(move)
                return

    def _adds_before(self, name: str) -> None:
        """Deliver the adds that this bookie accepted from the writer, before the request that fences it."""
        for move in self._at_bookie("request", name):
            message = self.world.slots.messages[move.argument]
            if message.client == 0 and isinstance(message.body, msg.Add) and (name, message.body.first) in self._taken:
                self._make(move)

    def _lacs_before(self, name: str, last_add_confirmed: int) -> None:
        """Deliver the explicit LACs that this bookie's answer reflects, before the request for it."""
        for move in self._at_bookie("request", name):
            body = self.world.slots.messages[move.argument].body
            if isinstance(body, msg.WriteLac) and body.last_add_confirmed <= last_add_confirmed:
                self._make(move)

    def _at_bookie(self, kind: str, name: str) -> list[Move]:
        slots_from, bookies = self.world.slots_from, self.world.bookies
        return [
            move
            for move in self.world.moves(self.state)
            if move.kind == kind and move.place >= slots_from and bookies[move.place - slots_from] == name
        ]

    def _message(self, kind: str, name: str, client: int, kinds: tuple[type, ...], first: int | None) -> Move | None:
        """The move that delivers a message between a client and a bookie."""
        for move in self._at_bookie(kind, name):
            message = self.world.slots.messages[move.argument]
            fits = isinstance(message.body, kinds) and (first is None or getattr(message.body, "first", None) == first)
            if fits and message.client == client:
                return move
        return None

    def _syncs(self, name: str) -> Move | None:
        """A sync that an answer of this bookie may wait for."""
        return next(iter(self._at_bookie("sync", name)), None)

    def _tell_lac(self, client: int, event: TellLac | Idle) -> None:
        moves = self._users(client, type(event)) or self._users(client, TellLac)
        if moves:
            self._make(moves[0])
        else:
            self.passed_over += 1

    def _users(self, client: int, kind: type) -> list[Move]:
        return [
            one
            for one in self.world.moves(self.state)
            if one.kind == "user"
            and one.place == CLIENTS + client
            and isinstance(self.world.events[one.argument], kind)
        ]

    def _user(self, client: int, kind: type, event: Any) -> None:
        moves = self._users(client, kind)
        if isinstance(event, act.BookiesChosen):
            names = tuple(self._names[bookie] for bookie in event.bookies)
            moves = [one for one in moves if self.world.events[one.argument].bookies == names] or moves
        if not moves:
            raise _LeftError(f"the {self.world.client_names[client]} can't be given {type(event).__name__} here")
        self._make(moves[0])

    def _store(self, client: int, event: Any) -> None:
        place = CLIENTS + client
        moves = [one for one in self.world.moves(self.state) if one.kind == "store" and one.place == place]
        if not moves:
            raise _LeftError(
                f"the {self.world.client_names[client]} has no question to the metadata store here, but an answer "
                f"{type(event).__name__}"
            )
        self._make(moves[0])

    def _make(self, move: Move) -> None:
        after = self.world.apply(self.state, move)
        # Fails here if the story has no sentence for the move.
        sentence(self.world, self.state, move, after)
        self.moves.append(move)
        self.state = after

    def _at(self, client: int) -> int:
        return self.state[CLIENTS + client]


def _chosen(step: Step) -> Iterator[str]:
    if isinstance(step.args[0], act.BookiesChosen):
        yield from step.args[0].bookies


def _taken(steps: list[Step]) -> set[tuple[str, int]]:
    """Pairs of a bookie and an entry that it accepted from the writer: it acknowledged the add, or returned the entry to a
    recoverer that asked before any recoverer wrote the entry there."""
    taken: set[tuple[str, int]] = set()
    written: frozenset[tuple[str, int]] = frozenset()
    asked: dict[tuple[str, int, str, int], frozenset[tuple[str, int]]] = {}
    for step in steps:
        event, recovers = step.args[0], step.kind == "LedgerRecovery"
        if isinstance(event, act.AddAnswered) and not recovers and isinstance(event.response, Positive):
            taken |= _copies(event)
        if isinstance(event, act.ReadAnswered):
            taken |= _copies(event) - asked.get((step.process, step.number, event.bookie, event.first), written)
        for action in (step.answer or ()) if recovers else ():
            if isinstance(action, act.SendAdd):
                written |= _copies(action)
            elif isinstance(action, act.SendRead):
                asked[step.process, step.number, action.bookie, action.first] = written
    return taken


def _copies(about: act.AddAnswered | act.ReadAnswered | act.SendAdd) -> set[tuple[str, int]]:
    bookies = about.bookies if isinstance(about, act.SendAdd) else (about.bookie,)
    return {(bookie, entry_id) for bookie in bookies for entry_id in range(about.first, about.last + 1)}


def _appends(step: Step) -> bool:
    return isinstance(step.args[0], Append)


def _unheard(event: Any) -> bool:
    """Whether no answer came from the bookie."""
    response = getattr(event, "following", None) or getattr(event, "response", None)
    came = isinstance(event, act.ReadAnswered) and event.last >= event.first
    return isinstance(response, Unknown) and response.reason in NOT_HEARD and not came


def _is_fenced(event: Any) -> bool:
    response = getattr(event, "response", None)
    return isinstance(response, Unknown) and response.reason is UnknownReason.FENCED


def _fences(body: Any) -> bool:
    return isinstance(body, msg.Read | msg.ReadLac) and body.fence


def _same_class(event: Any, body: Any) -> bool:
    """Whether a recorded answer and the simulator's mean the same to a machine."""
    if isinstance(event, act.ReadAnswered):
        if event.last != body.last:
            return False
        return isinstance(event.following, Positive) or type(event.following) is type(body.following)
    if isinstance(event, act.HeldAnswered) and (event.last < event.first) != (body.last < body.first):
        return False
    if isinstance(event, act.LacAnswered) and event.last_add_confirmed < body.last_add_confirmed:
        # Higher is possible: its cause may be a skipped step.
        return False
    return type(event.response) is type(body.response)

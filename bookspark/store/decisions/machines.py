"""Machines that record: subclasses whose methods note their arguments and answers.

Law: a recording machine answers and raises as a plain one. A machine driven by another machine is not recorded: its answers
follow from its owner's input. Frequent events, one or more for each append, have short records.

Records, each a list::

    [0, number, class, args, keywords]        a machine was made
    [number, method, args, answer]            a method was called; ``method`` is its place in ``methods_of(class)``
    [number, method, args, None, error]       it raised
    [number, method, args, answer, error, r]  as above, with the answers of a copying's room: they depend on other ledgers
    [number]                                  the machine is gone
    [-1, function, args, keywords, answer, error, told]
                                              a pure function was called; ``told``: answers to its own questions
    [number, -1, lac, lafr, answer]           a bookie's ledger took the add that it admitted last
    [number, -2, bookie, first, last]         a bookie acked the entries, and the writer did nothing
    [number, -2, bookie, first, last, lac]    …, and the writer confirmed up to ``lac``
    [number, -3, count, length, bookies, first, last, lac]
                                              a writer sent an append
    [-2 …], [-3 …]                            definitions (``forms``)
    [-4, bookie]                              the process is this bookie
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache, wraps
from inspect import signature
from typing import Any

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, Decision
from bookspark.protocol.ledger.actions import AddAnswered, Confirm, SendAdd
from bookspark.protocol.ledger.ledger_metadata import NO_ENTRY
from bookspark.protocol.ledger.responses import Positive
from bookspark.protocol.repair.entry_copying import Room
from bookspark.protocol.writing.writer import LedgerWriter
from bookspark.protocol.writing.writer_events import Append
from bookspark.store.decisions.forms import ROOM, Forms, name_of
from bookspark.store.decisions.recorder import Recorder

MADE, CALLED, NAMED = 0, -1, -4
TAKEN, HEARD, SENT = -1, -2, -3
"""Short records of frequent events, in place of a method's number."""
_LEDGER_METHODS = (
    "admit_add",
    "added",
    "admit_sync",
    "note",
    "fence",
    "write_last_add_confirmed",
    "replay",
    "clear_limbo",
    "lose",
    "lose_for_now",
    "entries_back",
    "fence_is_sure",
)
_METHODS = {"LostBookies": ("look", "marked"), "BookieLedger": _LEDGER_METHODS}
LEDGER_FIELDS = tuple(BookieLedger.__dataclass_fields__)


def methods_of(kind: type) -> tuple[str, ...]:
    return _METHODS.get(kind.__name__, ("step",))


class AskedRoom(Room):
    """A room that notes its answers, because they depend on other copyings of the process."""

    __slots__ = ("answers", "room")

    def __init__(self, room: Room) -> None:
        object.__setattr__(self, "bytes_max", room.bytes_max)
        object.__setattr__(self, "room", room)
        object.__setattr__(self, "answers", [])

    room: Room
    answers: list[bool]

    def fits(self, held: int, size: int) -> bool:
        answer = self.room.fits(held, size)
        self.answers.append(answer)
        return answer


def recorded(recorder: Recorder, kind: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    args = tuple(kept(one) for one in args)
    keywords = {name: kept(one) for name, one in keywords.items()}
    form = recorder.forms.form
    number = recorder.number()
    plain = BookieLedger if kind is WatchedLedger else kind
    formed = [_room_or(form, one) for one in args]
    if plain is BookieLedger:
        formed[1] = recorder.forms.secret(args[1])
    recorder.put([MADE, number, name_of(plain), formed, {name: _room_or(form, one) for name, one in keywords.items()}])
    machine = recording_class(kind)(*args, **keywords)
    machine._recorder, machine._number = recorder, number
    machine._room = next((one for one in (*args, *keywords.values()) if isinstance(one, AskedRoom)), None)
    machine._busy = False
    machine._admitted = None
    return machine


def _room_or(form: Callable[[Any], Any], value: Any) -> Any:
    return [ROOM] if isinstance(value, AskedRoom) else form(value)


def kept(value: Any) -> Any:
    """The value in a form that can be read more than once."""
    if isinstance(value, Room):
        return AskedRoom(value)
    return list(value) if isinstance(value, Iterator) else value


@lru_cache(None)
def recording_class(kind: type) -> type:
    plain = BookieLedger if kind is WatchedLedger else kind
    members: dict[str, Any] = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__del__": _gone}
    for place, name in enumerate(methods_of(plain)):
        method = getattr(plain, name)
        members[name] = (
            _step(method) if name == "step" and plain.__name__ in _OF_ONE_EVENT else _method(method, name, place)
        )
    if plain is LedgerWriter:
        members["step"] = _writer_step(LedgerWriter.step, members["step"])
    elif plain is BookieLedger:
        members["admit_add"] = _admit_add(members["admit_add"])
        members["added"] = _added(members["added"])
    return type(kind.__name__, (kind,), members)


_OF_ONE_EVENT = frozenset(("LedgerWriter", "LedgerRecovery", "RangeRead", "LacRead", "LacWait", "GivenIds"))
"""Machines whose ``step`` takes only an event, and which have no room."""


def _gone(self: Any) -> None:
    # The attribute is missing if the machine could not be made.
    recorder = getattr(self, "_recorder", None)
    if recorder is not None:
        recorder.put([self._number])


def _step(plain: Callable[[Any, Any], list[Any]]) -> Callable[[Any, Any], list[Any]]:

    @wraps(plain)
    def step(self: Any, event: Any) -> list[Any]:
        recorder = self._recorder
        forms = recorder.forms
        try:
            actions = plain(self, event)
        except Exception as error:
            recorder.put([self._number, 0, [forms[type(event)](event)], None, forms.form(error)])
            raise
        recorder.put(
            [
                self._number,
                0,
                [forms[type(event)](event)],
                [1, *[forms[type(action)](action) for action in actions]],
            ]
        )
        return actions

    return step


def _writer_step(plain: Callable[[Any, Any], list[Any]], other: Callable[[Any, Any], list[Any]]) -> Any:
    """The step of a writer: an append and its acks have short records."""

    @wraps(plain)
    def step(self: Any, event: Any) -> list[Any]:
        kind = type(event)
        if kind is AddAnswered:
            if type(event.response) is not Positive or event.synced is not None or event.response.value is not None:
                return other(self, event)
        elif kind is not Append:
            return other(self, event)
        recorder = self._recorder
        try:
            actions = plain(self, event)
        except Exception as error:
            forms = recorder.forms
            recorder.put([self._number, 0, [forms[kind](event)], None, forms.form(error)])
            raise
        if kind is AddAnswered:
            if not actions:
                recorder.put([self._number, HEARD, event.bookie, event.first, event.last])
                return actions
            if len(actions) == 1 and type(actions[0]) is Confirm:
                recorder.put(
                    [self._number, HEARD, event.bookie, event.first, event.last, actions[0].last_add_confirmed]
                )
                return actions
        elif len(actions) == 1 and is_plain_add(add := actions[0]):
            recorder.put(
                [
                    self._number,
                    SENT,
                    event.count,
                    event.byte_length,
                    add.bookies,
                    add.first,
                    add.last,
                    add.last_add_confirmed,
                ]
            )
            return actions
        forms = recorder.forms
        recorder.put([self._number, 0, [forms[kind](event)], [1, *[forms[type(one)](one) for one in actions]]])
        return actions

    return step


def is_plain_add(action: Any) -> bool:
    """True for an add of a writer to a PD ledger with best-effort replication."""
    return (
        type(action) is SendAdd
        and action.entries is None
        and action.assignment is None
        and action.last_add_fully_replicated == NO_ENTRY
    )


def _admit_add(other: Callable[..., Any]) -> Callable[..., Decision]:
    """An admission. If arguments and answer equal the last ones, the encoded bytes are reused."""
    plain = BookieLedger.admit_add

    @wraps(plain)
    def admit_add(self: Any, master_key: bytes, recovery: bool) -> Decision:
        decision: Decision
        last = self._admitted
        if last is None or last[0] != master_key or last[1] is not recovery:
            decision = other(self, master_key, recovery)
        else:
            decision = plain(self, master_key, recovery)
            is_the_same = decision is last[2]
            if is_the_same:
                self._recorder.put_encoded(last[3])
                return decision
            self._recorder.put(_admission(self, master_key, recovery, decision))
        encoded = self._recorder.encode(_admission(self, master_key, recovery, decision))
        self._admitted = (master_key, recovery, decision, encoded)
        return decision

    return admit_add


def _admission(ledger: Any, master_key: bytes, recovery: bool, decision: Decision) -> list[Any]:
    forms = ledger._recorder.forms
    return [ledger._number, 0, [forms.secret(master_key), recovery], forms.form(decision)]


def _added(other: Callable[..., bool]) -> Callable[..., bool]:
    plain = BookieLedger.added

    @wraps(plain)
    def added(self: Any, decision: Decision, last_add_confirmed: int, last_add_fully_replicated: int) -> bool:
        last = self._admitted
        if last is None or last[2] is not decision or type(decision.response) is not Positive or self.fenced:
            return other(self, decision, last_add_confirmed, last_add_fully_replicated)
        self._busy = True
        try:
            higher = plain(self, decision, last_add_confirmed, last_add_fully_replicated)
        finally:
            self._busy = False
        self._recorder.put([self._number, TAKEN, last_add_confirmed, last_add_fully_replicated, higher])
        return higher

    return added


def _method(plain: Callable[..., Any], name: str, place: int) -> Callable[..., Any]:

    @wraps(plain)
    def method(self: Any, *args: Any, **keywords: Any) -> Any:
        if self._busy:
            # The machine calls itself.
            return plain(self, *args, **keywords)
        recorder, room = self._recorder, self._room
        if keywords:
            args = signature(plain).bind(self, *args, **keywords).args[1:]
        args = tuple(map(kept, args))
        formed = given(recorder.forms, self, name, args)
        self._busy = True
        try:
            answer = plain(self, *args)
        except Exception as error:
            recorder.put([self._number, place, formed, None, recorder.forms.form(error), *_asked(room)])
            raise
        finally:
            self._busy = False
        record = [self._number, place, formed, answered(recorder.forms, self, name, answer)]
        recorder.put([*record, None, *_asked(room)] if room is not None else record)
        return answer

    return method


def given(forms: Forms, machine: Any, method: str, args: tuple[Any, ...]) -> list[Any]:
    """The forms of a method's arguments. The first argument of some methods of ``BookieLedger`` is a key."""
    if method in _WITH_KEY:
        return [forms.secret(args[0]), *[forms.form(one) for one in args[1:]]]
    if method == "look":
        # Collections of bookies in any order: mappings and lists.
        return [args[0], *[[*sorted(one)] for one in args[1:]], machine.delay_seconds]
    return [forms.form(one) for one in args]


_WITH_KEY = frozenset(("admit_add", "admit_sync", "fence", "write_last_add_confirmed"))
_SILENT = frozenset(("replay", "lose", "lose_for_now", "entries_back", "fence_is_sure"))
"""Methods of ``BookieLedger`` without an answer. The ledger's fields after the call stand for it."""


def answered(forms: Forms, machine: Any, method: str, answer: Any) -> Any:
    """The form of an answer, or of the machine's fields after a method without an answer."""
    if method in _SILENT:
        fields = [forms.form(getattr(machine, name)) for name in LEDGER_FIELDS if name != "master_key"]
        return [*fields, forms.secret(machine.master_key)]
    if method in ("look", "marked"):
        return [sorted(machine.lost), sorted(machine.to_mark), sorted(machine.lost_at().items())]
    return forms.form(answer)


def _asked(room: AskedRoom | None) -> list[list[bool]]:
    if room is None:
        return []
    answers = list(room.answers)
    room.answers.clear()
    return [answers]


class WatchedLedger(BookieLedger):
    """A recorded ledger of a bookie. It equals a plain one with the same fields."""

    __slots__ = ("_admitted", "_busy", "_number", "_recorder", "_room")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BookieLedger) and all(
            getattr(self, name) == getattr(other, name) for name in LEDGER_FIELDS
        )

    __hash__ = None  # type: ignore[assignment]

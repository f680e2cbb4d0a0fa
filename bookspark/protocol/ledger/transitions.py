"""Tables of states and events: a machine's accepted events in each of its states.

Law: an event without a cell for the machine's state raises ``IllegalEventError``, and so does an event with impossible content
(an answer to a question never asked); the machine keeps its state. Each machine has its table at the top of its module, as data,
and looks it up first thing in ``step``. A cell is one of

``TAKEN``
    The machine acts on the event.
``LATE``
    Networks deliver such answers: to a question of an earlier state, or no longer needed. ``step`` returns no actions.
``REFUSED``
    The user must not do this now. ``step`` raises the user's error, one of ``bookspark.errors``, and changes nothing.

``tests/protocol/test_transitions.py`` compares each table with its machine, for every pair.

Source: h11, whose one table of states and events refuses the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto
from typing import TypeVar


class Cell(Enum):
    TAKEN = auto()
    LATE = auto()
    REFUSED = auto()


TAKEN, LATE, REFUSED = Cell.TAKEN, Cell.LATE, Cell.REFUSED

State = TypeVar("State", bound=Enum)
Row = Mapping[type, Cell]
Table = Mapping[State, Row]


class IllegalEventError(RuntimeError):
    """A driver gave a machine an event that its state does not allow: a defect of Bookspark. The machine keeps its state.

    ``why``: the fault in the event's content, if its type is allowed.
    """

    def __init__(self, state: Enum, event: object, why: str = "") -> None:
        what = f"{event!r} ({why})" if why else type(event).__name__
        super().__init__(f"{what} while {type(state).__name__} is {state.name}")
        self.state = state
        self.event = event


def cell_of(table: Table[State], state: State, event: object) -> Cell:
    """Raises IllegalEventError if the table has no cell for the pair."""
    cell = table[state].get(type(event))
    if cell is None:
        raise IllegalEventError(state, event)
    return cell


def row(taken: tuple[type, ...] = (), late: tuple[type, ...] = (), refused: tuple[type, ...] = ()) -> dict[type, Cell]:
    """A row of a table. A type in several lists is TAKEN before REFUSED before LATE."""
    return {**dict.fromkeys(late, LATE), **dict.fromkeys(refused, REFUSED), **dict.fromkeys(taken, TAKEN)}

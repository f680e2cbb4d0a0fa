"""Check every pair of a state and an event of a machine against its transition table.

A test of a machine gives

* ``places``: named functions that return a new machine in a state; every state at least once;
* ``samples``: for each event type, a function that makes a valid event for the given machine;
* ``cell_of``: the ``Cell`` of the machine's table for its current state and an event, or None;

and checks every pair::

    KIT = TransitionsKit(PLACES, SAMPLES, lambda machine, event: TRANSITIONS[machine.state].get(type(event)))

    @pytest.mark.parametrize("event_type", KIT.events())
    def test_a_pair(event_type):
        KIT.check(event_type)

``step``: a function that steps the machine, for machines whose ``step`` takes more than the event.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import pytest

from bookspark.errors import BookKeeperError
from bookspark.lab.simulation.values import freeze
from bookspark.protocol.ledger.transitions import Cell, IllegalEventError


def event_types(union: Any) -> frozenset[type]:
    """The members of a union of event types."""
    return frozenset(typing.get_args(union))


@dataclass(frozen=True)
class TransitionsKit:
    places: Mapping[str, Callable[[], Any]]
    samples: Mapping[type, Callable[[Any], Any]]
    cell_of: Callable[[Any, Any], Cell | None]
    step: Callable[[Any, Any], list[Any]] = lambda machine, event: machine.step(event)

    def events(self) -> list[Any]:
        """Test parameters, one for each event type."""
        return [pytest.param(event_type, id=event_type.__name__) for event_type in self.samples]

    def check(self, event_type: type) -> None:
        """Check an event type at each place. TAKEN: no error. LATE: no actions and no change. REFUSED: the user's error and no
        change. No cell: IllegalEventError and no change."""
        for place in self.places:
            try:
                self._check(place, event_type)
            except BaseException as error:
                error.add_note(f"at {place}")
                raise

    def _check(self, place: str, event_type: type) -> None:
        machine = self.places[place]()
        event = self.samples[event_type](machine)
        assert type(event) is event_type
        before = freeze(machine)
        cell = self.cell_of(machine, event)
        match cell:
            case Cell.TAKEN:
                self.step(machine, event)
                return
            case Cell.LATE:
                assert self.step(machine, event) == []
            case Cell.REFUSED:
                with pytest.raises(BookKeeperError):
                    self.step(machine, event)
            case None:
                self.check_illegal(machine, event)
        assert freeze(machine) == before, f"{event} changed something"

    def check_illegal(self, machine: Any, event: Any) -> None:
        """Check that ``machine`` refuses ``event`` and is unchanged."""
        before = freeze(machine)
        with pytest.raises(IllegalEventError) as caught:
            self.step(machine, event)
        assert isinstance(caught.value.state, Enum)
        assert caught.value.event == event
        assert freeze(machine) == before, f"{event} changed something"

    def idle_places(self, key: Callable[[Any], Any]) -> set[tuple[Any, type]]:
        """TAKEN pairs of (``key(machine)``, event type) whose event does nothing at any place: such cells may be LATE. ``key``
        returns the state used by the table."""
        shown: dict[tuple[Any, type], bool] = {}
        for make in self.places.values():
            for event_type, sample in self.samples.items():
                machine = make()
                event = sample(machine)
                if self.cell_of(machine, event) is not Cell.TAKEN:
                    continue
                pair = key(machine), event_type
                before = freeze(machine)
                acts = bool(self.step(machine, event)) or freeze(machine) != before
                shown[pair] = shown.get(pair, False) or acts
        return {pair for pair, acts in shown.items() if not acts}

    def states_without_a_place(self, states: type[Enum], state_of: Callable[[Any], Enum]) -> set[Enum]:
        """States that no place reaches."""
        return set(states) - {state_of(make()) for make in self.places.values()}

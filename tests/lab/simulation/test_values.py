"""Cloning: the search copies a machine before each step, so the copy must equal it in every respect."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import pytest

from bookspark.lab.simulation import values
from bookspark.lab.simulation.search.exhaustive import Exhaustive
from bookspark.lab.simulation.simulation_options import SimulationOptions
from bookspark.lab.simulation.tokens import tokens_kept
from bookspark.lab.simulation.values import clone, freeze
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerType, Replication
from bookspark.protocol.writing.ensemble_change import ChangeMode
from bookspark.protocol.writing.writer import LedgerWriter, PendingAdd


def changeable(value: Any) -> Iterator[Any]:
    """All mutable parts of ``value``, once for each path to them."""
    if clone(value) is value:
        return
    yield value
    if isinstance(value, Mapping):
        fields = list(value.values())
    elif isinstance(value, list | set):
        fields = list(value)
    else:
        slots = (name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ()))
        fields = [*getattr(value, "__dict__", {}).values(), *(getattr(value, name, None) for name in slots)]
    for field in fields:
        yield from changeable(field)


def parts_with_two_ways(value: Any) -> list[Any]:
    """The parts reachable on two paths; in a copy each path would lead to a part of its own."""
    seen: set[int] = set()
    return [part for part in changeable(value) if id(part) in seen or seen.add(id(part))]  # type: ignore[func-returns-value]


@pytest.mark.parametrize("ledger_type", LedgerType)
@pytest.mark.parametrize("replication", Replication)
def test_each_mutable_part_of_a_machine_is_reachable_on_one_path(
    ledger_type: LedgerType, replication: Replication
) -> None:
    options = SimulationOptions(2, 2, 1, spares=1, readers=1, replicators=1, crashes=1, losses=1, heals=True)
    options = replace(options, ledger_type=ledger_type, replication=replication, ensemble_changes=ChangeMode.AT_ONCE)
    search = Exhaustive(options)
    search.run(states_max=3000)
    machines = [*search.world.clients.values, *search.world.slots.bookies.values]
    assert any(
        isinstance(client.machine, LedgerWriter) and client.machine.cursors.pending
        for client in search.world.clients.values
    )
    assert not any(map(parts_with_two_ways, machines))


def test_part_referenced_twice_is_detected() -> None:
    writer = LedgerWriter(LedgerMetadata(1, 1, 1, 1, (Fragment(0, ("b1",)),)), 0)
    writer.cursors.pending[0] = add = PendingAdd(0, 0, 10, ("b1",))
    assert parts_with_two_ways(writer) == []
    writer.cursors.pending[1] = add
    assert parts_with_two_ways(writer) == [add, add.acks]


@dataclass(frozen=True)
class Told:
    names: tuple[str, ...]


@dataclass(frozen=True)
class Noted:
    names: list[str]


class Loose:
    def __init__(self, **fields: Any) -> None:
        self.__dict__.update(fields)


class Tight:
    __slots__ = ("first", "second")


def test_equal_objects_have_equal_frozen_forms_and_different_objects_do_not() -> None:
    unset, half = Tight(), Tight()
    half.second = 1
    distinct = [
        *(1, "a", (1,), [1], {1}, frozenset({1}), {1: 2}, {}, set(), [], ()),
        *(Told(("a",)), Told(("b",)), Noted(["a"]), Noted(["b"]), unset, half),
        *(Loose(a=1), Loose(b=1), Loose(a=2), Loose(a=Told(("a",))), Loose(a=Noted(["a"])), Loose()),
    ]
    frozen = [freeze(value) for value in distinct]
    assert len(set(frozen)) == len(frozen)
    assert [freeze(deepcopy(value)) for value in distinct] == frozen
    assert freeze(Loose(a=1, b={2: 3, 4: 5})) == freeze(Loose(b={4: 5, 2: 3}, a=1))


def test_token_stands_for_its_value_after_many_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_BY_ID_MAX", 10)
    first = freeze(Told(("first",)))
    others = {freeze(Told((str(number),))) for number in range(100)}
    assert len(others) == 100 and first not in others
    assert freeze(Told(("first",))) == first


def test_value_is_forgotten_with_the_last_frozen_form_that_contains_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, the table of tokens grew with each schedule of a run."""
    monkeypatch.setattr(values, "_BY_ID_MAX", 0)
    freeze(Told(("the only one that is known by its identity",)))
    gc.collect()
    before = tokens_kept()
    kept = {freeze(Told((str(number),))) for number in range(100)}
    assert tokens_kept() >= before + 99
    del kept
    freeze(Told(("the only one that is known by its identity",)))
    assert tokens_kept() <= before + 1


def test_clone_of_an_object_with_unset_fields_equals_it() -> None:
    half = Tight()
    half.second = [1]
    copy = clone(half)
    assert copy.second == [1] and copy.second is not half.second
    assert freeze(copy) == freeze(half)


@pytest.mark.parametrize("kind", [tuple, frozenset])
def test_first_value_of_a_type_has_the_same_frozen_form_as_later_values(kind: type) -> None:
    """Once, a type was known as its own frozen form only after its first value, which then differed from the same value
    later."""

    class New(Enum):
        ONE = 1

    assert freeze(kind([New.ONE])) == freeze(kind([New.ONE]))

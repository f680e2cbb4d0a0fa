"""Freezing and cloning plain objects, so that real machines can be states of a search.

Law: two machines with equal frozen forms decide alike for ever. A machine's future is a function of its fields, because it has no
callbacks, generators or closures (docs/decisions/pure-protocol.md). So the frozen form is all of its fields, whatever they
are called. The order of a dict or a set carries no decision, and is left out of the comparison.

A component of the world (a bookie, a client, the metadata) is kept as a small number from a ``Table``. A step of a component is
remembered by its number and the number of the event. So each distinct step of a real machine is made once, and the world
goes through millions of states that are combinations of few distinct component states.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from enum import Enum
from operator import attrgetter
from typing import Any, Generic, TypeVar

T = TypeVar("T")

_ATOMS = (int, str, bytes, bool, float, type(None), type, Enum)

Function = Callable[[Any], Any]
_UNSET = None
"""The frozen form of a field that was never set."""
_PLAIN: set[type] = set()
"""Types whose values are their own frozen form and their own copy. Most fields are of these, so they are asked first."""
_FREEZERS: dict[type, Function] = {}
_CLONERS: dict[type, Function] = {}


def freeze(value: Any) -> Hashable:
    """A hashable value that is equal for equal objects."""
    kind = type(value)
    function = _FREEZERS.get(kind)
    if function is None:
        function = _FREEZERS[kind] = _freezer(kind)
    return function(value)  # type: ignore[no-any-return]


def _freeze_all(values: Iterable[Any]) -> list[Hashable]:
    plain = _PLAIN
    return [value if type(value) in plain else freeze(value) for value in values]


def _freezer(kind: type) -> Function:
    if issubclass(kind, _ATOMS):
        _PLAIN.add(kind)
        return _itself
    if issubclass(kind, BaseException):
        return lambda value: kind.__name__
    if _immutable(kind):
        return _freeze_immutable
    if issubclass(kind, tuple | list):
        return lambda value: (kind, *_freeze_all(value))
    if issubclass(kind, Mapping):
        return lambda value: (kind, frozenset(zip(_freeze_all(value), _freeze_all(value.values()), strict=True)))
    if issubclass(kind, set | frozenset):
        return lambda value: (kind, frozenset(_freeze_all(value)))
    return _structure_freezer(kind)


def _structure_freezer(kind: type) -> Function:
    if kind.__dictoffset__:
        return lambda value: (kind, *[(name, freeze(item)) for name, item in sorted(vars(value).items())])
    fields = _fields_getter(kind)
    return lambda value: (kind, *_freeze_all(fields(value)))


def _freeze_immutable(value: Any) -> Hashable:
    """A frozen dataclass is its own frozen form, unless there is something changeable in it."""
    try:
        hash(value)
    except TypeError:
        return _structure_freezer(type(value))(value)  # type: ignore[no-any-return]
    return value  # type: ignore[no-any-return]


def clone(value: T) -> T:
    """A copy that shares nothing changeable with ``value``. A part of it that may change must be reachable in one way only. A
    tuple is taken to hold nothing that may change."""
    kind = type(value)
    function = _CLONERS.get(kind)
    if function is None:
        function = _CLONERS[kind] = _cloner(kind)
    return function(value)  # type: ignore[no-any-return]


def _clone_all(values: Iterable[Any]) -> list[Any]:
    plain = _PLAIN
    return [value if type(value) in plain else clone(value) for value in values]


def _cloner(kind: type) -> Function:
    if issubclass(kind, (*_ATOMS, BaseException, tuple, frozenset)) or _immutable(kind):
        return _itself
    if issubclass(kind, dict):
        return lambda value: kind(zip(value, _clone_all(value.values()), strict=True))
    if issubclass(kind, list | set):
        return lambda value: kind(_clone_all(value))
    return _object_cloner(kind)


def _object_cloner(kind: type) -> Function:
    names = _slots_of(kind)
    fields = _fields_getter(kind)

    def clone_object(value: Any) -> Any:
        copy: Any = object.__new__(kind)
        for name, item in zip(names, _clone_all(fields(value)), strict=True):
            setattr(copy, name, item)
        if kind.__dictoffset__:
            copy.__dict__.update({name: clone(item) for name, item in vars(value).items()})
        return copy

    return clone_object


def _fields_getter(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """What is in an object's slots, in their order."""
    names = _slots_of(kind)
    if len(names) < 2:
        return lambda value: tuple(getattr(value, name, _UNSET) for name in names)
    getter = attrgetter(*names)

    def fields(value: Any) -> tuple[Any, ...]:
        try:
            return getter(value)
        except AttributeError:
            return tuple(getattr(value, name, _UNSET) for name in names)

    return fields


def _itself(value: Any) -> Any:
    return value


def _immutable(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return bool(parameters and parameters.frozen)


def _slots_of(kind: type) -> tuple[str, ...]:
    """The fields that an instance keeps in slots; none if it keeps its fields in ``__dict__``. Not both."""
    names: list[str] = []
    for base in reversed(kind.__mro__):
        slots = base.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    assert not names or not kind.__dictoffset__, f"{kind.__name__} has both slots and a __dict__"
    return tuple(name for name in names if name not in ("__weakref__", "__dict__"))


class Table(Generic[T]):
    """Numbers for values: equal values have one number. What is put in is not changed any more."""

    def __init__(self, key: Callable[[T], Hashable] = freeze) -> None:
        self.values: list[T] = []
        self._numbers: dict[Hashable, int] = {}
        self._key = key

    def number(self, value: T) -> int:
        """The number of ``value``, which is kept."""
        key = self._key(value)
        number = self._numbers.get(key)
        if number is None:
            number = self._numbers[key] = len(self.values)
            self.values.append(value)
        return number

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)

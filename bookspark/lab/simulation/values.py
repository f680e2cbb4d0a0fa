"""Frozen forms, clones and numbers of plain objects, so that real machines can be states of a search.

Law: two machines with equal frozen forms decide alike for ever. A machine's future is a function of its fields, because it
has no callbacks, generators or closures (docs/decisions/pure-protocol.md). So the frozen form covers all fields. The order
of a dict or a set carries no decision, and is not compared.

An immutable value is frozen to a token, equal for equal values only. So a ledger's metadata, shared by many machines, is
hashed once for each object. Freezing and cloning functions are generated from a class's field names, because generic ones
took half of the time of a random schedule.

A component of the world (a bookie, a client, the metadata) is a small number from a ``Table``. Each distinct step of a real
machine is made once, and then looked up by the numbers of the component and the event. So the world goes through millions of
states that combine few distinct component states.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar

from bookspark.lab.simulation.tokens import token_of

T = TypeVar("T")

_ATOMS = (int, str, bytes, bool, float, type(None), type, Enum)

Function = Callable[[Any], Any]
_UNSET = None
"""Frozen form of an unset field."""
_PLAIN: set[type] = set()
"""Types whose values are their own frozen form. Checked first, because most fields have such a type."""
_SHARED: set[type] = set()
"""Types whose values are their own copy."""
_BY_ID: dict[int, tuple[Any, object]] = {}
"""By object identity: the object and its token. The object is kept so that its identity is not reused."""
_BY_ID_MAX = 20_000


class _Functions(dict[type, Function]):
    """Functions by type, made at the first use of the type."""

    def __init__(self, make: Callable[[type], Function]) -> None:
        self._make = make

    def __missing__(self, kind: type) -> Function:
        function = self[kind] = self._make(kind)
        return function


def freeze(value: Any) -> Hashable:
    """A hashable value, equal for equal objects."""
    return _FREEZERS[type(value)](value)  # type: ignore[no-any-return]


def _freezer(kind: type) -> Function:
    if issubclass(kind, _ATOMS):
        _PLAIN.add(kind)
        return itself
    if issubclass(kind, BaseException):
        return lambda value: kind.__name__
    if _immutable(kind):
        return _immutable_freezer(kind)
    plain, freezers = _PLAIN, _FREEZERS

    def freeze_tuple(value: Any) -> Hashable:
        for x in value:
            if type(x) not in plain and freezers[type(x)] is not itself:
                return (kind, *[x if type(x) in plain else freezers[type(x)](x) for x in value])
        # Unambiguous: no other frozen form begins with a plain tuple.
        return value, kind

    def freeze_frozenset(value: Any) -> Hashable:
        for x in value:
            if type(x) not in plain and freezers[type(x)] is not itself:
                return kind, frozenset([x if type(x) in plain else freezers[type(x)](x) for x in value])
        # It keeps its hash, and no other type is its own frozen form here.
        return value  # type: ignore[no-any-return]

    def freeze_mapping(value: Any) -> Hashable:
        if not value:
            return (kind,)
        items = [
            (x if type(x) in plain else freezers[type(x)](x), y if type(y) in plain else freezers[type(y)](y))
            for x, y in value.items()
        ]
        return kind, frozenset(items)

    if issubclass(kind, tuple):
        return freeze_tuple
    if issubclass(kind, frozenset):
        return freeze_frozenset
    if issubclass(kind, Mapping):
        return freeze_mapping
    if issubclass(kind, list):
        return lambda value: (kind, *[x if type(x) in plain else freezers[type(x)](x) for x in value])
    if issubclass(kind, set):
        return lambda value: (
            (kind, frozenset([x if type(x) in plain else freezers[type(x)](x) for x in value])) if value else kind
        )
    return _structure_freezer(kind)


def _structure_freezer(kind: type) -> Function:
    return _written(kind, _freezing, _PLAIN, _FREEZERS)


def _immutable_freezer(kind: type) -> Function:
    by_id = _BY_ID

    def freeze_immutable(value: Any) -> Hashable:
        """The token, or the structure of a value with a mutable part."""
        found = by_id.get(id(value))
        if found is not None:
            return found[1]
        try:
            token = token_of(value)
        except TypeError:
            return _structure_freezer(kind)(value)  # type: ignore[no-any-return]
        if len(by_id) > _BY_ID_MAX:
            by_id.clear()
        by_id[id(value)] = value, token
        return token

    return freeze_immutable


def clone(value: T) -> T:
    """A copy that shares no mutable part with ``value``. A mutable part must be reachable by one path only. Tuples must
    hold only immutable values."""
    return _CLONERS[type(value)](value)  # type: ignore[no-any-return]


def _cloner(kind: type) -> Function:
    if issubclass(kind, (*_ATOMS, BaseException, tuple, frozenset)) or _immutable(kind):
        _SHARED.add(kind)
        return itself
    shared, cloners = _SHARED, _CLONERS
    if kind is dict:
        return lambda value: (
            {name: x if type(x) in shared else cloners[type(x)](x) for name, x in value.items()} if value else {}
        )
    if kind is set:
        # Members of a set are immutable.
        return set.copy
    if kind is list:
        return lambda value: [x if type(x) in shared else cloners[type(x)](x) for x in value] if value else []
    if issubclass(kind, dict):
        return lambda value: kind({name: clone(x) for name, x in value.items()})
    if issubclass(kind, list | set):
        return lambda value: kind([clone(x) for x in value])
    return _written(kind, _copying, _SHARED, _CLONERS)


def freeze_fields(value: Any) -> Hashable:
    """``freeze`` of an object, without a token: faster for an object frozen once."""
    return _STRUCTURES[type(value)](value)  # type: ignore[no-any-return]


_FREEZERS = _Functions(_freezer)
_STRUCTURES = _Functions(_structure_freezer)
_CLONERS = _Functions(_cloner)


# -- Generated functions


def _freezing(names: Sequence[str]) -> str:
    fields = [
        f"x{i} if type(x{i} := value.{name}) in plain else others[type(x{i})](x{i})" for i, name in enumerate(names)
    ]
    return f"return ({', '.join(['shape', *fields])},)"


def _copying(names: Sequence[str]) -> str:
    fields = [f"copy.{name} = x if type(x := value.{name}) in plain else others[type(x)](x)" for name in names]
    return "; ".join(("copy = new(kind)", *fields, "return copy"))


def _written(kind: type, write: Callable[[Sequence[str]], str], plain: set[type], others: _Functions) -> Function:
    """Compile the source from ``write`` for objects of ``kind``: fields of ``plain`` types as they are, ``others`` for the
    rest."""

    def function_of(names: tuple[str, ...]) -> Function:
        def complete(value: Any) -> Any:
            full: Any = object.__new__(kind)
            for name in names:
                setattr(full, name, getattr(value, name, _UNSET))
            return scope["of_complete"](full)

        scope: dict[str, Any] = {
            "kind": kind,
            "shape": token_of((kind, names)),
            "plain": plain,
            "others": others,
            "new": object.__new__,
            "complete": complete,
        }
        body = write(names)
        exec(f"def of_complete(value):\n {body}", scope)
        exec(f"def of(value):\n try:\n  {body}\n except AttributeError:\n  return complete(value)", scope)
        function: Function = scope["of"]
        return function

    if not kind.__dictoffset__:
        return function_of(_slots_of(kind))
    known: dict[tuple[str, ...], Function] = {}

    def by_names(value: Any) -> Any:
        names = tuple(value.__dict__)
        function = known.get(names)
        if function is None:
            function = known[names] = function_of(tuple(sorted(names)))
        return function(value)

    return by_names


def itself(value: Any) -> Any:
    """``value``, as its own frozen form or copy."""
    return value


def _immutable(kind: type) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return bool(parameters and parameters.frozen)


def _slots_of(kind: type) -> tuple[str, ...]:
    """The fields that an instance keeps in slots; none if it has a ``__dict__``. A class must not have both."""
    names: list[str] = []
    for base in reversed(kind.__mro__):
        slots = base.__dict__.get("__slots__", ())
        names += (slots,) if isinstance(slots, str) else slots
    assert not names or not kind.__dictoffset__, f"{kind.__name__} has both slots and a __dict__"
    return tuple(name for name in names if name not in ("__weakref__", "__dict__"))


class Table(Generic[T]):
    """Numbers for values: equal values have the same number. Stored values must not change. ``key``: equal for equal values.
    ``kept``: the part of a value to keep; None: all."""

    def __init__(self, key: Callable[[Any], Hashable] = freeze, kept: Callable[[Any], T] | None = None) -> None:
        self.values: list[T] = []
        self._numbers: dict[Hashable, int] = {}
        self._key = key
        self._kept = kept

    def number(self, value: Any) -> int:
        """The number of ``value``, which is stored if new."""
        key = self._key(value)
        new = len(self.values)
        number = self._numbers.setdefault(key, new)
        if number == new:
            self.values.append(value if self._kept is None else self._kept(value))
        return number

    def __getitem__(self, number: int) -> T:
        return self.values[number]

    def __len__(self) -> int:
        return len(self.values)

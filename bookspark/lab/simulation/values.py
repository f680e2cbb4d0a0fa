"""Freezing and cloning plain objects, so that real machines can be states of a search.

Law: two machines with equal frozen forms decide alike for ever. A machine's future is a function of its fields, because it has no
callbacks, generators or closures (docs/decisions/pure-protocol.md). So the frozen form is all of its fields, whatever they
are called. The order of a dict or a set carries no decision, and is left out of the comparison.

An immutable value is frozen to a token: equal ones have the same token, which stands for nothing else. So a ledger's metadata,
which many machines have, is hashed once for each object and not once for each state. Functions that freeze or copy the objects of
a class are written from the names of its fields, because half of the time of a random schedule went into walking through them.

A component of the world (a bookie, a client, the metadata) is kept as a small number from a ``Table``. A step of a component is
remembered by its number and the number of the event. So each distinct step of a real machine is made once, and the world
goes through millions of states that are combinations of few distinct component states.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from enum import Enum
from typing import Any, Generic, TypeVar
from weakref import WeakValueDictionary

# -- What stands for immutable values in frozen forms (``values``).
#
# Law: equal values have the same token as long as anybody keeps it, and it stands for nothing else. A value is forgotten with
# the last frozen form that its token is in, since nothing is compared with it then: a run of any length keeps what its worlds
# keep.


class Token:
    """Equal to itself only."""

    __slots__ = ("__weakref__",)


_TOKENS: WeakValueDictionary[Any, Token] = WeakValueDictionary()


def token_of(value: Any) -> Token:
    """What stands for a hashable value."""
    token = _TOKENS.get(value)
    if token is None:
        token = _TOKENS[value] = Token()
    return token


def tokens_kept() -> int:
    """How many values have a token now."""
    return len(_TOKENS)


# --


T = TypeVar("T")

_ATOMS = (int, str, bytes, bool, float, type(None), type, Enum)

Function = Callable[[Any], Any]
_UNSET = None
"""The frozen form of a field that was never set."""
_PLAIN: set[type] = set()
"""Types whose values are their own frozen form. Most fields are of these, so they are asked first."""
_SHARED: set[type] = set()
"""Types whose values are their own copy."""
_BY_ID: dict[int, tuple[Any, object]] = {}
"""What stands for an immutable value, by the identity of an object, which is kept here so that its identity stays its own."""
_BY_ID_MAX = 20_000


class _Functions(dict[type, Function]):
    """What is done with values of a type; made when the type is met first."""

    def __init__(self, make: Callable[[type], Function]) -> None:
        self._make = make

    def __missing__(self, kind: type) -> Function:
        function = self[kind] = self._make(kind)
        return function


def freeze(value: Any) -> Hashable:
    """A hashable value that is equal for equal objects."""
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
        # Nothing else begins with a plain tuple.
        return value, kind

    def freeze_frozenset(value: Any) -> Hashable:
        for x in value:
            if type(x) not in plain and freezers[type(x)] is not itself:
                return kind, frozenset([x if type(x) in plain else freezers[type(x)](x) for x in value])
        # It keeps its hash, and nothing else is its own form.
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
        """What stands for it, unless there is something changeable in it."""
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
    """A copy that shares nothing changeable with ``value``. A part of it that may change must be reachable in one way only. A
    tuple is taken to hold nothing that may change."""
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
        # What can be in a set can't change.
        return set.copy
    if kind is list:
        return lambda value: [x if type(x) in shared else cloners[type(x)](x) for x in value] if value else []
    if issubclass(kind, dict):
        return lambda value: kind({name: clone(x) for name, x in value.items()})
    if issubclass(kind, list | set):
        return lambda value: kind([clone(x) for x in value])
    return _written(kind, _copying, _SHARED, _CLONERS)


def freeze_fields(value: Any) -> Hashable:
    """``freeze`` of an object, without a token: quicker for one that is frozen once."""
    return _STRUCTURES[type(value)](value)  # type: ignore[no-any-return]


_FREEZERS = _Functions(_freezer)
_STRUCTURES = _Functions(_structure_freezer)
_CLONERS = _Functions(_cloner)


# -- functions that are written


def _freezing(names: Sequence[str]) -> str:
    fields = [
        f"x{i} if type(x{i} := value.{name}) in plain else others[type(x{i})](x{i})" for i, name in enumerate(names)
    ]
    return f"return ({', '.join(['shape', *fields])},)"


def _copying(names: Sequence[str]) -> str:
    fields = [f"copy.{name} = x if type(x := value.{name}) in plain else others[type(x)](x)" for name in names]
    return "; ".join(("copy = new(kind)", *fields, "return copy"))


def _written(kind: type, write: Callable[[Sequence[str]], str], plain: set[type], others: _Functions) -> Function:
    """What ``write`` says, for an object of ``kind``: fields of ``plain`` types as they are, ``others`` for the others."""

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
    """``value``, where it stands for itself."""
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
    """Numbers for values: equal values have one number. What is put in is not changed any more. ``key``: what is equal for equal
    values. ``kept``: what is kept of one, if not all of it."""

    def __init__(self, key: Callable[[Any], Hashable] = freeze, kept: Callable[[Any], T] | None = None) -> None:
        self.values: list[T] = []
        self._numbers: dict[Hashable, int] = {}
        self._key = key
        self._kept = kept

    def number(self, value: Any) -> int:
        """The number of ``value``, which is kept."""
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

"""Wrong and right values for an annotation, by rules that are independent of ``bookspark.support.arguments``.

A value is wrong for an annotation if none of its alternatives could accept it. Values that might be right are left out.
"""

from __future__ import annotations

import builtins
import collections.abc
import inspect
import os
import types
import typing
from collections.abc import Callable, Iterator
from enum import Enum
from types import SimpleNamespace
from typing import Annotated, Any, Literal, get_args, get_origin

from hypothesis import strategies as st
from msgspec import Meta

from bookspark.support.arguments import Rule

HUGE = 1 << 80


class Text(str):
    __slots__ = ()


POOL: list[Any] = [
    None, True, 3, -3, HUGE, -HUGE, 10**5000, 2.5, float("nan"), float("inf"), -float("inf"), 1j,
    "some text", Text("text"), "", "\ud800", "a\0b", b"bytes", bytearray(b"bytes"), [], [None], ["text"], [object()], (), {},
    {"a": object()}, {1: b""}, set(), range(3), object(), object, Ellipsis, len,
]  # fmt: skip


_HASHABLE = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(min_value=1 << 63),
    st.floats(),
    st.complex_numbers(),
    st.text(st.characters(), max_size=30),
    st.text(st.sampled_from("a/:,\0\ud800"), max_size=10),
    st.binary(max_size=30),
    st.sampled_from(["text", b"bytes"]).map(type),
    st.builds(object),
    st.decimals(allow_nan=False),
    st.datetimes(),
)
_ANYTHING = st.recursive(
    _HASHABLE,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner),
        st.sets(_HASHABLE, max_size=3),
        st.dictionaries(_HASHABLE, inner, max_size=3),
    ),
    max_leaves=4,
)


class _Names(dict[str, Any]):
    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        # Imported for type checkers only.
        return getattr(collections.abc, name, None) or _ForTypeCheckers(name, (), {})


class _ForTypeCheckers(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _ForTypeCheckers(name, (), {})


def annotation_of(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """The parameter's annotation, evaluated."""
    written = parameter.annotation
    scope = _Names({**vars(builtins), **inspect.unwrap(function).__globals__})
    return eval(written, {}, scope) if isinstance(written, str) else written


def wrong(annotation: Any, default: Any = inspect.Parameter.empty) -> list[Any]:
    """Fixed values that the annotation does not accept."""
    kinds = list(_alternatives(annotation))
    if any(kind in (Any, object) or isinstance(kind, typing.TypeVar) for kind, _ in kinds):
        return []
    found = [one for one in POOL if not (one is None and default is None)]
    return [one for one in found if not any(_might_take(kind, notes, one) for kind, notes in kinds)] + list(
        _out_of_bounds(kinds)
    )


def drawn_wrong(annotation: Any, default: Any = inspect.Parameter.empty) -> st.SearchStrategy[Any]:
    """Random values that the annotation does not accept: other types, out of bounds, or the right type with a wrong item."""
    kinds = list(_alternatives(annotation))
    if any(kind in (Any, object) or isinstance(kind, typing.TypeVar) for kind, _ in kinds):
        return st.nothing()
    drawn = [_ANYTHING]
    for kind, notes in kinds:
        origin, inner = get_origin(kind) or kind, get_args(kind)
        drawn += [_out_of(kind, note) for note in notes if isinstance(note, Meta) and kind in (int, float)]
        if inspect.isclass(origin) and inner and issubclass(origin, collections.abc.Mapping):
            drawn += [st.dictionaries(st.text("ab", min_size=1), drawn_wrong(inner[1]), min_size=1, max_size=3)]
        elif inspect.isclass(origin) and inner and issubclass(origin, collections.abc.Sequence):
            drawn += [st.lists(drawn_wrong(inner[0]), min_size=1, max_size=3)]
    return st.one_of(drawn).filter(
        lambda value: (
            not (value is None and default is None)
            and not any(_might_take(kind, notes, value) or _names_a_member(kind, value) for kind, notes in kinds)
        )
    )


def _out_of(kind: type, meta: Meta) -> st.SearchStrategy[Any]:
    drawn = st.integers if kind is int else st.floats
    below = st.nothing() if meta.ge is None else drawn(max_value=kind(meta.ge) - 1)
    above = st.nothing() if meta.le is None else drawn(min_value=kind(meta.le) + 1)
    return st.one_of(below, above)


def _names_a_member(kind: Any, value: Any) -> bool:
    if inspect.isclass(kind) and issubclass(kind, Enum):
        return str(value).lower() in {str(word).lower() for one in kind for word in (one.name, one.value)}
    return get_origin(kind) is Literal and any(value == one for one in get_args(kind))


def right(annotation: Any) -> Any:
    """A value that the annotation accepts."""
    kind, notes = next(_alternatives(annotation))
    origin, inner = get_origin(kind) or kind, get_args(kind)
    meta = next((one for one in notes if isinstance(one, Meta)), Meta())
    if origin in (int, float):
        return origin(max(1, meta.ge or 1))
    if origin is str:
        rule = next((one for one in notes if isinstance(one, Rule)), None)
        return "127.0.0.1:1" if rule is not None and "host" in rule.words else "a"
    simple: dict[Any, Any] = {bytes: b"", bool: True, types.NoneType: None, Any: 1, collections.abc.Callable: len}
    if origin in simple:
        return simple[origin]
    if origin is Literal:
        return inner[0]
    if inspect.isclass(origin) and issubclass(origin, Enum):
        return next(iter(origin))
    if inspect.isclass(origin) and issubclass(origin, os.PathLike):
        return "/tmp"
    if inspect.isclass(origin) and issubclass(origin, collections.abc.Mapping):
        return {}
    if inspect.isclass(origin) and issubclass(origin, collections.abc.Iterable) and inner:
        return [right(inner[0])]
    return SimpleNamespace()


def _alternatives(annotation: Any, notes: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0], get_args(annotation)[1:])
    elif get_origin(annotation) in (typing.Union, types.UnionType):
        for one in get_args(annotation):
            yield from _alternatives(one, notes)
    else:
        yield types.NoneType if annotation is None else annotation, notes


def _might_take(kind: Any, notes: tuple[Any, ...], value: Any) -> bool:
    """Can this alternative accept the value? True if in doubt."""
    origin, inner = get_origin(kind) or kind, get_args(kind)
    meta = next((one for one in notes if isinstance(one, Meta)), Meta())
    low = -(1 << 63) if meta.ge is None else meta.ge
    high = (1 << 63) - 1 if meta.le is None else meta.le
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if origin in (Any, object):
        return True
    if origin is types.NoneType:
        return value is None
    if origin is bool:
        return isinstance(value, bool)
    if origin is int:
        return number and isinstance(value, int) and low <= value <= high
    if origin is float:
        return number and abs(value) <= (meta.le or 1e300) and value >= (meta.ge if meta.ge is not None else -1e300)
    if origin is str:
        usable = isinstance(value, str) and "\0" not in value and "\ud800" not in value
        return usable and len(value) >= (meta.min_length or 0)
    if origin is bytes:
        return isinstance(value, bytes | bytearray)
    if origin is collections.abc.Callable:
        return callable(value)
    if not inspect.isclass(origin):
        return True
    if issubclass(origin, Enum) or origin is Literal:
        return False
    if issubclass(origin, os.PathLike):
        return isinstance(value, str) and "\0" not in value
    if issubclass(origin, collections.abc.Mapping):
        return isinstance(value, dict) and all(
            _takes_one(inner[:1], name) and _takes_one(inner[1:], item) for name, item in value.items()
        )
    if issubclass(origin, collections.abc.Iterable) and origin.__module__ in ("collections.abc", "builtins"):
        if isinstance(value, str | bytes | bytearray) or not isinstance(value, collections.abc.Iterable):
            return False
        if isinstance(value, dict) and not isinstance(value, origin):
            return False
        return all(_takes_one(inner, item) for item in value)
    return isinstance(value, origin)


def _takes_one(inner: tuple[Any, ...], item: Any) -> bool:
    return not inner or any(_might_take(kind, notes, item) for kind, notes in _alternatives(inner[0]))


def _out_of_bounds(kinds: list[tuple[Any, tuple[Any, ...]]]) -> Iterator[Any]:
    if len({kind for kind, _ in kinds} - {types.NoneType}) > 1:
        return
    for kind, notes in kinds:
        for note in notes:
            if isinstance(note, Meta) and kind in (int, float):
                if note.ge is not None:
                    yield kind(note.ge - 1)
                if note.le is not None:
                    yield kind(note.le * 2 + 1)

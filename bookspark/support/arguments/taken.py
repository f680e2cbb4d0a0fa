"""The values that an annotation accepts, as a function that converts or refuses a value.

Law: an accepted value is converted to the annotated type itself, so written and sent values are always of that type. The table
of ``bookspark.support.arguments`` lists the accepted substitutes. Any other annotation accepts anything.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import datetime
import inspect
import math
import numbers
import operator
import os
import types
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from reprlib import Repr
from typing import Annotated, Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Meta

from bookspark.errors import InvalidArgumentError

# -- Common kinds of arguments, and further notes of an annotation.
#
# Law: a bound has one place. A kind shared by several functions and options has a name here.


@dataclass(frozen=True)
class Rule:
    """For an annotation: a further condition. ``words`` describe the accepted values. ``holds`` returns a truth value, or
    raises ValueError with the reason."""

    words: str
    holds: Callable[[Any], object]


class Hidden:
    """For an annotation: the value is a secret, or a user's data, and no error shows it."""


Seconds = Annotated[float, Meta(ge=0.001, le=1e6)]
"""A time to wait, in seconds. A longer time would not fit into the system's milliseconds."""
SecondsOrNone = Annotated[float, Meta(ge=0, le=1e6)]
"""A time in seconds, or 0: its meaning is documented at the option."""
WaitSeconds = Annotated[float, Meta(ge=0, le=1e9)]
"""Longest wait of a call, in seconds. 0: it does not wait."""
IntervalSeconds = Annotated[float, Meta(ge=0.001, le=1e9)]
"""The interval of a repeated task, in seconds."""
AtLeastOne = Annotated[int, Meta(ge=1)]
BytesOrNone = Annotated[int, Meta(ge=0)]
"""A number of bytes, or 0: its meaning is documented at the option."""
EntryId = Annotated[int, Meta(ge=0)]
LastEntryId = Annotated[int, Meta(ge=-1)]
"""The id of a last entry; −1: none."""
Name = Annotated[str, Meta(min_length=1)]
Password = Annotated[bytes, Hidden]
"""The password of a ledger or log; empty: none."""
PasswordText = Annotated[str, Hidden]
Payload = Annotated[bytes, Hidden]


# -- Conversion.


_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_short = Repr()
_short.maxstring = _short.maxother = 120
_short.maxlong = 40


class Misfit(ValueError):
    """A refused value, its place in the argument (``['team']``), the accepted values there and a hint."""

    def __init__(self, value: object, words: str, hint: str = "", place: str = "") -> None:
        super().__init__(words)
        self.value, self.words, self.hint, self.place = value, words, hint, place


class Taken(NamedTuple):
    """The values that an annotation accepts: ``words`` for people; ``convert`` returns the value as its type or raises Misfit."""

    words: str
    convert: Callable[[Any], Any]
    hidden: bool = False


def shown(value: object) -> str:
    """The value for an error, always short."""
    try:
        return _short.repr(value)
    except Exception:
        return f"of type {type(value).__name__}"


def refused(what: str, name: str, misfit: Misfit, hidden: bool = False) -> InvalidArgumentError:
    came = f"of type {type(misfit.value).__name__}" if hidden else shown(misfit.value)
    hint = f" ({misfit.hint})" if misfit.hint else ""
    return InvalidArgumentError(f"{what} {name}{misfit.place} {came} can't be used; choose {misfit.words}{hint}", name)


def judged(what: str, name: str, taken: Taken, value: Any) -> Any:
    """``value``, converted by ``taken``. Raises InvalidArgumentError for argument ``name`` of ``what``."""
    try:
        return taken.convert(value)
    except Misfit as misfit:
        error = refused(what, name, misfit, taken.hidden)
    try:
        raise error
    finally:
        # The error's traceback has this frame, and so the caller's: they would keep each other alive until a garbage
        # collection.
        del error


def taken_by(annotation: Any) -> Taken:
    """The values that ``annotation`` accepts."""
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _noted(inner[0], inner[1:])
    if annotation in (Any, object) or isinstance(annotation, TypeVar):
        return Taken("anything", lambda value: value)
    if annotation in (None, types.NoneType):
        return NONE
    if origin in (Union, types.UnionType):
        # Beside an Enum, str means that text may name a member.
        named = any(inspect.isclass(one) and issubclass(one, Enum) for one in inner)
        return union([taken_by(one) for one in inner if not (named and one is str)])
    if origin is Literal:
        return _literal(inner)
    kind = origin or annotation
    if not inspect.isclass(kind):
        return Taken("anything", lambda value: value)
    if kind in _SIMPLE:
        return _SIMPLE[kind](Meta())
    if issubclass(kind, Enum):
        return _enum(kind)
    if issubclass(kind, os.PathLike):
        return Taken("a path", _path)
    if origin is collections.abc.Callable or annotation is Callable:
        return _instance("a function", callable)
    if issubclass(kind, collections.abc.Mapping) and inner:
        return _mapping(*inner)
    alike = len(inner) == 1 or inner[1:] == (Ellipsis,)
    if alike and issubclass(kind, collections.abc.Iterable) and kind.__module__ in ("collections.abc", "builtins"):
        return _items(kind, inner[0])
    if origin is tuple:
        return _parts([taken_by(one) for one in inner])
    taken = _instance(f"a {kind.__name__}", lambda value: isinstance(value, kind) or _stands_in(value))
    return _record(kind, taken) if dataclasses.is_dataclass(kind) else taken


def _parts(kinds: Sequence[Taken]) -> Taken:
    """A tuple, or a list, with one part of each kind."""
    words = f"a tuple ({', '.join(one.words for one in kinds)})"

    def convert(value: Any) -> Any:
        if not isinstance(value, tuple | list) or len(value) != len(kinds):
            raise Misfit(value, words)
        try:
            return tuple(kind.convert(part) for kind, part in zip(kinds, value, strict=True))
        except Misfit:
            raise Misfit(value, words) from None

    return Taken(words, convert)


def union(kinds: list[Taken]) -> Taken:
    """The values that any of ``kinds`` accepts."""
    words = " or ".join(dict.fromkeys(word for one in kinds for word in one.words.split(" or ")))

    def convert(value: Any) -> Any:
        misfits = []
        for one in kinds:
            try:
                return one.convert(value)
            except Misfit as misfit:
                # Without its traceback, which refers to this frame, and so to the callers' objects.
                misfits.append(Misfit(misfit.value, misfit.words, misfit.hint, misfit.place))
        # An error at an item is more specific than one at the whole.
        told = next((one for one in misfits if one.place), None)
        if told is None:
            told = Misfit(value, words, next((one.hint for one in misfits if one.hint), ""))
        misfits.clear()
        try:
            raise told
        finally:
            del told

    return Taken(words, convert, any(one.hidden for one in kinds))


def _noted(kind: Any, notes: tuple[Any, ...]) -> Taken:
    meta = next((one for one in notes if isinstance(one, Meta)), None)
    taken = _SIMPLE[kind](meta) if meta is not None and kind in _SIMPLE else taken_by(kind)
    for rule in notes:
        if isinstance(rule, Rule):
            taken = _ruled(taken, rule)
    return taken._replace(hidden=taken.hidden or Hidden in notes)


def _ruled(taken: Taken, rule: Rule) -> Taken:
    def convert(value: Any) -> Any:
        hint = ""
        try:
            converted = taken.convert(value)
            if rule.holds(converted):
                return converted
        except Misfit as misfit:
            hint = misfit.hint
        except ValueError as error:
            hint = str(error)[:300]
        raise Misfit(value, rule.words, hint)

    return Taken(rule.words, convert, taken.hidden)


def _instance(words: str, fits: Callable[[Any], bool]) -> Taken:
    def convert(value: Any) -> Any:
        if not fits(value):
            raise Misfit(value, words)
        return value

    return Taken(words, convert)


def _record(kind: type, instance: Taken) -> Taken:
    """A dataclass. Its constructor checks nothing, so its fields are checked here."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except NameError:
        # Some names are imported for type checkers only.
        return instance
    fields = {one.name: taken_by(hints[one.name]) for one in dataclasses.fields(kind) if one.init}

    def convert(value: Any) -> Any:
        if not isinstance(instance.convert(value), kind):
            return value
        given = {name: getattr(value, name) for name in fields}
        found = {name: _inside(taken, given[name], name) for name, taken in fields.items()}
        return value if found == given else dataclasses.replace(value, **found)

    return Taken(instance.words, convert, instance.hidden)


def _stands_in(value: object) -> bool:
    """True for a possible stand-in for an instance of a class, such as a test's double."""
    return type(value).__module__ != "builtins" and not isinstance(value, _VALUES)


def _enum(kind: type[Enum]) -> Taken:
    texts = {one: one.value if isinstance(one.value, str) else one.name for one in kind}
    by_text = {text.lower(): one for one, value in texts.items() for text in (one.name, value)}
    words = f"one of {', '.join(texts.values())}"

    def convert(value: Any) -> Any:
        found = by_text.get(value.lower()) if isinstance(value, str) and not isinstance(value, kind) else value
        if not isinstance(found, kind):
            raise Misfit(value, words)
        return found

    return Taken(words, convert)


def _literal(values: tuple[Any, ...]) -> Taken:
    words = f"one of {', '.join(map(repr, values))}"
    return _instance(words, lambda value: any(type(value) is type(one) and value == one for one in values))


def _whole(meta: Meta) -> Taken:
    low = meta.ge if meta.ge is not None else _INT_MIN
    high = meta.le if meta.le is not None else _INT_MAX
    words = f"{_bounds(meta)} (a whole number)"

    def convert(value: Any) -> int:
        if type(value) is int and low <= value <= high:
            return value
        try:
            number = int(operator.index(value))
        except TypeError:
            raise Misfit(value, words) from None
        if isinstance(value, bool) or not low <= number <= high:
            raise Misfit(value, words, "" if _INT_MIN <= number <= _INT_MAX else "it has to fit into 64 bits")
        return number

    return Taken(words, convert)


def _number(meta: Meta) -> Taken:
    low = meta.ge if meta.ge is not None else -math.inf
    high = meta.le if meta.le is not None else math.inf
    words = _bounds(meta)

    def convert(value: Any) -> float:
        if not isinstance(value, numbers.Real) or isinstance(value, bool):
            raise Misfit(value, words)
        try:
            number = float(value)
        except (OverflowError, ValueError):
            raise Misfit(value, words) from None
        if not (math.isfinite(number) and low <= number <= high) or (meta.gt is not None and number <= meta.gt):
            raise Misfit(value, words)
        return number

    return Taken(words, convert)


def _bounds(meta: Meta) -> str:
    most = "" if meta.le is None else f"{_figure(meta.le)}"
    if meta.gt is not None:
        return f"more than {_figure(meta.gt)}" + (f", at most {most}" if most else "")
    if meta.ge is None:
        return f"at most {most}" if most else "any number"
    return f"{_figure(meta.ge)} to {most}" if most else f"at least {_figure(meta.ge)}"


def _figure(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:.12g}"


def _truth(_: Meta) -> Taken:
    return _instance("true or false", lambda value: isinstance(value, bool))


def _text(meta: Meta) -> Taken:
    words = "a text" + _lengths(meta, "characters")

    def convert(value: Any) -> str:
        if not isinstance(value, str):
            raise Misfit(value, words, "str(path) is one" if isinstance(value, os.PathLike) else "")
        text = str.__str__(value)
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Misfit(value, words, "of characters that UTF-8 has") from None
        if "\0" in text:
            raise Misfit(value, words, "without the character NUL")
        if not _length_fits(text, meta):
            raise Misfit(value, words)
        return text

    return Taken(words, convert)


def _bytes(meta: Meta) -> Taken:
    words = "bytes" + _lengths(meta, "bytes")

    def convert(value: Any) -> bytes:
        content = bytes_of(value, words)
        if not _length_fits(content, meta):
            raise Misfit(value, words)
        return content

    return Taken(words, convert)


def bytes_of(value: Any, words: str = "bytes") -> bytes:
    """The bytes of the buffer ``value``, or Misfit. ``words``: the accepted values."""
    if type(value) is bytes:
        return value
    if isinstance(value, str):
        raise Misfit(value, words, "encode the text first: text.encode()")
    try:
        # bytes(value) alone would make n zeros of a number n.
        return bytes(memoryview(value))
    except (TypeError, ValueError, BufferError):
        raise Misfit(value, words) from None


def _length_fits(value: str | bytes, meta: Meta) -> bool:
    return (meta.min_length or 0) <= len(value) and (meta.max_length is None or len(value) <= meta.max_length)


def _lengths(meta: Meta, unit: str) -> str:
    if meta.max_length is None:
        return f" of at least {meta.min_length} {unit}" if meta.min_length else ""
    return f" of {meta.min_length or 0} to {meta.max_length} {unit}"


def _path(value: Any) -> Path:
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str) and "\0" not in path:
            return Path(path)
    raise Misfit(value, "a path")


def _items(kind: type, of: Any) -> Taken:
    item = taken_by(of)
    words = f"a list (each item: {item.words})"
    least = kind if kind.__module__ == "collections.abc" else collections.abc.Collection

    def convert(value: Any) -> Any:
        # A mapping counts as its names where the order does not matter.
        no_items = (
            (str, bytes, bytearray, memoryview, Mapping) if least is not kind else (str, bytes, bytearray, memoryview)
        )
        if isinstance(value, no_items) or not isinstance(value, least):
            raise Misfit(value, words)
        assert isinstance(value, collections.abc.Iterable)
        each = (_inside(item, one, k) for k, one in enumerate(value))
        if not isinstance(value, collections.abc.Collection):
            return each
        return kind(each) if kind in (tuple, set, frozenset) else list(each)

    return Taken(words, convert, item.hidden)


def _mapping(key: Any, item: Any) -> Taken:
    keys, items = taken_by(key), taken_by(item)
    words = f"a table (each name: {keys.words}; each value: {items.words})"

    def convert(value: Any) -> Any:
        if not isinstance(value, Mapping):
            raise Misfit(value, words)
        return {_inside(keys, name, name): _inside(items, one, name) for name, one in value.items()}

    return Taken(words, convert, items.hidden)


def _inside(taken: Taken, value: Any, place: object) -> Any:
    try:
        return taken.convert(value)
    except Misfit as misfit:
        raise Misfit(misfit.value, misfit.words, misfit.hint, f"[{shown(place)}]{misfit.place}") from None


_VALUES = (
    str, bytes, bytearray, list, tuple, dict, set, frozenset, numbers.Number,
    datetime.date, datetime.time, datetime.timedelta, os.PathLike, uuid.UUID,
)  # fmt: skip
NONE = _instance("None", lambda value: value is None)
_SIMPLE: dict[Any, Callable[[Meta], Taken]] = {int: _whole, float: _number, str: _text, bytes: _bytes, bool: _truth}

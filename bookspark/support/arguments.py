"""Arguments: one check for all input from callers: functions, methods, options, commands and jobs.

::

    from typing import Annotated
    from bookspark.support.arguments import AtLeastOne, checked

    @checked
    def copy(count: AtLeastOne, target: str) -> None: ...

``copy(0, "x")`` raises InvalidArgumentError: "copy: count 0 can't be used; choose at least 1 (a whole number)".

Law: a public call checks all of its arguments before it does anything. An invalid argument is an InvalidArgumentError with the
argument's name, the value and the accepted values; nothing was written or sent. The check is in the signature and nowhere
else. An accepted value is converted to the annotated type itself, so written and sent values are always of that type.

Accepted values, as a user of Python expects:

================  ===========================================================================================================
``int``           also an object with ``__index__`` (numpy's); never a bool; 64 bits
``float``         also an int and other real numbers; never a bool, NaN or an infinity
``bool``          True and False alone
``str``           also its subclasses; no NUL, and nothing that UTF-8 can't encode (a lone surrogate)
``bytes``         also any buffer (bytearray, memoryview, an Arrow buffer); never a str: encode it
an ``Enum``       also its name or value as text, in upper or lower case
``Path``          also a str
a collection      of accepted items, never a str or bytes in place of several; the function gets a copy
a class           its instances, and stand-ins for them; never a value of a built-in type
================  ===========================================================================================================

``tests/support/arguments`` enumerates every public parameter and passes wrong values.
"""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import datetime
import functools
import inspect
import math
import numbers
import operator
import os
import types
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from pathlib import Path
from reprlib import Repr
from typing import (
    Annotated,
    Any,
    ClassVar,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
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


# -- Options: from keyword arguments, from a table of ``bookspark.toml``, or from text, as Spark and the command line pass
# them.
#
# Law: an unknown option, a wrong type or a value out of bounds is an InvalidArgumentError, with the option, the value and the
# valid values. A Config is checked whichever way it is made.


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Options as one frozen value. Field types carry the bounds; each new object is checked."""

    option_kind: ClassVar[str] = "option"
    """Name of a field in errors, for example "client option"."""

    def __post_init__(self) -> None:
        for name, taken in _fields(type(self)).items():
            value = getattr(self, name)
            made = judged(self.option_kind, name, taken, value)
            if made is not value:
                msgspec.structs.force_setattr(self, name, made)


SomeConfig = TypeVar("SomeConfig", bound=Config)
SomeTuple = TypeVar("SomeTuple", bound=tuple[Any, ...])


@functools.cache
def _fields(config_type: type[Config]) -> dict[str, Taken]:
    hints = get_type_hints(config_type, include_extras=True)
    return {name: taken_by(hints[name]) for name in config_type.__struct_fields__}


def make_config(config_type: type[SomeConfig], options: Mapping[str, Any]) -> SomeConfig:
    """A ``config_type`` of ``options``. Raises InvalidArgumentError for the first unknown or missing option, or invalid value."""
    what = config_type.option_kind
    check_names(options, config_type.__struct_fields__, what)
    for field in msgspec.structs.fields(config_type):
        if field.required and field.name not in options:
            words = _fields(config_type)[field.name].words
            raise InvalidArgumentError(f"{what} {field.name} is missing; choose {words}", field.name)
    return config_type(**options)


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InvalidArgumentError for the first of ``given`` that is not ``known``. ``what``: their kind, e.g. "bookie option"."""
    names = sorted(known)
    for name in given:
        if name not in names:
            nearest = get_close_matches(name, names, n=1) if isinstance(name, str) else []
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are: {', '.join(names)}"
            raise InvalidArgumentError(f"unknown {what} {name!r}; {hint}", str(name))


def judged_tuple(what: str, record: SomeTuple) -> SomeTuple:
    """``record``, a NamedTuple, with each field converted to its type. Raises InvalidArgumentError."""
    hints = get_type_hints(type(record), include_extras=True)
    fields = type(record).__annotations__
    values = (judged(what, name, taken_by(hints[name]), value) for name, value in zip(fields, record, strict=True))
    return type(record)(*values)


def from_text(what: str, name: str, text: str, annotation: Any) -> Any:
    """The value in ``text`` for option ``name``, converted as ``annotation`` says. Raises InvalidArgumentError."""
    taken = taken_by(annotation)
    kind = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    value: Any = text
    try:
        if kind is bool:
            value = {"true": True, "false": False}[text.lower()]
        elif kind in (int, float):
            value = kind(text)
    except (ValueError, KeyError):
        raise refused(what, name, Misfit(text, taken.words), taken.hidden) from None
    return judged(what, name, taken, value)


# -- Decorators.
#
# Law: every argument is checked before the function's first line. The check is made from the signature, at the first call,
# because an annotation may use names that its module defines later. A name imported only for type checkers (pyarrow's, Spark's)
# stands for any class of that name.


Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

_MARK = "_judges_its_arguments"


def checked(function: Function) -> Function:
    """Decorator: check each argument by its annotation before the call."""
    if judges(function):
        return function
    plan: list[_Plan] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not plan:
            plan.append(_Plan(function))
        args, kwargs = plan[0].judge(args, kwargs)
        return function(*args, **kwargs)

    setattr(call, _MARK, True)
    return call  # type: ignore[return-value]


def checks_itself(function: Function) -> Function:
    """Decorator: the function checks its arguments itself, because each tenth of a microsecond counts, and raises ``refusal``."""
    setattr(function, _MARK, True)
    return function


def checks_arguments(kind: Class) -> Class:
    """Decorator of a class made by users: ``checks_methods``, and ``checked`` for its constructor."""
    kind.__init__ = checked(vars(kind)["__init__"])  # type: ignore[misc]
    return checks_methods(kind)


def checks_methods(kind: Class) -> Class:
    """Decorator of a class returned by calls: ``checked`` for each public method with parameters."""
    for name, found in list(vars(kind).items()):
        plain = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if name.startswith("_") or not inspect.isfunction(plain) or not parameters(plain):
            continue
        call = checked(plain)
        setattr(kind, name, type(found)(call) if isinstance(found, classmethod | staticmethod) else call)
    return kind


def judges(function: object) -> bool:
    return getattr(function, _MARK, False) is True


def parameters(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    """The parameters of a function by name, without ``self`` and ``cls``."""
    return {name: one for name, one in inspect.signature(function).parameters.items() if name not in ("self", "cls")}


def refusal(function: str, name: str, value: object, words: str, hint: str = "", hidden: bool = False) -> Exception:
    """The error of a function that checks its arguments itself. ``words``: the accepted values."""
    return refused(f"{function}:", name, Misfit(value, words, hint), hidden)


class _Plan:
    def __init__(self, function: Callable[..., Any]) -> None:
        *_, owner, name = f".{function.__qualname__}".split(".")
        self._what = f"{owner if name == '__init__' else name}:"
        self._by_name: dict[str, Taken | None] = {}
        self._positions: list[str] = []
        self._converts: list[Callable[[Any], Any] | None] = []
        """By position; None: no conversion."""
        self._rest = ""
        self._others: str = ""
        scope = _Names({**vars(builtins), **getattr(inspect.unwrap(function), "__globals__", {})})
        for name, one in inspect.signature(function).parameters.items():
            self._by_name[name] = _taken(one, scope)
            if one.kind is one.VAR_POSITIONAL:
                self._rest = name
            elif one.kind is one.VAR_KEYWORD:
                self._others = name
            elif one.kind is not one.KEYWORD_ONLY:
                self._positions.append(name)
                taken = self._by_name[name]
                self._converts.append(None if taken is None else taken.convert)

    def judge(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments, converted for the function. Raises InvalidArgumentError. Too many, or too few, are Python's own
        error."""
        names = self._positions
        if not kwargs and len(args) <= len(names):
            # Nearly every call. Errors are raised below.
            try:
                converts = zip(self._converts, args, strict=False)
                return tuple([value if convert is None else convert(value) for convert, value in converts]), kwargs
            except Misfit:
                pass
        if len(args) > len(names):
            names = [*names, *[self._rest] * (len(args) - len(names))]
        if not self._others and not kwargs.keys() <= self._by_name.keys():
            check_names(kwargs, self._by_name.keys() - {"self", "cls"}, f"argument of {self._what}")
        positional = tuple([self._one(name, value) for name, value in zip(names, args, strict=False)])
        return positional, {name: self._one(name, value) for name, value in kwargs.items()}

    def _one(self, name: str, value: Any) -> Any:
        taken = self._by_name.get(name if name in self._by_name else self._others)
        return value if taken is None else judged(self._what, name, taken, value)


def _taken(parameter: inspect.Parameter, scope: _Names) -> Taken | None:
    """The accepted values of a parameter; None without an annotation."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return None
    taken = taken_by(eval(annotation, {}, scope) if isinstance(annotation, str) else annotation)
    return union([taken, NONE]) if parameter.default is None else taken


class _Names(dict[str, Any]):
    """The names of a module. A name imported only for type checkers stands for the class of that name."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        return getattr(collections.abc, name, None) or _Named(name, (), {})


class _Named(type):
    """A class known by its name only."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(name, (), {})

    def __getitem__(cls, _: object) -> Any:
        return cls

    def __instancecheck__(cls, value: object) -> bool:
        return any(one.__name__ == cls.__name__ for one in type(value).__mro__)

"""Values of the protocol as plain lists, numbers and strings (*forms*), and back.

Law: two values have the same form exactly if no machine can distinguish them. A value made from a form has that form. A form
has no payload, key or password: an entry's content is reduced to its kind, ids and length, and a key to a keyed hash, equal
for equal keys.

A number, string, None, float or bytes is its own form. Everything else is a list, whose first item is its tag::

    [0, item…] tuple    [1, item…] list    [2, item…] set    [3, item…] frozenset    [4, key, value…] mapping
    [5, class, message] error              [6, class, number…] content of entries, or another opaque value
    [7, number]         a value defined earlier in the record: a ledger's or a log's record
    [9, number]         a machine of the record
    [8]                 the room of a copying, whose answers are recorded
    [n ≥ 16, field…]    a class of the protocol: a dataclass, a named tuple, or a member of an enum

The record defines the class of a number by name, before its first use. Only names of the protocol and of Bookspark's errors
are looked up, so a record can't make any other object.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import threading
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from enum import Enum
from typing import Any

from bookspark.errors import BookKeeperError, ConfigurationError

TUPLE, LIST, SET, FROZENSET, MAPPING, ERROR, CONTENT, DEFINED, ROOM, MACHINE = range(10)
FIRST_CLASS = 16
DEFINE_CLASS, DEFINE_VALUE = -2, -3
"""The first item of a record that defines a class or a value."""
_SECRETS = frozenset(("master_key", "password", "dictionary"))
_PLAIN = (int, str, bool, float, bytes, type(None))
_NOT_IN_RECORD = 1 << 20
"""The number of a class without a definition in the record. It equals no form of the record."""
_DEFINED_MAX = 256
_SHARED = frozenset(("LedgerMetadata", "LogRecord"))

Form = Any


class Content:
    """Stand-in for the content of entries when a record is fed to a machine."""

    __slots__ = ("form",)

    def __init__(self, form: list[Any]) -> None:
        self.form = form

    def __repr__(self) -> str:
        return f"<{' '.join(map(str, self.form[1:]))}>"


def name_of(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def fields_of(kind: type) -> tuple[str, ...]:
    if issubclass(kind, tuple):
        return tuple(kind._fields)  # type: ignore[attr-defined]
    return tuple(field.name for field in dataclasses.fields(kind))  # type: ignore[arg-type]


class Forms(dict[type, Callable[[Any], Form]]):
    """Makes forms: ``forms[type(value)](value)``. The function of a class is made at its first use.

    ``define`` takes each definition before its first use. None: nothing is defined, and a form is self-contained (for
    comparisons). ``numbers``: the numbers of defined classes, by name. ``secret`` makes the stand-in of a key.
    """

    def __init__(
        self,
        define: Callable[[list[Any]], object] | None,
        secret: Callable[[bytes], bytes] = lambda key: key,
        numbers: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__()
        self._define = define
        self._secret = secret
        self._numbers = {} if numbers is None else numbers
        self._lock = threading.RLock()
        self._classes: list[list[Any]] = []
        self._values: dict[int, tuple[object, int]] = {}
        self._value_count = 0
        for plain in _PLAIN:
            self[plain] = lambda value: value
        self[tuple] = lambda value: [TUPLE, *[self[type(one)](one) for one in value]]
        self[list] = lambda value: [LIST, *[self[type(one)](one) for one in value]]
        self[set] = lambda value: [SET, *[self[type(one)](one) for one in sorted(value)]]
        self[frozenset] = lambda value: [FROZENSET, *[self[type(one)](one) for one in sorted(value)]]
        self[dict] = self._mapping
        self[Content] = lambda value: value.form

    def form(self, value: Any) -> Form:
        return self[type(value)](value)

    def secret(self, key: bytes | None) -> bytes | None:
        """Stand-in for a master key. An empty or absent key stays as it is."""
        return self._secret(key) if key else key

    def define_again(self) -> None:
        """Begin a new segment: define its classes and values in it again."""
        if self._define is None:
            return
        with self._lock:
            for definition in self._classes:
                self._define(definition)
            self._values = {}

    def __missing__(self, kind: type) -> Callable[[Any], Form]:
        with self._lock:
            made = self._made(kind)
            # The record may define the class later.
            if (
                self._define is not None
                or not kind.__module__.startswith("bookspark.protocol")
                or name_of(kind) in self._numbers
            ):
                self[kind] = made
            return made

    def _made(self, kind: type) -> Callable[[Any], Form]:
        if issubclass(kind, BaseException):
            return lambda error: [ERROR, name_of(type(error)), str(error)]
        if hasattr(kind, "_number"):
            return lambda machine: [MACHINE, machine._number]
        if kind.__module__.startswith("bookspark.protocol"):
            if issubclass(kind, Enum):
                number = self._number(kind, ())
                return lambda member: [number, member.value]
            if dataclasses.is_dataclass(kind) or (issubclass(kind, tuple) and hasattr(kind, "_fields")):
                names = fields_of(kind)
                whole = self._of_fields(kind, self._number(kind, names), names)
                return self._defined(whole) if self._define and kind.__name__ in _SHARED else whole
        if issubclass(kind, Mapping):
            return self._mapping
        if issubclass(kind, Iterator):
            raise TypeError(f"a {kind.__name__} can be read once only: make a list of it before it is recorded")
        if issubclass(kind, Set):
            return self[frozenset]
        return self._content

    def _number(self, kind: type, names: Sequence[str]) -> int:
        name = name_of(kind)
        known = self._numbers.get(name)
        if known is not None:
            return known
        if self._define is None:
            return _NOT_IN_RECORD
        number = FIRST_CLASS + len(self._classes)
        definition = [DEFINE_CLASS, number, name, list(names)]
        self._classes.append(definition)
        self._define(definition)
        return number

    def _of_fields(self, kind: type, number: int, names: Sequence[str]) -> Callable[[Any], Form]:
        """The function for a class, compiled: each field by its type."""
        hints = typing.get_type_hints(kind)
        items = "".join(f", {_item(name, hints.get(name, Any))}" for name in names)
        code = f"lambda v: [{number}{items}]"
        made: Callable[[Any], Form] = eval(code, {"F": self, "S": self.secret, "C": self._content})
        return made

    def _defined(self, whole: Callable[[Any], Form]) -> Callable[[Any], Form]:
        def number_of(value: Any) -> Form:
            known = self._values.get(id(value))
            if known is not None and known[0] is value:
                return [DEFINED, known[1]]
            form = whole(value)
            with self._lock:
                self._value_count += 1
                number = self._value_count
                assert self._define is not None
                self._define([DEFINE_VALUE, number, form])
                if len(self._values) >= _DEFINED_MAX:
                    self._values = {}
                self._values[id(value)] = (value, number)
            return [DEFINED, number]

        return number_of

    def _mapping(self, value: Mapping[Any, Any]) -> Form:
        form: list[Any] = [MAPPING]
        for key, one in value.items():
            form += (self.form(key), self.form(one))
        return form

    def _content(self, value: Any) -> Form:
        if value is None or type(value) in (int, str, bool):
            return value
        if type(value) in (list, tuple):
            return [LIST if type(value) is list else TUPLE, *map(self._content, value)]
        if type(value) is Content:
            return value.form
        if isinstance(value, bytes | memoryview | bytearray):
            return [CONTENT, "bytes", len(value)]
        facts = [getattr(value, name, None) for name in ("first_entry_id", "last_entry_id", "last_add_confirmed")]
        frame = getattr(value, "frame", None)
        length = None if frame is None else len(frame)
        return [CONTENT, type(value).__name__, *facts, length]


def _item(name: str, annotation: Any) -> str:
    of = f"v.{name}"
    if name in _SECRETS:
        return f"S({of})"
    if annotation is Any:
        return f"C({of}) if {of} is not None else None"
    union = isinstance(annotation, types.UnionType) and set(typing.get_args(annotation)) <= set(_PLAIN)
    if union or annotation in _PLAIN:
        return of
    if annotation in (tuple[str, ...], tuple[int, ...]):
        return f"[{TUPLE}, *{of}]"
    if annotation == tuple[tuple[int, Any], ...]:
        return f"[{TUPLE}, *[[{TUPLE}, i, C(c)] for i, c in {of}]]"
    return f"F[type({of})]({of})"


class Values:
    """Makes values from forms, with the definitions of one record. ``room``: the stand-in for a copying's room."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        """Numbers of defined classes, by name."""
        self._classes: dict[int, type] = {}
        self._defined: dict[int, Form] = {}
        self.room: Any = None
        self.machines: dict[int, Any] = {}

    def define(self, definition: list[Any]) -> None:
        """Take a definition. Raises ConfigurationError if this version lacks the class, or has other fields for it."""
        if definition[0] == DEFINE_VALUE:
            self._defined[definition[1]] = self.expanded(definition[2])
            return
        _, number, name, names = definition
        kind = class_of(name)
        if not issubclass(kind, Enum) and list(fields_of(kind)) != names:
            raise ConfigurationError(
                f"{name} has the fields {', '.join(fields_of(kind))}, and had {', '.join(names)} when the record was made: "
                "replay it with the version that made it"
            )
        self.numbers[name] = number
        self._classes[number] = kind

    def expanded(self, form: Form) -> Form:
        """The form with all earlier definitions inserted. Raises KeyError for an unknown definition."""
        if type(form) is not list or not form:
            return form
        if form[0] == DEFINED:
            return self._defined[form[1]]
        return [self.expanded(one) if type(one) is list else one for one in form]

    def value(self, form: Form) -> Any:
        """The value of a form. Raises KeyError for an unknown definition."""
        if type(form) is not list:
            return form
        tag = form[0]
        if tag >= FIRST_CLASS:
            return self._classes[tag](*[self.value(one) if type(one) is list else one for one in form[1:]])
        if tag == DEFINED:
            return self.value(self._defined[form[1]])
        if tag == CONTENT:
            return Content(form)
        if tag == ERROR:
            return error_of(form)
        if tag == ROOM:
            return self.room
        if tag == MACHINE:
            return self.machines[form[1]]
        if tag == MAPPING:
            items = [self.value(one) for one in form[1:]]
            return dict(zip(items[::2], items[1::2], strict=True))
        kinds: dict[int, Callable[[list[Any]], Any]] = {TUPLE: tuple, LIST: list, SET: set, FROZENSET: frozenset}
        return kinds[tag]([self.value(one) for one in form[1:]])


def class_of(name: str) -> type:
    """The class of the protocol with this name. Raises ConfigurationError if there is none, or the name is of another object."""
    kind: type = _own(name, type, "class")
    return kind


def function_of(name: str) -> Callable[..., Any]:
    """The function of the protocol with this name, perhaps a method. Raises ConfigurationError if there is none, or the name is
    of another object."""
    function: Callable[..., Any] = _own(name, types.FunctionType | types.MethodType, "function")
    return function


def _own(name: str, kind: Any, word: str) -> Any:
    """The object of this kind that a module of the protocol or of the errors itself defines under this name. Imported names don't
    count."""
    module, _, qualname = name.partition(":")
    own: Any = None
    if module.startswith("bookspark.protocol.") or module == "bookspark.errors":
        with contextlib.suppress(ImportError, AttributeError):
            named: Any = importlib.import_module(module)
            for part in qualname.split("."):
                named = getattr(named, part)
                named = getattr(named, "__wrapped__", named)
                if getattr(named, "__module__", None) != module:
                    break
            else:
                own = named
    if not isinstance(own, kind):
        raise ConfigurationError(
            f"{name!r} is no {word} of this version's protocol: replay the record with its own version"
        )
    return own


def error_of(form: Form) -> BaseException:
    """An error with the recorded message. An unknown class becomes BookKeeperError."""
    kind: type = BookKeeperError
    with contextlib.suppress(ConfigurationError):
        kind = class_of(form[1])
    if not issubclass(kind, BaseException):
        kind = BookKeeperError
    error = kind.__new__(kind)
    error.args = (form[2],)
    return error

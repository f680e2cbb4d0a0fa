"""Decorators that check the arguments of public calls, and the check of options.

Law: every argument is checked before the function's first line. The check is made from the signature, at the first call,
because an annotation may use names that its module defines later. A name imported only for type checkers (pyarrow's, Spark's)
stands for any class of that name.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from bookspark.errors import InvalidArgumentError
from bookspark.support.arguments.taken import NONE, Misfit, Taken, judged, refused, taken_by, union

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

"""Options: from keyword arguments, from a table of ``bookspark.toml``, or from text, as Spark and the command line give them.

Law: an option that is unknown, of another type or out of its bounds is an InvalidArgumentError. The error names the option, the
value that came and the values that can be used. A Config is judged whichever way it is made.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from bookspark.errors import InvalidArgumentError
from bookspark.support.arguments.taken import Misfit, Taken, judged, refused, taken_by


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """Options as one frozen value. The types of its fields carry the bounds; each field is judged whenever one is made."""

    option_kind: ClassVar[str] = "option"
    """What errors call one of its fields, for example "client option"."""

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
    """A ``config_type`` of ``options``. Raises InvalidArgumentError for the first that is unknown, missing or can't be used."""
    what = config_type.option_kind
    check_names(options, config_type.__struct_fields__, what)
    for field in msgspec.structs.fields(config_type):
        if field.required and field.name not in options:
            words = _fields(config_type)[field.name].words
            raise InvalidArgumentError(f"{what} {field.name} is missing; choose {words}", field.name)
    return config_type(**options)


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise InvalidArgumentError for the first of ``given`` that is not ``known``. ``what`` they are, e.g. "bookie option"."""
    names = sorted(known)
    for name in given:
        if name not in names:
            nearest = get_close_matches(name, names, n=1) if isinstance(name, str) else []
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are: {', '.join(names)}"
            raise InvalidArgumentError(f"unknown {what} {name!r}; {hint}", str(name))


def judged_tuple(what: str, record: SomeTuple) -> SomeTuple:
    """``record``, a NamedTuple, with each field as its type takes it. Raises InvalidArgumentError."""
    hints = get_type_hints(type(record), include_extras=True)
    fields = type(record).__annotations__
    values = (judged(what, name, taken_by(hints[name]), value) for name, value in zip(fields, record, strict=True))
    return type(record)(*values)


def from_text(what: str, name: str, text: str, annotation: Any) -> Any:
    """What ``text`` says for option ``name``, as ``annotation`` takes it. Raises InvalidArgumentError."""
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

"""Makes a config from a user's options. A config is one frozen value, and the types of its fields carry the bounds.

Law: an option that is unknown, of another type or out of its bounds is a ConfigurationError. The error names the option, the
value that came and the values that can be used. The bounds stand in the field's type and nowhere else, for example
``Annotated[int, msgspec.Meta(ge=1)]``. msgspec checks them, and ``choice`` reads them for the message.

The kinds of numbers that several configs take are here, so that they have the same bounds everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

from bookspark.errors import ConfigurationError

Seconds = Annotated[float, Meta(ge=0.001, le=1e6)]
"""A time to wait, in seconds. A longer one would not fit the milliseconds that the system counts in."""
SecondsOrNone = Annotated[float, Meta(ge=0, le=1e6)]
"""A time in seconds, or 0: the meaning of 0 stands at the option."""
IntervalSeconds = Annotated[float, Meta(ge=0.001, le=1e9)]
"""The time between two runs of something that is repeated, in seconds."""
AtLeastOne = Annotated[int, Meta(ge=1)]
"""A number of things, or of bytes."""
BytesOrNone = Annotated[int, Meta(ge=0)]
"""A number of bytes, or 0: the meaning of 0 stands at the option."""

Config = TypeVar("Config", bound=msgspec.Struct)


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise a ConfigurationError for the first of ``given`` that is not ``known``. ``what`` they are, e.g. "bookie option"."""
    names = sorted(known)
    for name in given:
        if name not in names:
            nearest = get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are: {', '.join(names)}"
            raise ConfigurationError(f"unknown {what} {name!r}; {hint}")


def make_config(config_type: type[Config], options: Mapping[str, Any], what: str) -> Config:
    """A ``config_type`` of ``options``. Raises ConfigurationError for the first option that is unknown or can't be used.

    ``what`` names the kind of option in the error, for example "bookie option".
    """
    check_names(options, config_type.__struct_fields__, what)
    try:
        return msgspec.convert(options, config_type)
    except msgspec.ValidationError as error:
        for field in msgspec.structs.fields(config_type):
            if field.name in options and not _fits(options[field.name], field.type):
                raise ConfigurationError(
                    f"{what} {field.name} {options[field.name]!r} can't be used; choose {choice(field.type)}"
                ) from error
        # The config itself refused, or an option is missing.
        raise ConfigurationError(f"{what}: {error}") from error


def _fits(value: object, option_type: Any) -> bool:
    try:
        msgspec.convert(value, option_type)
    except msgspec.ValidationError:
        return False
    return True


def choice(option_type: Any) -> str:
    """The values that an option of this type takes, for people: "0.001 to 1000000", "at least 1 (a whole number)", "a text"."""
    kind = msgspec.inspect.type_info(option_type)
    match kind:
        case msgspec.inspect.IntType():
            return f"{_bounds(kind)} (a whole number)"
        case msgspec.inspect.FloatType():
            return _bounds(kind)
        case msgspec.inspect.BoolType():
            return "true or false"
        case msgspec.inspect.StrType():
            return "a text"
        case msgspec.inspect.DictType():
            return "a table of texts"
        case _:
            return "a list of texts"


def _bounds(kind: msgspec.inspect.IntType | msgspec.inspect.FloatType) -> str:
    most = kind.le
    if kind.gt is not None:
        return f"more than {kind.gt:.12g}" + ("" if most is None else f", at most {most:.12g}")
    if kind.ge is None:
        return "any number" if most is None else f"at most {most:.12g}"
    return f"at least {kind.ge:.12g}" if most is None else f"{kind.ge:.12g} to {most:.12g}"

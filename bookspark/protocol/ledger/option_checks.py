"""Names and numbers of options: an error says which name was meant, or which numbers can be used."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches

from bookspark.errors import ConfigurationError


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise a ConfigurationError for the first of ``given`` that is not ``known``. ``what`` they are, e.g. "bookie option"."""
    names = sorted(known)
    for name in given:
        if name not in names:
            nearest = get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are: {', '.join(names)}"
            raise ConfigurationError(f"unknown {what} {name!r}; {hint}")


def check_numbers(options: object, bounds: Mapping[str, tuple[float, float]], what: str) -> None:
    """Raise a ConfigurationError for the first field of ``options`` outside its ``bounds`` (least and most, inclusive)."""
    for name, (least, most) in bounds.items():
        value = getattr(options, name)
        if not least <= value <= most:
            choice = f"at least {least:.12g}" if math.isinf(most) else f"{least:.12g} to {most:.12g}"
            raise ConfigurationError(f"{what} {name} {value} can't be used; choose {choice}")

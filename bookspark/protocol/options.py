"""Names of options: an unknown one is an error that says which name was meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from bookspark.protocol.errors import ConfigurationError


def check_names(given: Iterable[str], known: Iterable[str], what: str) -> None:
    """Raise a ConfigurationError for the first of ``given`` that is not ``known``; ``what`` is e.g. "bookie option"."""
    names = sorted(known)
    for name in given:
        if name not in names:
            nearest = get_close_matches(name, names, n=1)
            hint = f"did you mean {nearest[0]!r}?" if nearest else f"known are: {', '.join(names)}"
            raise ConfigurationError(f"unknown {what} {name!r}; {hint}")

"""The given values of ``.option(...)``, taken name by name.

Law: an unknown option is a ConfigurationError that names the nearest known option. Spark gives names in lower case;
errors show them as written in programs.

All
    ``zookeeper``: the cluster, ``host:port[,host:port…][/chroot]`` (default: the session's, or the environment variable
    ``BOOKSPARK_ZOOKEEPER``). ``password``: that of the log or the ledgers. For ``log`` also ``path`` (the argument of ``load``,
    ``save`` and ``start``), ``topic`` and Kafka's ``subscribe``, which with a comma is ``logs``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar

from bookspark.errors import ConfigurationError
from bookspark.spark.options.foreign_names import instead, own_name
from bookspark.store.metadata.zookeeper.layout import ConnectionString
from bookspark.support.arguments import Misfit, PasswordText, from_text, refused

Value = TypeVar("Value")

SPARK_OPTIONS = ("checkpointlocation", "queryname")
"""Spark's own options, which it also passes to sinks."""
_OF_A_TABLE = "provider"
"""CREATE TABLE passes an option of this name. It is refused: Spark 4.2 can't read a table of a Python data source ("is not a
valid Spark SQL Data Source", seen with Delta's catalog)."""


class GivenOptions:
    """The given options. Each is taken by its name once; ``finish`` refuses the rest."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._given: dict[str, str] = {}
        self._known: list[str] = []
        names: dict[str, str] = {}
        for name, value in given.items():
            own = own_name(name.lower(), value)
            if self._given.setdefault(own, value) != value:
                raise ConfigurationError(f"options {names[own]} and {name} say two things: give one of them")
            names[own] = name

    def take(self, name: str, convert: Callable[[str], Value], what: str) -> Value | None:
        """The option's value, or None. ``what``: the allowed values in words, for the error."""
        text = self.text(name)
        if text is None:
            return None
        try:
            return convert(text)
        except ValueError:
            raise refused("option", name, Misfit(text, what)) from None

    def judged(self, name: str, annotation: Any) -> Any:
        """The option's value by the rule of ``annotation``, or None."""
        self._known.append(name)
        text = self._given.get(name.lower())
        return None if text is None else from_text("option", name, text, annotation)

    def text(self, name: str) -> str | None:
        """The option's text, or None."""
        text: str | None = self.judged(name, str)
        return text

    def finish(self) -> None:
        """Raise ConfigurationError if a given option was not taken."""
        known = {name.lower(): name for name in self._known}
        if _OF_A_TABLE in self._given:
            raise ConfigurationError(
                "format bookspark has no tables in Spark's catalog: make a view, by CREATE TEMPORARY VIEW name USING bookspark "
                "OPTIONS (…). To write, use start() for a stream and save() for a batch"
            )
        for name in self._given:
            if name not in known and name not in SPARK_OPTIONS:
                if there := instead(name):
                    raise ConfigurationError(f"format bookspark has no option {name!r}: {there}")
                nearest = get_close_matches(name, known, n=1)
                hint = (
                    f"did you mean {known[nearest[0]]!r}?"
                    if nearest
                    else f"known are: {', '.join(sorted(self._known))}"
                )
                raise ConfigurationError(f"unknown option {name!r} of format bookspark; {hint}")


def cluster(options: GivenOptions, default: str | None) -> tuple[str, bytes]:
    """The cluster (``default`` without an option) and the password. Raises ConfigurationError."""
    zookeeper = options.judged("zookeeper", ConnectionString) or default
    password = options.judged("password", PasswordText) or ""
    if not zookeeper:
        raise ConfigurationError(
            "which cluster? Give option zookeeper (host:port[,host:port…]), start the session with "
            "bookspark.spark.session(…, zookeeper=…), or set the environment variable BOOKSPARK_ZOOKEEPER before Spark starts. "
            "(Spark's setting spark.bookspark.zookeeper counts once bookspark.spark.session was called: it shows the setting to "
            "the format)"
        )
    return zookeeper, password.encode()

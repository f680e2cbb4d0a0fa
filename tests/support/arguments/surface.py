"""Finds the public functions and methods of ``bookspark`` from its exports, so that a new one can't be left out.

Packages with ``__all__`` and the modules in ``MODULES`` are public. Their functions, public methods and documented constructors
count. Records (tuples, dataclasses, structs), enums and errors do not.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from typing import Any, NamedTuple

import msgspec

import bookspark
from bookspark.support.arguments import Config, parameters

MODULES = (
    "bookspark.local",
    "bookspark.spark.session",
    "bookspark.spark.snapshots.retention",
    "bookspark.spark.audit.integrity_check",
    "bookspark.spark.offload.offloading",
    "bookspark.store.autorecovery.decommission",
)
"""Public modules that their packages do not export; README, docs and jobs name them."""
NOT_CALLED_BY_USERS = {
    "bookspark.support.arguments": "the mechanism itself",
    "bookspark.logs.chain.committer": "a part of the sink",
    "bookspark.logs.rows.data_ledgers": "a part of the sink",
    "tell_at_once": "for measurements, and histories of what happened when",
    "place_of": "a step of offload",
    "naming": "a step of decommission",
    "refuse_unreadable": "a step of decommission",
    "DecommissionProgress": "a record",
}


class Call(NamedTuple):
    """A public function or method."""

    name: str
    function: Callable[..., Any]
    """The function, not bound to an object."""
    owner: type | None
    """Class of a method."""

    def __str__(self) -> str:
        return self.name


@cache
def calls() -> tuple[Call, ...]:
    """All public functions, methods and documented constructors with parameters."""
    found = {call.name: call for name in _public() for call in _calls_of(name)}
    return tuple(found[name] for name in sorted(found))


@cache
def configs() -> tuple[type[Config], ...]:
    """All classes of options."""
    _import_all()
    return tuple(sorted(_below(Config), key=lambda kind: kind.__name__))


def _below(kind: type[Config]) -> Iterator[type[Config]]:
    for one in kind.__subclasses__():
        yield one
        yield from _below(one)


def _import_all() -> list[str]:
    names = [one.name for one in pkgutil.walk_packages(bookspark.__path__, "bookspark.")]
    names = [name for name in names if not name.endswith("__main__") and not name.startswith("bookspark.jobs")]
    for name in names:
        importlib.import_module(name)
    return ["bookspark", *names]


def _exports(name: str) -> bool:
    module = importlib.import_module(name)
    return hasattr(module, "__all__") and hasattr(module, "__path__")


def _public() -> list[str]:
    exporting = (name for name in _import_all() if _exports(name))
    return [name for name in (*exporting, *MODULES) if name not in NOT_CALLED_BY_USERS]


def _calls_of(module_name: str) -> Iterator[Call]:
    module = importlib.import_module(module_name)
    own = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module_name]
    for name in getattr(module, "__all__", own):
        value = getattr(module, name)
        if name.startswith("_") or name in NOT_CALLED_BY_USERS or not callable(value):
            continue
        if not getattr(value, "__module__", "").startswith("bookspark") or value.__module__ in NOT_CALLED_BY_USERS:
            continue
        if inspect.isclass(value):
            yield from _methods(value)
        elif inspect.isfunction(value) and parameters(value):
            yield Call(f"{value.__module__}.{name}", value, None)


def _methods(kind: type) -> Iterator[Call]:
    if issubclass(kind, tuple | Enum | BaseException | msgspec.Struct) or dataclasses.is_dataclass(kind):
        return
    for name in dir(kind):
        found = inspect.getattr_static(kind, name)
        function = found.__func__ if isinstance(found, classmethod | staticmethod) else found
        if not inspect.isfunction(function) or not parameters(function):
            continue
        if not function.__module__.startswith("bookspark") or name in NOT_CALLED_BY_USERS:
            continue
        if (name == "__init__" and function.__doc__) or not name.startswith("_"):
            yield Call(f"{kind.__module__}.{kind.__name__}.{name}", function, kind)

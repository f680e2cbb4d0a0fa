"""A record together with its version in the metadata store."""

from __future__ import annotations

from typing import Generic, NamedTuple, TypeVar

Value = TypeVar("Value")


class Versioned(NamedTuple, Generic[Value]):
    """A record with the version that a compare-and-set on it has to name."""

    value: Value
    version: int

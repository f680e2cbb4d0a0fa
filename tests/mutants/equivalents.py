"""Mutants that are no wrong protocols: reviewed by a person, each with the reason (``equivalent.toml``)."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def equivalents() -> Mapping[str, str]:
    """The reasons, by the mutants' names."""
    return tomllib.loads(Path(__file__).with_name("equivalent.toml").read_text())

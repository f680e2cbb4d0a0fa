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


@cache
def harmless() -> Mapping[str, str]:
    """Mutants of what touches safety that do no harm to it, with the reasons: a test can tell them, a law of safety can't."""
    return tomllib.loads(Path(__file__).with_name("harmless.toml").read_text())

"""References left behind by the check of an argument."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Annotated, Any

import pytest
from msgspec import Meta

from bookspark.errors import InvalidArgumentError
from bookspark.support.arguments import judged, taken_by


class Held:
    """An object of the caller."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("value", [5, None, "5", 0.5, [1, "x"]])
@pytest.mark.parametrize("annotation", [int, int | None, int | list[int] | None, dict[str, int] | int])
def test_checked_argument_keeps_no_object_of_its_caller_alive(annotation: Any, value: object) -> None:
    """A value refused by a part of a union kept the frames of all callers alive, and so an unused handle, until the garbage
    collector ran."""

    def call() -> weakref.ref[Held]:
        held = Held()
        with suppress(InvalidArgumentError):
            judged("call:", "argument", taken_by(annotation), value)
        return weakref.ref(held)

    assert call()() is None


def test_refusal_shows_a_large_bound_as_a_whole_number() -> None:
    """It was "choose 0 to 4.61168601843e+18"."""
    with pytest.raises(InvalidArgumentError, match=r"choose 0 to 4611686018427387904\b"):
        judged("call:", "sequence", taken_by(Annotated[int, Meta(ge=0, le=1 << 62)]), -1)

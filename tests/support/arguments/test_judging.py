"""What judging an argument leaves behind."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from bookspark.errors import InvalidArgumentError
from bookspark.support.arguments.taken import judged, taken_by


class Held:
    """Something that a caller has."""


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("value", [5, None, "5", 0.5, [1, "x"]])
@pytest.mark.parametrize("annotation", [int, int | None, int | list[int] | None, dict[str, int] | int])
def test_what_the_caller_has_is_freed_with_him(annotation: Any, value: object) -> None:
    """A value that one part of a union does not take kept the frames of all callers, and so a handle that was dropped, until the
    collector came."""

    def call() -> weakref.ref[Held]:
        held = Held()
        with suppress(InvalidArgumentError):
            judged("call:", "argument", taken_by(annotation), value)
        return weakref.ref(held)

    assert call()() is None

"""Runs a signal handler at each point of a call where CPython handles signals: after calls, at starts of functions, at
backward jumps."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

_parse: Any = dis._parse_exception_table  # type: ignore[attr-defined]
# After these instructions CPython checks for signals.
_LOOKS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"))


def _handlers(code: CodeType) -> Callable[[int], int | None]:
    """The target of an exception raised by an instruction; None: it leaves the function."""
    entries = _parse(code)
    return lambda place: next((one.target for one in entries if one.start <= place < one.end), None)


@contextmanager
def interrupted(
    point: int, handler: Callable[[], object], module: ModuleType, raises: bool = False
) -> Iterator[list[str]]:
    """Call ``handler`` once, at the ``point``-th such point (from 1) of this thread in the code of ``module``, or of a
    package. Yields a list, which holds the point's place in the code once it was reached.

    ``raises``: the handler raises. The exception of a real signal handler comes from the call before the point, that of
    ``handler`` from the instruction after it; a point where a ``try`` ends in between is skipped, because there the two
    differ.
    """
    assert module.__file__ is not None
    source = Path(module.__file__)
    code = str(source.parent) + "/" if source.name == "__init__.py" else str(source)
    points, reached = 0, list[str]()
    last: dict[int, tuple[int, int]] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal points
        if not frame.f_code.co_filename.startswith(code):
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            last.pop(id(frame), None)
        elif event == "opcode":
            before, place = last.get(id(frame), (-1, -1))
            last[id(frame)] = frame.f_code.co_code[frame.f_lasti], frame.f_lasti
            looks = before in _LOOKS
            if looks and raises:
                handlers = _handlers(frame.f_code)
                looks = handlers(place) in (None, handlers(frame.f_lasti))
            points += looks
            if looks and points == point:
                sys.settrace(None)
                reached.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                handler()
        return trace

    sys.settrace(trace)
    try:
        yield reached
    finally:
        sys.settrace(None)

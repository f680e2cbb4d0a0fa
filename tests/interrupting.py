"""A signal handler at each point of a call where CPython lets signals in: behind calls, at starts of functions, at jumps back."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

_LOOKS = frozenset(dis.opmap[name] for name in ("CALL", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "RESUME"))
"""After these instructions CPython looks whether a signal came."""


@contextmanager
def interrupted(point: int, handler: Callable[[], object], module: ModuleType) -> Iterator[list[str]]:
    """Call ``handler`` once, at the ``point``-th such point (from 1) that this thread comes to in the code of ``module``, or
    of a package. Gives a list, which has the point's place in the code once it was reached."""
    assert module.__file__ is not None
    source = Path(module.__file__)
    code = str(source.parent) + "/" if source.name == "__init__.py" else str(source)
    points, reached = 0, list[str]()
    last: dict[int, int] = {}

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal points
        if not frame.f_code.co_filename.startswith(code):
            return None
        frame.f_trace_opcodes = True
        if event == "return":
            last.pop(id(frame), None)
        elif event == "opcode":
            before = last.get(id(frame))
            last[id(frame)] = frame.f_code.co_code[frame.f_lasti]
            points += before in _LOOKS
            if before in _LOOKS and points == point:
                sys.settrace(None)
                reached.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
                handler()
        return trace

    sys.settrace(trace)
    try:
        yield reached
    finally:
        sys.settrace(None)

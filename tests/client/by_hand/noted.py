"""A stand-in for whatever a driver calls: it does nothing, and notes each call in its order."""

from __future__ import annotations

from typing import Any

Calls = list[tuple[Any, ...]]


class Noted:
    """``Noted(calls).a.b(1)`` adds ``("a.b", 1)`` to ``calls``. What is given as ``fields`` is there as it is."""

    def __init__(self, calls: Calls, name: str = "", **fields: Any) -> None:
        self._calls, self._name = calls, name
        vars(self).update(fields)

    def __getattr__(self, name: str) -> Noted:
        if name.startswith("__"):
            raise AttributeError(name)
        return Noted(self._calls, f"{self._name}.{name}" if self._name else name)

    def __call__(self, *arguments: Any) -> None:
        self._calls.append((self._name, *arguments))

"""Which process this is, told without a system call: for what looks at each append whether it was forked.

Law: ``here.process`` is another object in a forked process than in its parent, and the same one as long as the process lives.
"""

from __future__ import annotations

import os


class _Here:
    """This process."""

    __slots__ = ("process",)

    def __init__(self) -> None:
        self.process = object()


here = _Here()
os.register_at_fork(after_in_child=here.__init__)  # type: ignore[misc]

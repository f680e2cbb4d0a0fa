"""``python -m tests.system.cluster.sleeping_operator WHERE …``: the command line, in a process that stands still (SIGSTOP) before
a step of a change: WHERE is ``switch``, before a bookie becomes read-only, or ``request``, before the operator is asked."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from bookspark.operations.changes.hands import AskOperator
from bookspark.operations.cli.main import main
from bookspark.store.client import BookKeeper


def sleeping(step: Callable[..., Any]) -> Callable[..., Any]:
    def slept(*arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGSTOP)
        return step(*arguments)

    return slept


if __name__ == "__main__":
    where = sys.argv.pop(1)
    if where == "switch":
        BookKeeper.switch_read_only = sleeping(BookKeeper.switch_read_only)  # type: ignore[method-assign]
    else:
        AskOperator.do = sleeping(AskOperator.do)  # type: ignore[method-assign]
    main()

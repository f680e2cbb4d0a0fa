"""What Spark's Python processes load: a query has several, and each pays for it before its first row."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

from tests.awaiting import SECONDS_MAX

_NOT_NEEDED = (
    "bookspark.store.autorecovery",
    "bookspark.store.bookie",
    "bookspark.servers.daemon",
    "bookspark.logs.log",
    "bookspark.logs.producer",
    "bookspark.logs.row_reader",
    "bookspark.spark.bookies",
    "bookspark.spark.frames",
    "bookspark.spark.offload.offloading",
    "bookspark.spark.snapshots",
)


def test_reading_and_writing_loads_nothing_that_runs_bookies() -> None:
    """They were a third of the time until such a process was there: a plan, and each worker's first task, waited for it."""
    script = (
        "import sys, bookspark.spark.connector.data_source;"
        f"print([name for name in sys.modules if (name + '.').startswith({tuple(f'{one}.' for one in _NOT_NEEDED)})])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("package", ["bookspark.logs", "bookspark.spark", "bookspark.spark.offload"])
def test_every_public_name_is_there_when_it_is_asked_for(package: str) -> None:
    module = import_module(package)
    assert all(callable(getattr(module, name)) for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018

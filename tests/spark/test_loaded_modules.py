"""Modules loaded by Spark's Python processes: a query has several processes, and each loads them before its first row."""

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


def test_data_source_loads_no_unneeded_module() -> None:
    """They took a third of the start of such a process, for which a plan and each worker's first task waited."""
    script = (
        "import sys, bookspark.spark.connector.data_source;"
        f"print([name for name in sys.modules if (name + '.').startswith({tuple(f'{one}.' for one in _NOT_NEEDED)})])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


@pytest.mark.parametrize("package", ["bookspark.logs", "bookspark.spark", "bookspark.spark.offload"])
def test_every_public_name_of_a_package_loads_on_access(package: str) -> None:
    module = import_module(package)
    assert all(callable(getattr(module, name)) for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018

"""Python workers under ``spark.executor.pyspark.memory``, which limits their reserved addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from bookspark.local import LocalCluster
from bookspark.spark.memory_limit import SETTING, prepare_workers
from tests.awaiting import SECONDS_MAX

_WORKER = """
import resource, sys
limit = int(sys.argv[1]) << 20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
import pandas, pyspark.worker
from bookspark.spark.memory_limit import named_limit
from bookspark.spark.process_client import client
bookkeeper = client(sys.argv[2])
ledgers = [future.result() for future in [bookkeeper.create_ledger_async() for _ in range(24)]]
for ledger in ledgers:
    ledger.append_batch([bytes(1000)] * 1000)
    ledger.close()
print(len(ledgers), flush=True)
with named_limit():
    bytes(limit)
"""


def environment(limit: str | None) -> dict[str, str]:
    """The variables of a worker in a session with this limit."""
    context: Any = SimpleNamespace(getConf=lambda: {SETTING: limit}, environment={})
    prepare_workers(context)
    return context.environment  # type: ignore[no-any-return]


def test_worker_of_a_session_without_a_limit_keeps_its_environment() -> None:
    assert environment(None) == {}


@pytest.mark.parametrize("prepared", [True, False], ids=["prepared", "plain"])
def test_client_works_within_the_limit_and_an_error_names_it(cluster: LocalCluster, prepared: bool) -> None:
    """With 2 GiB each write failed: can't start new thread."""
    limit = 512 if prepared else 1024
    variables = {name: value for name, value in os.environ.items() if name not in environment("1g")}
    done = subprocess.run(
        [sys.executable, "-c", _WORKER, str(limit), cluster.zookeeper],
        env=variables | (environment("1g") if prepared else {}),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert done.stdout.split() == ["24"], done.stderr[-2000:]
    assert "can't start new thread" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "WorkerMemoryError" in last and f"within {SETTING}, {limit} MiB" in last and "give more" in last, last

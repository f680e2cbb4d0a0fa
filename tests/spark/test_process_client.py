"""A Spark worker's client: the garbage collector spares the modules that the worker has loaded."""

import os
import subprocess
import sys

import pytest

from tests.awaiting import SECONDS_MAX

_WORKER = """
import gc
import bookspark.store.client
bookspark.store.client.BookKeeper = lambda zookeeper, **options: object()
from bookspark.spark.process_client import client
first = client("one:1")
frozen = gc.get_freeze_count()
assert client("one:1") is first and gc.get_freeze_count() == frozen
import wave
assert client("one:1") is first
print(frozen, gc.get_freeze_count() > frozen, gc.is_tracked(wave.__dict__))
"""


@pytest.mark.parametrize("reused", [True, False])
def test_loaded_modules_of_a_reused_worker_are_frozen_for_the_collector(reused: bool) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "SPARK_REUSE_WORKER"}
    environment |= {"SPARK_REUSE_WORKER": "1"} if reused else {}
    told = subprocess.run(
        [sys.executable, "-c", _WORKER],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=SECONDS_MAX,
    ).stdout.split()
    # Modules loaded later are spared too, and a process that is no reused worker keeps its collector as it is.
    assert (int(told[0]) > 10_000, told[1]) == (reused, str(reused))

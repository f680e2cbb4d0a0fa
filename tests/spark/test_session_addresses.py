"""Listening addresses of a session's processes on this host: loopback alone, whatever the host's name and addresses are."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark.spark.short_jobs import QUICK_JVM

pytestmark = pytest.mark.acceptance

ROOT = Path(__file__).resolve().parents[2]

APPLICATION = """
import os, sys
from bookspark.spark import session
from tests.processes import listening_off_loopback

conf = {"spark.driver.extraJavaOptions": sys.argv[2]}
spark = session("addresses", master=sys.argv[1], **conf)
assert spark.sparkContext.parallelize([1, 2], 2).map(lambda x: x + 1).sum() == 5
unix = spark.sparkContext.parallelize([1], 1).map(lambda _: os.environ["PYTHON_UNIX_DOMAIN_ENABLED"]).first()
print("workers over Unix sockets:", unix.lower())
print("off loopback:", listening_off_loopback(os.getpid()))
"""


@pytest.mark.spark
def test_local_session_is_unreachable_from_other_hosts(tmp_path: Path) -> None:
    """Sessions, also those of the benchmarks, listened on the address of the host's name. (``tests/system/acceptance`` checks
    the README's job, with executors.)"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "SPARK_CONF_DIR": str(tmp_path)}
    del environment["SPARK_LOCAL_IP"]
    done = subprocess.run(
        [sys.executable, "-c", APPLICATION, "local[2]", QUICK_JVM],
        capture_output=True, text=True, timeout=900, cwd=tmp_path, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "off loopback: []" in done.stdout.splitlines()
    # Over TCP, a task of a stream waits 40 ms for its rows (docs/decisions/profile.md).
    assert "workers over Unix sockets: true" in done.stdout.splitlines()

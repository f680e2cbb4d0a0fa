"""The README's code, run as it is written: each block in order, Python blocks of a section in one session."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from bookspark.spark.short_jobs import QUICK_JVM
from tests.processes import listening_off_loopback

ROOT = Path(__file__).resolve().parents[2]
AUDITED, AGAIN = "the audits", "once more"
TEXT = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def environment(home):
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"HOME": str(home), "XDG_CACHE_HOME": cache, "PATH": path, "PYTHONPATH": "", "JAVA_TOOL_OPTIONS": QUICK_JVM}
    # A reader has not set it.
    return {name: value for name, value in {**os.environ, **own}.items() if name != "SPARK_LOCAL_IP"}


def run(command, **options):
    done = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1200, **options
    )
    assert done.returncode == 0, f"{done.stdout[:3000]} … {done.stdout[-3000:]}"
    return done.stdout


def first_rows(output):
    """The rows of the first table that Spark shows; its log may come in between."""
    return [line for line in output.splitlines() if re.match(r"\|\s*\d+\|", line)][:5]


def test_every_block_of_code_is_run():
    assert len(blocks("bash")) == 2
    assert len(blocks("python")) == 8
    assert TEXT.count("```") == 2 * (len(blocks("bash")) + len(blocks("python"))), "a block in a language not run here"


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_three_ways_to_use_it(tmp_path):
    env = environment(tmp_path)
    bookie_job, audits = blocks("bash")
    sink_and_source, own_question, *_ = blocks("python")
    job = subprocess.Popen(
        ["bash", "-ec", f"exec {bookie_job}"],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    guard = threading.Timer(600, lambda: os.killpg(job.pid, signal.SIGKILL))
    guard.start()
    try:
        serving = next((line for line in job.stdout if line.startswith("{")), None)
        assert serving is not None, "the bookie job ended without serving"
        assert listening_off_loopback(job.pid) == [], "a first try opens this host to nobody"
        env["BOOKSPARK_ZOOKEEPER"] = json.loads(serving)["zookeeper"]
        audit = f"import subprocess\nprint({AUDITED!r}, flush=True)\nsubprocess.run(['bash', '-ec', {audits!r}], check=True)\n"
        again = f"print({AGAIN!r}, flush=True)\n"
        session = sink_and_source + audit + again + sink_and_source + own_question
        shown, rest = run([sys.executable, "-c", session], env=env).split(f"{AUDITED}\n")
        audited, asked = rest.split(f"{AGAIN}\n")
        assert "only showing top 5 rows" in shown
        assert "Under-replicated ranges: none" in audited
        assert asked.count("bookie-") == 3
        assert len(first_rows(shown)) == 5
        assert first_rows(shown) == first_rows(asked), "run again with its checkpoint, nothing is doubled"
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            job.communicate(timeout=60)
        finally:
            guard.cancel()


def test_ledgers_without_spark(tmp_path):
    run([sys.executable, "-c", blocks("python")[2]], env=environment(tmp_path))


def test_ledgers_in_a_coroutine(tmp_path):
    called = """
import asyncio
from bookspark.local import LocalCluster
with LocalCluster(bookies=3) as cluster:
    bookkeeper = cluster.bookkeeper()
    with bookkeeper.create_ledger(password=b"secret") as source:
        source.append(b"first")
    asyncio.run(copy(bookkeeper, source.ledger_id))
    [copied] = set(bookkeeper.list_ledgers()) - {source.ledger_id}
    assert [entry.payload for entry in bookkeeper.open_ledger(copied, b"secret").read()] == [b"first"]
"""
    run([sys.executable, "-c", blocks("python")[3] + called], env=environment(tmp_path))


def test_a_log_without_spark(tmp_path):
    shown = run([sys.executable, "-c", blocks("python")[4]], env=environment(tmp_path))
    assert shown.splitlines() == ["0 b'an order'", "1 b'another'", "2 b'a third'", "3 b'a fourth'"]

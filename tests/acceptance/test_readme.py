"""The README.md's code, run as it is written: the bookies, beside them the query, the audits, the query again, the service."""

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
    assert len(blocks("python")) == 4, "the last three run in test_installed_package"
    assert TEXT.count("```") == 2 * (len(blocks("bash")) + len(blocks("python")) + len(blocks("text")))


def test_it_is_short():
    assert TEXT.count("\n") <= 155


@pytest.mark.spark
@pytest.mark.timeout(1800)
def test_the_four_examples(tmp_path):
    env = environment(tmp_path)
    bookie_job, audits = blocks("bash")
    query, service, *_ = blocks("python")
    job = subprocess.Popen(
        ["bash", "-ec", f"exec {bookie_job}"],
        cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    guard = threading.Timer(1500, lambda: os.killpg(job.pid, signal.SIGKILL))
    guard.start()
    try:
        before = []
        serving = next((line for line in job.stdout if line.startswith("{") or before.append(line)), None)
        assert serving is not None, f"the bookie job ended without serving: {''.join(before)[-3000:]}"
        assert len([line for line in before if " INFO " in line]) <= 5, "the job's log is short"
        assert listening_off_loopback(job.pid) == [], "a first try opens this host to nobody"
        env["BOOKSPARK_ZOOKEEPER"] = json.loads(serving)["zookeeper"]
        audit = f"import subprocess\nprint({AUDITED!r}, flush=True)\nsubprocess.run(['bash', '-ec', {audits!r}], check=True)\n"
        again = f"print({AGAIN!r}, flush=True)\n"
        session = query + audit + again + query
        shown, rest = run([sys.executable, "-c", session], env=env).split(f"{AUDITED}\n")
        audited, asked = rest.split(f"{AGAIN}\n")
        assert "only showing top 5 rows" in shown
        assert "Under-replicated ranges: none" in audited
        assert len(first_rows(shown)) == 5
        assert first_rows(shown) == first_rows(asked), "run again with its checkpoint, nothing is doubled"
        run([Path(sys.executable).parent / "bookspark", "log", "create", "payments"], env=env)
        assert run([sys.executable, "-c", service], env=env).splitlines() == ["0", "1", "2"]
    finally:
        job.send_signal(signal.SIGTERM)
        try:
            job.communicate(timeout=300)
        finally:
            guard.cancel()

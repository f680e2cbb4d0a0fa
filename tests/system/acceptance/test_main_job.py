"""The main job as a user runs it: from another directory, with spaces in paths, with Ctrl-C."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.processes import Output, await_no_process

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

BOOKSPARK = str(Path(sys.executable).with_name("bookspark"))
STEP_SECONDS = 1200.0
STOP_SECONDS = 600.0


class Run:
    """``bookspark run`` in a process group of its own, as a terminal starts it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None and process.stderr is not None
        self.process = process
        self.report = Output(process.stdout)
        self.progress = Output(process.stderr)

    def ctrl_c(self) -> int:
        """Send SIGINT to the whole group, as Ctrl-C does. Returns the exit status."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(STOP_SECONDS)


@contextmanager
def started(*arguments: str) -> Iterator[Run]:
    with subprocess.Popen(
        [BOOKSPARK, "run", *arguments],
        cwd="/",
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            yield Run(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                process.wait(STOP_SECONDS)


def test_run_stores_a_folder_prints_working_commands_and_ctrl_c_leaves_no_process(
    tmp_path: Path,
) -> None:
    folder, directory = tmp_path / "some files", tmp_path / "a run"
    (folder / "deeper").mkdir(parents=True)
    odd = [b"first\r", b"", b"no utf-8: \xff", b"x" * 300_000, b"last, without an end"]
    even = [b'{"number": %d}' % k for k in range(2000)]
    (folder / "a b.log").write_bytes(b"\n".join(odd))
    (folder / "deeper" / "more.jsonl").write_bytes(b"\n".join(even) + b"\n")
    with started(str(folder), "--serve", "--directory", str(directory)) as run:
        run.report.wait_for("# audit", STEP_SECONDS)
        text = "".join(run.report.lines)
        assert "2,005 rows" in text and "all three are equal" in text and "killed" not in text
        assert "Under-replicated ranges: none" in text

        line = run.report.wait_for(r"(.*) audit --zookeeper (\S+)", STOP_SECONDS)
        lines = [line for line in run.report.lines if " ledger " in line and "--zookeeper" in line]
        assert len(lines) == 2
        pasted = subprocess.run(
            ["bash", "-ec", "".join(lines)], cwd="/", capture_output=True, text=True, timeout=STOP_SECONDS, check=True
        )
        assert pasted.stdout.splitlines()[1:] == ["hello", "world"]
        log = [BOOKSPARK, "log", "read", "--zookeeper", line[2], "events"]
        stored = subprocess.run(log, capture_output=True, timeout=STOP_SECONDS, check=True).stdout
        assert sorted(stored.removesuffix(b"\n").split(b"\n")) == sorted(odd + even)

        assert run.ctrl_c() == 130
        run.progress.rest(STOP_SECONDS)
        assert run.progress.lines[-1] == "bookspark: interrupted; nothing is left running\n"
    await_no_process(directory)
    logs = [path.read_text() for path in directory.glob("bookies/*/bookie.log")]
    assert len(logs) == 4 and all("stopping: asked to" in log for log in logs)


def test_run_without_a_folder_streams_orders_kills_a_bookie_and_finds_every_row(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    with started("--directory", str(directory)) as run:
        assert run.process.wait(STEP_SECONDS) == 0
        run.report.rest(STOP_SECONDS)
        run.progress.rest(STOP_SECONDS)
    report, progress = "".join(run.report.lines), "".join(run.progress.lines)
    assert "300,000 rows" in report and "all three are equal" in report
    killed = re.search(r"killed +bookie-\w+ \(SIGKILL\) after ([\d,]+) rows; its task started it again", report)
    assert killed is not None and 150_000 <= int(killed[1].replace(",", "")) < 300_000
    assert "Revenue by country" in report and "Under-replicated ranges: none" in report
    assert re.search(r"in [\d,]+ of 300,000 rows \([\d,]+ rows/s\), out [\d,]+ \([\d,]+ rows/s\)", progress)
    await_no_process(directory)

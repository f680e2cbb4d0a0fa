"""``bookspark bookie run``: a bookie without Spark, as a process of its own."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from bookspark import BookKeeper
from bookspark.errors import ReadError
from bookspark.local import LocalCluster
from bookspark.servers.daemon.launch import adopt_or_start
from bookspark.servers.daemon.lease_client import LeaseRefusedError
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.bookie.offline.power_loss import lose_unsynced
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from tests.awaiting import SECONDS_MAX, await_that, stays
from tests.ports import free_port
from tests.processes import Output

pytestmark = pytest.mark.acceptance


class Running:
    """A process of ``bookspark bookie run``."""

    def __init__(self, *options: str, config: Path | None = None) -> None:
        settings = ["--config", str(config)] if config else []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "bookspark", *settings, "bookie", "run", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None and self.process.stderr is not None
        self.output, self.errors = Output(self.process.stdout), Output(self.process.stderr)

    def serving(self) -> dict[str, object]:
        """The line that the process prints once it serves."""
        line = self.output.wait_for(r"^\{.*\}$", SECONDS_MAX)[0]
        found: dict[str, object] = json.loads(line)
        return found

    def end(self, number: int = signal.SIGTERM) -> int:
        """Exit status after this signal."""
        self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Exit status, once all output has arrived."""
        status = self.process.wait(SECONDS_MAX)
        await_that(lambda: self.output.over and self.errors.over, what="the end of its output")
        return status

    @property
    def last_line(self) -> str:
        return self.errors.lines[-1]

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for stream, lines in ((self.process.stdout, self.output), (self.process.stderr, self.errors)):
            assert stream is not None
            await_that(lambda: lines.over, what="the end of its output")  # noqa: B023
            stream.close()


@pytest.fixture
def run(chroot):
    """``run("--directory", …)`` starts a bookie of the test's cluster."""
    begin_cluster(chroot)
    started = []

    def start(*options: object, zookeeper: str = chroot, config: Path | None = None) -> Running:
        started.append(Running("--zookeeper", zookeeper, *map(str, options), config=config))
        return started[-1]

    yield start
    for one in started:
        one.close()


def page(port: object, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SECONDS_MAX) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_killed_bookie_restarts_with_its_identity_and_stops_cleanly(run, chroot, tmp_path):
    port = free_port()
    options = ("--directory", tmp_path / "a", "--port", port, "--metrics-port", free_port())
    first = run(*options, "--create")
    told = first.serving()
    assert told["address"] == f"127.0.0.1:{port}" and told["pid"] == first.process.pid
    assert page(told["metrics_port"], "/health") == (200, "healthy: serving\n")
    assert page(told["metrics_port"], "/ready") == (200, "ready\n")
    assert "bookspark_bookie_ledgers" in page(told["metrics_port"], "/metrics")[1]
    assert page(told["metrics_port"], "/")[0] == 404
    with BookKeeper(chroot) as bookkeeper:
        with bookkeeper.create_ledger(1, 1, 1) as ledger:
            ledger.append(b"entry")
        first.end(signal.SIGKILL)
        # The directory has a cookie now, so no --create is needed.
        second = run(*options)
        again = second.serving()
        assert again["bookie_id"] == told["bookie_id"] and again["incarnation"] != told["incarnation"]
        assert [entry.payload for entry in bookkeeper.open_ledger(ledger.ledger_id).read()] == [b"entry"]
        assert second.end() == 0
        assert bookkeeper.metadata.bookies() == {}
    assert len(second.output.lines) == 1, "standard output has the one line"
    assert not list((tmp_path / "a").glob("lease.sock")), "a clean stop leaves no socket"


def test_sighup_stops_the_bookie_cleanly(run, chroot, tmp_path):
    """SIGHUP killed the bookie without a log line, and the next start had to search for lost entries."""
    # The shell that runs the tests may ignore SIGHUP.
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        bookie = run("--zookeeper", chroot, "--directory", str(tmp_path / "disk"), "--create")
    finally:
        signal.signal(signal.SIGHUP, before)
    bookie.serving()
    assert bookie.end(signal.SIGHUP) == 0


def test_new_bookie_is_created_only_with_create_or_a_bookie_id(run, tmp_path):
    unasked = run("--directory", tmp_path / "a")
    assert unasked.ended() == 2
    assert "no bookie's cookie lies there" in unasked.last_line and "--create" in unasked.last_line
    assert not (tmp_path / "a").exists(), "nothing was made"
    named = run("--directory", tmp_path / "a", "--bookie-id", "bookie-0")
    assert named.serving()["bookie_id"] == "bookie-0"
    assert named.end(signal.SIGINT) == 0


def test_empty_disk_of_a_known_bookie_is_refused_with_the_remedy(run, chroot, tmp_path):
    options = ("--directory", tmp_path / "disk" / "bookie", "--bookie-id", "bookie-0")
    first = run(*options)
    first.serving()
    assert first.end() == 0
    shutil.move(tmp_path / "disk", tmp_path / "other")
    for more in ((), ("--create",)):
        wrong = run(*options, *more)
        assert wrong.ended() == 2
        assert "no directory has the cookie of bookie-0" in wrong.last_line
        assert re.search(r"bookspark cookie fix --zookeeper \S+ --bookie bookie-0", wrong.last_line)
    shutil.rmtree(tmp_path / "disk")
    shutil.move(tmp_path / "other", tmp_path / "disk")
    assert run("--directory", tmp_path / "disk" / "bookie", "--bookie-id", "bookie-1").ended() == 2, "another's disk"
    assert run(*options).serving()["bookie_id"] == "bookie-0"


def test_two_bookies_run_on_one_host_and_ports_in_use_are_reported(run, tmp_path):
    ports = [free_port() for _ in range(4)]
    both = [
        run("--directory", tmp_path / f"{k}", "--create", "--port", ports[2 * k], "--metrics-port", ports[2 * k + 1])
        for k in range(2)
    ]
    told = [one.serving() for one in both]
    assert len({one["bookie_id"] for one in told}) == 2
    assert all(page(one["metrics_port"], "/ready") == (200, "ready\n") for one in told)
    third = run("--directory", tmp_path / "2", "--create", "--port", ports[0])
    assert third.ended() == 2 and f"port {ports[0]}" in third.last_line and "in use" in third.last_line
    fourth = run("--directory", tmp_path / "3", "--create", "--metrics-port", ports[1])
    found = fourth.serving()["metrics_port"]
    assert ports[1] < found < ports[1] + 64 and page(found, "/ready") == (200, "ready\n")
    fifth = run("--directory", tmp_path / "0")
    assert fifth.ended() == 2 and f"in use by process {both[0].process.pid}" in fifth.last_line


def test_bookie_without_zookeeper_exits_and_names_the_address(run, tmp_path):
    nowhere = f"127.0.0.1:{free_port()}"
    port = free_port()
    alone = run("--directory", tmp_path / "a", "--create", "--metrics-port", port, zookeeper=nowhere)
    assert alone.ended() == 2
    assert nowhere in alone.last_line and alone.last_line.startswith("bookspark: ")
    # The first start failed, so --create is still needed.
    assert run("--directory", tmp_path / "a", "--create").serving()


def test_bookie_serves_without_a_lease_holder_and_refuses_claims(run, chroot, tmp_path):
    settings = tmp_path / "bookspark.toml"
    settings.write_text("[bookie]\nlease_seconds = 0.2\n")
    running = run("--directory", tmp_path / "a", "--create", config=settings)
    running.serving()
    config = bookie_config(directories=[str(tmp_path / "a")], zookeeper=chroot)
    with pytest.raises(LeaseRefusedError, match="bookie run"):
        adopt_or_start(config, "a keeper")
    stays(lambda: running.process.poll() is None, 1.0)


def test_sigterm_stops_a_healing_bookie_cleanly(run, chroot, tmp_path):
    settings = tmp_path / "bookspark.toml"
    later = "background_sync_interval_ms = 3600000\nbackground_sync_bytes = 1099511627776\n"
    settings.write_text(f"[bookie]\njournal_write_data = false\nhealing_bytes_per_second = 1000\n{later}")
    options = ("--directory", tmp_path / "a", "--create")
    with LocalCluster(bookies=2, zookeeper=chroot) as cluster, cluster.bookkeeper() as bookkeeper:
        first = run(*options, config=settings)
        bookie_id = str(first.serving()["bookie_id"])
        for _ in range(3):
            with bookkeeper.create_ledger(3, 3, 2) as ledger:
                ledger.append_batch([bytes(10_000)] * 20)
        first.end(signal.SIGKILL)
        lose_unsynced(str(tmp_path / "a"))
        second = run(*options, config=settings)
        second.serving()
        await_that(
            lambda: (healing := bookkeeper.bookie_status(bookie_id).healing) and healing.ledgers_left,
            despite=ReadError,
        )
        assert second.end() == 0


def test_signal_ends_a_bookie_that_waits_for_zookeeper(run, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        nowhere = f"127.0.0.1:{silent.getsockname()[1]}"
        waiting = run("--directory", tmp_path / "a", "--create", zookeeper=nowhere)
        waiting.errors.wait_for("connecting to the metadata store", SECONDS_MAX)
        assert waiting.end() in (0, 2)

"""The stage of the twenty troubles: a real cluster, the console and ``bookspark why`` as processes, a user who types the
named commands, and the metrics for Prometheus' alerts."""

from __future__ import annotations

import html
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

from bookspark import errors
from bookspark.local import LocalBookie, LocalCluster
from bookspark.logs import LogRegistry, open_log
from bookspark.operations.why.gathering import DEADLINES
from bookspark.protocol.logs.lanes import MARK
from bookspark.servers.daemon import launch
from bookspark.store.client import BookKeeper
from tests.awaiting import SECONDS_MAX, await_that, time_passes
from tests.operations.why import faulty_daemon
from tests.ports import free_port

GONE_SECONDS = 120.0
COMMAND_SECONDS = SECONDS_MAX
# Commands that run until they are stopped.
_STAYS = ("bookie run", "autorecovery run")


class Ran(NamedTuple):
    """A command that has ended or keeps running."""

    status: int
    out: str


class Stage:
    """A context manager for one cluster at a time; nothing outlives it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="troubles-")))
        self.environment = {**os.environ, faulty_daemon.FAULTS: str(self.folder / "faults")}
        os.environ[faulty_daemon.FAULTS] = self.environment[faulty_daemon.FAULTS]
        self.url = ""
        self.zookeeper = ""
        self._targets: dict[str, str] = {}

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # -- the cluster

    def start(self, zookeeper: str | None = None, faulty: bool = False, **options: Any) -> LocalCluster:
        """Start a cluster with autorecovery, metrics and a watched console. ``faulty``: its bookies run ``faulty_daemon``."""
        before, launch.DAEMON = launch.DAEMON, faulty_daemon.__name__ if faulty else launch.DAEMON
        self._stack.callback(setattr, launch, "DAEMON", before)
        given = {"bookies": 4, "metrics_port": -1, "autorecovery": {"metrics_port": free_port()}, **options}
        self.cluster = self._stack.enter_context(LocalCluster(zookeeper=zookeeper, **given))
        self.zookeeper = self.environment["BOOKSPARK_ZOOKEEPER"] = self.cluster.zookeeper
        self.client = self._stack.enter_context(BookKeeper(self.zookeeper, **self.client_options(options)))
        self._autorecovery_port = given["autorecovery"].get("metrics_port", 0)
        self._note_targets()
        console = self.spawn("console", "--port", "0")
        assert console.stdout is not None
        self.url = console.stdout.readline().split()[0]
        await_that(lambda: "first look" not in self.page("/"))
        return self.cluster

    @staticmethod
    def client_options(options: Mapping[str, Any]) -> dict[str, Any]:
        secret = options.get("shared_secret_file")
        return {**DEADLINES, **({"shared_secret_file": secret} if secret else {})}

    def enter(self, context: Any) -> Any:
        """Enter a context that ends with the stage."""
        return self._stack.enter_context(context)

    def at_the_end(self, call: Callable[[], object]) -> None:
        """Call this when the stage ends."""
        self._stack.callback(call)

    def ledger(self, entries: int = 20, **quorums: int) -> int:
        """Write a closed ledger."""
        with self.client.create_ledger(**quorums) as ledger:
            for number in range(entries):
                ledger.append(b"%d" % number)
        return int(ledger.ledger_id)

    def writes(self, pause_seconds: float = 0.02) -> None:
        """Append to a ledger until the stage ends."""
        ends = threading.Event()

        def write() -> None:
            with self.cluster.bookkeeper() as bookkeeper, bookkeeper.create_ledger(3, 3, 2) as ledger:
                while not ends.wait(pause_seconds):
                    ledger.append(b"x" * 100)

        writer = threading.Thread(target=write, daemon=True)
        writer.start()
        self._stack.callback(writer.join, 60.0)
        self._stack.callback(ends.set)

    def breaks(self, bookie: LocalBookie, *faults: str) -> None:
        """Give the bookie's process these faults from now on (``faulty_daemon``)."""
        Path(self.environment[faulty_daemon.FAULTS]).write_text("\n".join(faults))
        assert bookie.pid is not None
        os.kill(bookie.pid, signal.SIGUSR1)

    # -- the console, the commands and the user

    def spawn(self, *arguments: str, stdin: str = "") -> subprocess.Popen[str]:
        """Run ``bookspark ARGUMENTS`` as a process that ends with the stage."""
        process = subprocess.Popen(
            [sys.executable, "-m", "bookspark", *arguments],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=open(self.folder / f"{arguments[0]}.log", "ab"),  # noqa: SIM115
            text=True,
            start_new_session=True,
        )

        def end() -> None:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.communicate()

        self._stack.callback(end)
        if stdin and process.stdin is not None:
            process.stdin.write(stdin)
            process.stdin.flush()
        return process

    def why(self, question: str = "") -> list[dict[str, Any]]:
        """The output of ``bookspark why``: the troubles, or the answer to a question."""
        ran = self.run(["why", "--json", *shlex.split(question)])
        assert ran.status in (0, 1), ran
        told = json.loads(ran.out)
        return told.get("troubles", [told])

    def page(self, path: str) -> str:
        """The text of a console page."""
        with urllib.request.urlopen(self.url.rstrip("/") + path, timeout=SECONDS_MAX) as answer:
            content = answer.read().decode().partition("<main")[2]
        return html.unescape(re.sub(r"<[^>]+>", " ", content))

    def run(self, arguments: list[str]) -> Ran:
        """Run ``bookspark ARGUMENTS`` until it ends."""
        done = subprocess.run(
            [sys.executable, "-m", "bookspark", *arguments],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
        )
        return Ran(done.returncode, done.stdout or done.stderr)

    def types(self, command: str) -> Ran:
        """Type the command that an answer names; if it asks ``why``, type the command of that answer."""
        name, *arguments = shlex.split(command)
        assert name == "bookspark", command
        if " ".join(arguments[:2]) in _STAYS:
            process = self.spawn(*arguments)
            assert process.stdout is not None
            return Ran(0 if process.stdout.readline() else 2, "runs on")
        if arguments[:1] == ["why"] and len(arguments) > 1:
            return self.types(self.why(shlex.join(arguments[1:]))[0]["command"])
        return self.run(arguments)

    def equips(self, process: subprocess.Popen[str], does: Callable[[], None]) -> None:
        """Perform the action that ``bookspark cluster apply`` asks for, once it asks for an empty disk."""
        said = self.folder / "cluster.log"
        await_that(lambda: "mount an empty disk" in said.read_text() or process.poll() is not None, what=said.read_text)
        does()

    # -- Prometheus

    def series(self) -> dict[str, str]:
        """The series that Prometheus would scrape from now on, in the notation of ``promtool test rules``. From two
        scrapes: counters continue at the rate between the two, gauges keep their value. Times are on promtool's clock,
        which starts at 0."""
        with suppress(errors.MetadataStoreError):
            self._note_targets()
        targets = {name: address for name, address in self._targets.items() if address}
        if self._autorecovery_port:
            targets["autorecovery"] = f"127.0.0.1:{self._autorecovery_port}"
        first = {name: _scrape(at) for name, at in targets.items()}
        began = time.monotonic()
        time_passes(2.0)
        found: dict[str, str] = {}
        for name, at in targets.items():
            now = _scrape(at)
            labels = f'job="bookspark-{"autorecovery" if name == "autorecovery" else "bookies"}",instance="{name}"'
            found[f"up{{{labels}}}"] = f"{int(bool(now))}x100"
            minutes = (time.monotonic() - began) / 60
            for key, value in now.items():
                found[_labelled(key, labels)] = _values(key, first[name].get(key, value), value, minutes)
        with suppress(errors.MetadataStoreError):
            found.update(self._of_readers())
        return found

    def _of_readers(self) -> dict[str, str]:
        found = {}
        for log in LogRegistry(self.client.metadata).names():
            if MARK not in log:
                for one in open_log(self.client, log).metrics().collect():
                    for sample in one.samples:
                        labels = ",".join(f'{name}="{value}"' for name, value in sample.labels.items())
                        found[f"{sample.name}{{{labels}}}"] = f"{sample.value}x100"
        return found

    def _note_targets(self) -> None:
        """Note the metrics addresses of the bookies; a bookie that is down can't report its own."""
        for name in self.client.metadata.bookies():
            with suppress(errors.ReadError):
                self._targets[name] = self.client.bookie_status(name).metrics_address


def _scrape(address: str) -> dict[str, float]:
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
    except OSError:
        return {}
    return {key: float(value) for key, _, value in (one.rpartition(" ") for one in lines if not one.startswith("#"))}


def _labelled(key: str, labels: str) -> str:
    name, _, rest = key.partition("{")
    return f"{name}{{{rest.rstrip('}')}{',' if rest else ''}{labels}}}"


def _values(key: str, before: float, now: float, minutes: float) -> str:
    name = key.partition("{")[0]
    if name.endswith("_timestamp_seconds"):
        return f"{now - time.time()}+60x100" if now else "0x100"
    if name.endswith(("_total", "_bucket", "_sum", "_count")):
        return f"{now}+{max(0.0, (now - before) / minutes)}x100"
    return f"{now}x100"

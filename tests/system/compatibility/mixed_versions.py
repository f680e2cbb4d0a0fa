"""Bookies and clients of two versions in one cluster: each version reads and recovers entries that the other acknowledged.

Law: both versions are real, each process with the code of its commit; ``bookspark.testing.history`` checks all their
observations. The older version precedes any guarantee between versions. Bookies are killed or stopped amid appends and restart
in either version. A newer one always starts. An older one that does not start on data of a newer one reports it (no more is
guaranteed, docs/formats.md), and the newer one continues there: the attempt loses nothing.
"""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Self

from bookspark.testing.history import Event, EventKind, History

ROOT = Path(__file__).resolve().parents[3]
OLDER = "fec199f1"
"""The last commit before formats and the wire were guaranteed."""
NOW = "now"
_SCRIPT = Path(__file__).with_name("either_version.py")
_BOOKIES = 5
_SHAPES = ((3, 3, 2), (3, 2, 2), (3, 3, 3), (2, 2, 2))
_SECONDS_MAX = 120.0


def has_older() -> bool:
    """True if the older commit is in this checkout's history."""
    command = ["git", "-C", str(ROOT), "cat-file", "-e", f"{OLDER}^{{commit}}"]
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


@contextmanager
def trees(folder: Path) -> Iterator[Mapping[str, Path]]:
    """By version, a folder with its code. Raises CalledProcessError if the older commit is not in this checkout's history."""
    older = folder / OLDER
    packed = subprocess.run(["git", "-C", str(ROOT), "archive", OLDER, "bookspark"], check=True, capture_output=True)
    with tarfile.open(fileobj=io.BytesIO(packed.stdout)) as archive:
        archive.extractall(older, filter="data")
    yield {OLDER: older, NOW: ROOT}


class Refused(Exception):
    """A call failed in the peer: the class of the error, and its text."""


class Peer:
    """A process of one version."""

    def __init__(self, tree: Path, folder: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_SCRIPT), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": str(tree)},
            cwd=folder,
            start_new_session=True,
        )
        # A hung peer is killed, which fails the reader of its line.
        self._late = threading.Event()

    def line(self) -> Any:
        """The peer's next result. Raises Refused if it is an error, and AssertionError if none came in time."""
        timer = threading.Timer(_SECONDS_MAX, self._end_late)
        timer.start()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        timer.cancel()
        assert line, f"{self._process.args} hung" if self._late.is_set() else f"{self._process.args} ended"
        told = json.loads(line)
        if "error" in told:
            raise Refused(f"{told['error']}: {told['why']}")
        return told["told"]

    def call(self, *call: object) -> Any:
        """Send a call, and return its result. Raises Refused and AssertionError, as ``line`` does."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(call) + "\n")
        self._process.stdin.flush()
        return self.line()

    def end(self) -> None:
        """Close the input, and wait for the end of the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._end_late()
            raise
        finally:
            assert self._process.stdout is not None
            self._process.stdout.close()

    def _end_late(self) -> None:
        self._late.set()
        os.killpg(self._process.pid, signal.SIGKILL)


class MixedCluster:
    """Bookies that all begin in the older version, and a client of each version."""

    def __init__(self, trees: Mapping[str, Path], folder: Path, zookeeper: str, random: Random) -> None:
        self._trees, self._folder, self._zookeeper, self._random = trees, folder, zookeeper, random
        self.history = History()
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        """Faults of bookies, and failures, in order."""
        self._versions = [OLDER] * _BOOKIES
        self._newer: set[int] = set()
        """Bookies that ran in the newer version at some time."""
        self._ledgers: list[int] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._bookies: list[Peer] = []
            stack.callback(self._end_bookies)
            self._pids = []
            for place in range(_BOOKIES):
                self._bookies.append(self._peer(OLDER, "bookie", self._directory(place)))
                self._pids.append(self._bookies[place].line()[1])
            self._clients = {version: self._peer(version, "client") for version in self._trees}
            for one in self._clients.values():
                stack.callback(one.end)
                one.line()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def tell(self) -> None:
        """One history: a ledger, a bookie that goes down amid the appends and returns, an end, and the reads of both
        versions."""
        random = self._random
        writer, ender = random.choice([OLDER, NOW]), random.choice([OLDER, NOW])
        ledger_id = self._clients[writer].call("create", *random.choice(_SHAPES))
        self._ledgers.append(ledger_id)
        next_id = self._append(writer, ledger_id, 0)
        place = random.randrange(_BOOKIES)
        self._take_down(place)
        next_id = self._append(writer, ledger_id, next_id)
        if random.random() < 0.3:
            self._read(random.choice([OLDER, NOW]), ledger_id)
        # Some ledgers end while the bookie is down, and some of these only when it is back.
        ended = random.random() < 0.4 and self._ends(writer, ender, ledger_id, tries=1)
        self._bring_back(place)
        if not ended:
            self._append(writer, ledger_id, next_id)
            assert self._ends(writer, ender, ledger_id, tries=5), "\n".join(self.faults[-20:])
        for each in {ledger_id, random.choice(self._ledgers)}:
            for version in (OLDER, NOW):
                self._read(version, each)
        self.counts["histories"] += 1
        self.counts[f"written {writer}, ended {ender}"] += 1
        for violation in self.history.violations:
            raise AssertionError("\n".join([violation.rule, *violation.excerpt]))

    def _append(self, version: str, ledger_id: int, first: int) -> int:
        random = self._random
        count = random.choice([1, 3, 40])
        text = "x" * random.choice([0, 10, 3000])
        payloads = [f"{ledger_id}.{first + number}.{text}" for number in range(count)]
        for number, payload in enumerate(payloads):
            self._tell(EventKind.APPENDED, version, ledger_id, first + number, payload)
        failed = self._clients[version].call("append", ledger_id, payloads, random.random() < 0.5)
        for number, (payload, why) in enumerate(zip(payloads, failed, strict=True)):
            kind = EventKind.FAILED if why else EventKind.ACKED
            self._tell(kind, version, ledger_id, first + number, payload)
            self.counts[f"appends that failed, {version}" if why else "acknowledged"] += 1
        if failed[-1]:
            self._tell(EventKind.FAULT, "", note=f"{version} could not append to ledger {ledger_id}: {failed[-1]}")
        return first + count

    def _ends(self, writer: str, ender: str, ledger_id: int, tries: int) -> bool:
        """Its writer closes the ledger, or another client recovers it during the write. False if no attempt succeeded."""
        if self._random.random() < 0.5:
            try:
                last, length = self._clients[writer].call("close", ledger_id)
            except Refused:
                self.counts["closes that failed"] += 1
            else:
                self._tell(EventKind.CLOSED_BY_WRITER, writer, ledger_id, last, length=length)
                return True
        for _ in range(tries):
            try:
                last, length = self._clients[ender].call("recover", ledger_id)
            except Refused as refused:
                self.counts["recoveries that failed"] += 1
                self._tell(EventKind.FAULT, "", note=f"{ender} could not recover ledger {ledger_id}: {refused}")
            else:
                self._tell(EventKind.CLOSED, ender, ledger_id, last, length=length)
                self.counts["recovered"] += 1
                return True
        return False

    def _read(self, version: str, ledger_id: int) -> None:
        since = self.history.now()
        observer = f"{version}.{since}"
        lac, payloads = self._clients[version].call("read", ledger_id)
        for entry_id, payload in enumerate(payloads):
            self._tell(EventKind.READ, observer, ledger_id, entry_id, payload)
        if len(payloads) <= lac:
            self._tell(EventKind.ABSENT, observer, ledger_id, len(payloads), since=since)
        self._tell(EventKind.LAC, observer, ledger_id, lac)
        self.counts["read"] += len(payloads)

    def _take_down(self, place: int) -> None:
        if self._random.random() < 0.7:
            os.kill(self._pids[place], signal.SIGKILL)
            self._tell(EventKind.FAULT, "", note=f"bookie {place} ({self._versions[place]}) is killed")
        else:
            self._tell(EventKind.FAULT, "", note=f"bookie {place} ({self._versions[place]}) is stopped")
        self._bookies[place].end()

    def _bring_back(self, place: int) -> None:
        """In either version. If the older one does not start, in the newer one."""
        before = self._versions[place]
        # Often keep the version, so that versions stay mixed.
        version = self._random.choice([before, before, OLDER, NOW])
        if not self._starts(place, version):
            version = NOW
            assert self._starts(place, version)
        self._versions[place] = version
        self.counts[f"restarts {before} to {version}"] += 1
        self._tell(EventKind.FAULT, "", note=f"bookie {place} is back as {version}")

    def _starts(self, place: int, version: str) -> bool:
        """False if it is an older version on data of a newer one, and reports that it does not start. Raises Refused for any
        other failed start."""
        self._bookies[place] = peer = self._peer(version, "bookie", self._directory(place))
        try:
            self._pids[place] = peer.line()[1]
        except Refused as refused:
            peer.end()
            if version == NOW or place not in self._newer:
                raise
            self.counts["older versions that did not start"] += 1
            self._tell(EventKind.FAULT, "", note=f"bookie {place} does not start as {version}: {refused}")
            return False
        if version == NOW:
            self._newer.add(place)
        return True

    def _tell(
        self,
        kind: EventKind,
        client: str,
        ledger_id: int = -1,
        entry_id: int = -1,
        payload: str = "",
        *,
        length: int = 0,
        note: str = "",
        since: int = 0,
    ) -> None:
        if note:
            self.faults.append(note)
        self.history.record(Event(kind, client, ledger_id, entry_id, payload.encode(), length, note, since))

    def _directory(self, place: int) -> str:
        return str(self._folder / f"bookie-{place}")

    def _peer(self, version: str, role: str, *arguments: str) -> Peer:
        return Peer(self._trees[version], self._folder, role, *arguments, self._zookeeper)

    def _end_bookies(self) -> None:
        for one in self._bookies:
            one.end()

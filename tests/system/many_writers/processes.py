"""The processes of a run: each is restarted when it ends, until it reports that it has finished.

Law: a process may be killed, or end by an error of the cluster (``ENDED``). Any other end is a defect and ends the run.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.awaiting import time_passes
from tests.system.many_writers.producing import ENDED

ROOT = Path(__file__).resolve().parents[3]
FOLDER = "BOOKSPARK_TEST_FOLDER"
"""In the environment of all processes of a run, to identify them."""
_END_SECONDS = 60.0


class Program:
    """A program over all of its lives. Each life is a process group of its own."""

    def __init__(self, folder: Path, name: str, module: str, before: Sequence[str], after: Sequence[str] = ()) -> None:
        self.name, self.lives, self.finished = name, 0, False
        self.endings: Counter[str] = Counter()
        self._folder, self._module, self._before, self._after = folder, module, before, after
        self._alive: dict[int, subprocess.Popen[bytes]] = {}
        """By life."""
        self._killed: set[int] = set()
        self._groups: list[int] = []

    @property
    def output(self) -> str:
        """Output of the newest life."""
        return self._printed(self.lives - 1).read_text(errors="replace")

    @property
    def is_ready(self) -> bool:
        """True if the newest life has begun its work; for a Spark driver, if each query has done a micro-batch."""
        return self.lives - 1 in self._alive and (self._module != "querying" or "\nready" in self.output)

    def start(self) -> None:
        """Begin another life. Earlier lives may still be alive."""
        command = [
            sys.executable,
            "-m",
            f"tests.system.many_writers.{self._module}",
            *self._before,
            str(self.lives),
            *self._after,
        ]
        with self._printed(self.lives).open("wb") as printed:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(ROOT), FOLDER: str(self._folder)},
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._alive[self.lives] = process
        self._groups.append(process.pid)
        self.lives += 1

    def kill(self) -> None:
        """Send SIGKILL to the newest life; for a Spark driver to its JVM first. Its executors live on for a while."""
        life = self.lives - 1
        if life in self._alive:
            self._killed.add(life)
            jvm = re.search(r"^jvm (\d+)", self.output, re.MULTILINE)
            for pid in (*([int(jvm[1])] if jvm else []), self._alive[life].pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def look(self) -> None:
        """Restart the program if it has ended. Raises AssertionError if it should not have."""
        for life, process in list(self._alive.items()):
            status = process.poll()
            if status is None:
                continue
            del self._alive[life]
            if life not in self._killed:
                words = self._printed(life).read_text(errors="replace")[-3000:]
                assert status in (0, ENDED), f"life {life} of {self.name} ended with status {status}:\n{words}"
                self.endings["finished" if status == 0 else "by an error or taken over"] += 1
            if life == self.lives - 1:
                if status == 0:
                    self.finished = True
                else:
                    self.start()

    def told(self, word: str) -> list[str]:
        """The rest of each line, in the output of all lives, that begins with ``word``."""
        texts = [self._printed(life).read_text(errors="replace") for life in range(self.lives)]
        return [line[len(word) + 1 :] for text in texts for line in text.splitlines() if line.startswith(f"{word} ")]

    def end(self) -> None:
        """Kill all remaining processes of all lives."""
        for group in self._groups:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)
        for process in self._alive.values():
            process.wait(_END_SECONDS)

    def _printed(self, life: int) -> Path:
        return self._folder / f"{self.name}.{life}.out"


class Programs:
    """All programs of a run."""

    def __init__(self, programs: Sequence[Program]) -> None:
        self.all = programs

    def pass_time(self, seconds: float, meanwhile: Callable[[], None]) -> None:
        """Watch the programs for ``seconds``. ``meanwhile`` is called repeatedly."""
        until = time.monotonic() + seconds
        while True:
            for program in self.all:
                if not program.finished:
                    program.look()
            meanwhile()
            if (left := until - time.monotonic()) <= 0:
                return
            time_passes(min(left, 0.1))

    def await_all(self, condition: Callable[[Program], bool], seconds: float, meanwhile: Callable[[], None]) -> None:
        """Wait until ``condition`` holds for each program."""
        until = time.monotonic() + seconds
        while late := [program for program in self.all if not condition(program)]:
            self.pass_time(0.1, meanwhile)
            told = [f"{one.name}: {one.output[-1000:]}" for one in late]
            assert time.monotonic() < until, f"not within {seconds:g} s: {told}"

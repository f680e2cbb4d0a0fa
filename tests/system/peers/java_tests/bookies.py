"""``python -m tests.system.peers.java_tests.bookies``: starts and stops bookies for a JVM that runs BookKeeper's own tests.

Law: one command a line comes in, one line goes out: ``ok [answer]`` or ``error <why>``. No process outlives this one: its
bookies are killed when its input ends, and the kernel kills them when it dies. It has no threads and no connections, so that a
bookie can be a fork of it, which imports nothing again.

==============================================  ========================================================
``begin <zookeeper>``                           lay out a cluster for BookKeeper's clients
``start <zookeeper> <folder> <option=value>…``  start a bookie with options of ``BookieConfig``; returns its number
``stop <number>``                               SIGTERM: a clean stop
``kill <number>``                               SIGKILL
``suspend <number>``, ``resume <number>``       SIGSTOP and SIGCONT
``readonly <zookeeper> <id>``                   switch a bookie to read-only
==============================================  ========================================================
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from bookspark import BookKeeper
from bookspark.servers.bookkeeper import digest_types, door  # noqa: F401 (each bookie has it imported when it is forked)
from bookspark.servers.daemon.bookie_process import Foreground, prepare_process, run_bookie
from bookspark.servers.daemon.processes import Process
from bookspark.store.bookie.bookie_config import bookie_config
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import begin_cluster
from tests.awaiting import await_that

_ANSWER_SECONDS = 200.0
_STOP_SECONDS = 30.0
_SESSION_SECONDS = 40.0
"""A bookie that BookKeeper's tests put to sleep stays registered, as a Java bookie does: there only its requests sleep."""
_PR_SET_PDEATHSIG = 1


class Bookies:
    """The running bookies, by their numbers, which are their process ids."""

    def __init__(self) -> None:
        self._running: set[int] = set()

    def begin(self, zookeeper: str) -> str:
        _forked(lambda told: begin_cluster(zookeeper, LedgerManager.BOOKKEEPER))
        return ""

    def start(self, zookeeper: str, folder: str, *options: str) -> str:
        config = bookie_config(
            directories=[f"{folder}/bookspark"],
            zookeeper=zookeeper,
            zookeeper_session_timeout_seconds=_SESSION_SECONDS,
            stamp_missing_cookies=True,
            **{name: _value(value) for name, _, value in (option.partition("=") for option in options)},
        )

        def bookie(told: Callable[[], None]) -> None:
            faulthandler.register(signal.SIGUSR1)
            prepare_process()
            Path(config.directories[0]).mkdir(exist_ok=True)
            run_bookie(config, Foreground("BookKeeper's tests", lambda *_: told(), 1))

        number = _forked(bookie)
        self._running.add(number)
        return str(number)

    def stop(self, number: str) -> str:
        return self._end(int(number), signal.SIGTERM)

    def kill(self, number: str) -> str:
        return self._end(int(number), signal.SIGKILL)

    def suspend(self, number: str) -> str:
        self._signal(int(number), signal.SIGSTOP)
        if (bookie := Process.of(int(number))) is not None:
            await_that(lambda: bookie.suspended or not bookie.alive, _STOP_SECONDS, f"bookie {number} stands still")
        return ""

    def resume(self, number: str) -> str:
        self._signal(int(number), signal.SIGCONT)
        return ""

    def readonly(self, zookeeper: str, bookie_id: str) -> str:
        def switch(told: Callable[[], None]) -> None:
            with BookKeeper(zookeeper) as client:
                client.switch_read_only(bookie_id, True)

        _forked(switch)
        return ""

    def end(self) -> None:
        """Kill all bookies."""
        for number in list(self._running):
            self._end(number, signal.SIGKILL)

    def _signal(self, number: int, signal_number: signal.Signals) -> None:
        if number in self._running:
            os.kill(number, signal_number)

    def _end(self, number: int, how: signal.Signals) -> str:
        if number not in self._running:
            return ""
        self._running.discard(number)
        os.kill(number, how)
        os.kill(number, signal.SIGCONT)
        if not _ends(number, _STOP_SECONDS):
            # Its threads log their stacks.
            os.kill(number, signal.SIGUSR1)
            _ends(number, 1)
            os.kill(number, signal.SIGKILL)
            os.waitpid(number, 0)
            raise RuntimeError(f"bookie {number} did not stop within {_STOP_SECONDS:g} s and was killed")
        os.waitpid(number, 0)
        return ""


def _ends(number: int, seconds: float) -> bool:
    """True if this child ends within ``seconds``."""
    descriptor = os.pidfd_open(number)
    try:
        ready, _, _ = select.select([descriptor], [], [], seconds)
    finally:
        os.close(descriptor)
    return bool(ready)


def _value(word: str) -> object:
    """A number, true or false, or a text."""
    try:
        return json.loads(word)
    except json.JSONDecodeError:
        return word


def _forked(work: Callable[[Callable[[], None]], object]) -> int:
    """Run ``work`` in a forked process; returns its pid once it has called its argument, or has ended without error. An error
    there raises RuntimeError here."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        os.close(reading)
        nothing = os.open(os.devnull, os.O_RDWR)
        os.dup2(nothing, 0)
        os.dup2(nothing, 1)
        status = 0
        try:
            work(lambda: _tell(writing, "ok"))
            _tell(writing, "ok")
        except BaseException as error:
            status = 1
            _tell(writing, f"{type(error).__name__}: {error}")
        finally:
            os._exit(status)
    os.close(writing)
    try:
        ready, _, _ = select.select([reading], [], [], _ANSWER_SECONDS)
        said = os.read(reading, 1 << 12).decode() if ready else f"no answer in {_ANSWER_SECONDS:g} s"
    finally:
        os.close(reading)
    if not said.startswith("ok"):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise RuntimeError(said or "it ended without a word")
    return child


def _tell(pipe: int, words: str) -> None:
    # The reader may be gone.
    with suppress(OSError):
        os.write(pipe, words.encode())


def main() -> None:
    """Serve the commands until the input ends."""
    bookies = Bookies()
    commands = {
        name: getattr(bookies, name) for name in ("begin", "start", "stop", "kill", "suspend", "resume", "readonly")
    }
    try:
        for line in sys.stdin:
            name, *words = line.split()
            try:
                said = f"ok {commands[name](*words)}"
            except Exception as error:
                said = f"error {' '.join(f'{type(error).__name__}: {error}'.split())}"
            print(said, flush=True)
    finally:
        bookies.end()


if __name__ == "__main__":
    main()

"""Processes in a terminal of their own, as a user starts them: a process that asks at the keyboard has one there."""

from __future__ import annotations

import io
import os
import pty
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import pytest

from bookspark.operations.cli.main import main
from tests.awaiting import await_that


class Terminal:
    """A running process and its screen."""

    def __init__(self, pid: int, screen: int) -> None:
        self.pid = pid
        self.said = ""
        """Everything on the screen so far."""
        self.ended = threading.Event()
        """Set when the process has closed its terminal."""
        self._screen = screen
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def asks(self) -> bool:
        """Does OpenSSL wait for a passphrase?"""
        return "pass phrase" in self.said

    def _read(self) -> None:
        try:
            while part := os.read(self._screen, 4096):
                self.said += part.decode(errors="replace")
        except OSError:
            pass
        self.ended.set()


@contextmanager
def terminal(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[Terminal]:
    """The process of this command, which is killed at the end."""
    pid, screen = pty.fork()
    if pid == 0:
        os.execve(arguments[0], arguments, {**os.environ, **(environment or {})})
    running = Terminal(pid, screen)
    try:
        yield running
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        running.ended.wait()
        os.close(screen)


class CommandTerminal:
    """Runs ``bookspark`` in this process on a pseudo-terminal, as wide as ``COLUMNS`` says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._master, slave = os.openpty()
        self._stream = io.TextIOWrapper(os.fdopen(slave, "wb", buffering=0), encoding="utf-8", write_through=True)
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, self._stream)
        monkeypatch.setattr(sys, "stdin", io.StringIO(""))
        self._seen = bytearray()
        self._monkeypatch = monkeypatch
        self._draining = threading.Thread(target=self._drain)
        self._draining.start()

    def _drain(self) -> None:
        # A terminal whose last writer is gone ends with an error.
        with suppress(OSError):
            while True:
                self._seen += os.read(self._master, 1 << 16)

    def close(self) -> None:
        self._stream.close()
        self._draining.join()
        os.close(self._master)

    def run(self, *words: str, interrupt_after: bytes = b"") -> bytes:
        """The output of a command. ``interrupt_after``: this output is followed by Ctrl-C."""
        self._monkeypatch.setattr(sys, "argv", ["bookspark", *words])
        self._seen.clear()
        # A script's shell starts background processes with SIGINT ignored.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        if interrupt_after:
            threading.Thread(target=self._interrupt, args=(interrupt_after,)).start()
        with pytest.raises(SystemExit):
            main()
        signal.signal(signal.SIGINT, before)
        self._stream.write("the end of it")
        await_that(lambda: b"the end of it" in self._seen)
        return bytes(self._seen).removesuffix(b"the end of it")

    def _interrupt(self, after: bytes) -> None:
        await_that(lambda: after in self._seen)
        os.kill(os.getpid(), signal.SIGINT)

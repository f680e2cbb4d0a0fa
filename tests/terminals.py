"""Processes in a terminal of their own, as a user starts them: a process that asks at the keyboard has one there."""

from __future__ import annotations

import os
import pty
import signal
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager


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

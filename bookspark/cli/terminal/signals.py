"""Signals for commands that run until Ctrl-C or SIGTERM."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

UNTIL = "until Ctrl-C or SIGTERM"


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, Ctrl-C and SIGTERM raise KeyboardInterrupt, so that the block can report or stop what it began."""
    # SIGINT has to be set too: a script's shell starts background processes with SIGINT ignored.
    previous = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextmanager
def until_signal() -> Iterator[Callable[[], None]]:
    """Yields a function that returns when Ctrl-C or SIGTERM comes. A signal before that, while things start, ends the block with
    KeyboardInterrupt, so that what was started is stopped. Neither is an error of the command."""

    def wait() -> None:
        # Not signal.pause(): it sleeps through a signal that another thread took, or that came a moment before.
        woken, wake = socket.socketpair()
        with woken, wake:
            wake.setblocking(False)
            signal.set_wakeup_fd(wake.fileno())
            with suppress(KeyboardInterrupt):
                woken.recv(1)
            signal.set_wakeup_fd(-1)
            # From here on things are being stopped. A second Ctrl-C must not cut that short.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with interruptible(), suppress(KeyboardInterrupt):
        yield wait

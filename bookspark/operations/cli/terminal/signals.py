"""Signals for commands that run until Ctrl-C or SIGTERM. The end of their terminal (SIGHUP) ends them, too, unless ``nohup``
started them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

UNTIL = "until Ctrl-C or SIGTERM"


def ending() -> list[signal.Signals]:
    """The signals that are to end this process."""
    # SIGINT is one even if it is ignored: a script's shell starts background processes so.
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextmanager
def interruptible() -> Iterator[None]:
    """Within the block, Ctrl-C, SIGTERM and the terminal's end raise KeyboardInterrupt, so that the block can report or stop what
    it began."""
    previous = {each: signal.signal(each, signal.default_int_handler) for each in ending()}
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
            for each in ending():
                signal.signal(each, signal.SIG_IGN)

    with interruptible(), suppress(KeyboardInterrupt):
        yield wait

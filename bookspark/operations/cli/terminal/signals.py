"""Signals for commands that run until Ctrl-C or SIGTERM. The terminal's end (SIGHUP) also ends them, unless ``nohup`` started
them."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

UNTIL = "until Ctrl-C or SIGTERM"
LOOK_SECONDS = 1.0


def ending() -> list[signal.Signals]:
    """The signals that end this process."""
    # SIGINT even if ignored: a script's shell starts background processes with SIGINT ignored.
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [signal.SIGINT, signal.SIGTERM, *([] if ignored else [signal.SIGHUP])]


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C, SIGTERM and the terminal's end raise KeyboardInterrupt in the block, so it can report and clean up."""
    previous = {each: signal.signal(each, signal.default_int_handler) for each in ending()}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextmanager
def until_signal() -> Iterator[Callable[..., None]]:
    """Yields a function that returns at Ctrl-C or SIGTERM, and calls its argument, if any, each second until then. An earlier
    signal raises KeyboardInterrupt in the block, which then stops its servers. Neither is an error of the command."""

    def wait(look: Callable[[], None] | None = None) -> None:
        # Not signal.pause(): it misses a signal that another thread took or that came just before.
        woken, wake = socket.socketpair()
        with woken, wake:
            wake.setblocking(False)
            signal.set_wakeup_fd(wake.fileno())
            woken.settimeout(None if look is None else LOOK_SECONDS)
            try:
                with suppress(KeyboardInterrupt):
                    while not _received(woken):
                        if look is not None:
                            look()
            finally:
                signal.set_wakeup_fd(-1)
                # The shutdown begins: a second Ctrl-C must not interrupt it.
                for each in ending():
                    signal.signal(each, signal.SIG_IGN)

    with interruptible(), suppress(KeyboardInterrupt):
        yield wait


def _received(woken: socket.socket) -> bool:
    try:
        return bool(woken.recv(1))
    except TimeoutError:
        return False

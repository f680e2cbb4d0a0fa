"""Commands that run until they are told to end."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

UNTIL = "until Ctrl-C or SIGTERM"


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM raise KeyboardInterrupt: what was begun can be told of, or stopped."""
    # SIGINT as well: whoever is started in the background by a script's shell would ignore it.
    previous = {each: signal.signal(each, signal.default_int_handler) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)


@contextmanager
def until_signal() -> Iterator[Callable[[], None]]:
    """Gives a function that returns when Ctrl-C or SIGTERM comes. One that comes before, while things start, ends the block by
    KeyboardInterrupt, so that what was started is stopped; both are an end as it was asked for."""

    def wait() -> None:
        # Not signal.pause(), which sleeps through a signal that another thread took, or that came a moment before.
        woken, wake = socket.socketpair()
        with woken, wake:
            wake.setblocking(False)
            signal.set_wakeup_fd(wake.fileno())
            with suppress(KeyboardInterrupt):
                woken.recv(1)
            signal.set_wakeup_fd(-1)
            # From here on it is being stopped, which a second Ctrl-C must not cut short.
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            signal.signal(signal.SIGTERM, signal.SIG_IGN)

    with interruptible(), suppress(KeyboardInterrupt):
        yield wait

"""An autorecovery process as a child of this process, for clusters on one host and for tests.

Law: the child ends when its standard input ends, so it does not outlive this process. ``start`` returns once the child works;
otherwise it raises with the last line of the child's log.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from bookspark.errors import BookieError
from bookspark.store.autorecovery.autorecovery_config import autorecovery_config
from bookspark.support.private_files import open_private

_START_SECONDS = 60.0
_STOP_SECONDS = 60.0


class AutorecoveryProcess:
    """One child, over all of its starts. ``options``: fields of AutorecoveryConfig. ``client``: options of its BookKeeper
    client."""

    def __init__(self, zookeeper: str, log: Path, client: Mapping[str, Any], options: Mapping[str, Any]) -> None:
        # A wrong option raises here, not at the start.
        autorecovery_config(**options)
        self.name = ""
        """Name in ``bookspark autorecovery status``; "" before the first start."""
        self._document = {"zookeeper": zookeeper, "client": client, "autorecovery": options}
        self._log = log
        self._child: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id; None while it does not run."""
        return self._child.pid if self._child is not None and self._child.poll() is None else None

    def start(self) -> None:
        """Start the child and wait for its first line. Does nothing if it runs. Raises BookieError if it does not start within
        60 s."""
        if self.pid is not None:
            return
        with open_private(self._log, append=True) as log:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "bookspark.store.autorecovery"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                # Ctrl-C goes to the parent, which stops the child.
                start_new_session=True,
            )
        assert self._child.stdin is not None
        self._child.stdin.write(msgspec.json.encode(self._document) + b"\n")
        self._child.stdin.flush()
        self.name = self._first_line()
        if not self.name:
            self.kill()
            said = self._log.read_text(errors="replace").strip().rpartition("\n")[2]
            raise BookieError(f"the autorecovery process did not start; its log {self._log} ends with: {said}")

    def stop(self) -> None:
        """Stop the process cleanly, so that it releases its locks. Raises BookieError if it had to be killed after 60 s."""
        if self.pid is None or self._child is None:
            return
        assert self._child.stdin is not None
        self._child.stdin.close()
        try:
            self._child.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BookieError(f"the autorecovery process {self.name} did not stop in {_STOP_SECONDS:g} s") from None
        self._close()

    def kill(self) -> None:
        """SIGKILL; returns once the process is gone."""
        if self._child is not None:
            self._child.send_signal(signal.SIGKILL)
            self._child.wait(_STOP_SECONDS)
            self._close()

    def _first_line(self) -> str:
        """The first line of output; "" if there is none in time."""
        assert self._child is not None and self._child.stdout is not None
        said, deadline = b"", time.monotonic() + _START_SECONDS
        with selectors.DefaultSelector() as selector:
            selector.register(self._child.stdout, selectors.EVENT_READ)
            while not said.endswith(b"\n"):
                if not selector.select(max(0.0, deadline - time.monotonic())):
                    return ""
                more = self._child.stdout.read1()  # type: ignore[attr-defined]
                if not more:
                    return ""
                said += more
        return said.decode().strip()

    def _close(self) -> None:
        assert self._child is not None
        for pipe in (self._child.stdin, self._child.stdout):
            if pipe is not None:
                pipe.close()

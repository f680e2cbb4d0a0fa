"""Bookies of ``LocalCluster`` forked from a process that has imported the bookie's code, instead of started as new
processes.

A bookie's start is mostly imports, and a run of the tests has hundreds. Law: the forked process is a bookie like any
other, with its own session, environment, log and end. A test that starts another daemon or preloads a library gets a new
process, as users do; so do Spark's executors, the command line and a run under ``scripts/coverage``.

``python -m tests.zygote DESCRIPTOR`` is that process. A request is JSON with three descriptors: the bookie's input, its
log, and a pipe for its pid and exit status.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from functools import cache

from bookspark.servers.daemon import launch
from bookspark.store.bookie.bookie_config import BookieConfig
from tests.awaiting import SECONDS_MAX

_END_SECONDS_MAX = 60.0


def use() -> None:
    """Make this process fork its bookies."""
    if "COVERAGE_PROCESS_CONFIG" not in os.environ:
        launch._spawn = _spawn


class Forked:
    """A forked bookie, with the methods of ``subprocess.Popen`` that ``launch`` uses."""

    def __init__(self, pipe: int) -> None:
        self._pipe = os.fdopen(pipe, "rb", buffering=0)
        self.returncode: int | None = None
        if not self._readable(SECONDS_MAX) or not (pid := self._pipe.read(8)):
            self._pipe.close()
            raise OSError("no bookie was forked: the process that forks them has ended or hangs")
        self.pid = int.from_bytes(pid, "big")
        os.set_blocking(pipe, False)

    def _readable(self, timeout: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        return bool(waiting.poll(None if timeout is None else 1000 * max(0.0, timeout)))

    def poll(self) -> int | None:
        if self.returncode is None and (status := self._pipe.read(8)) is not None:
            # End of file without a status: the process that waits for the bookie was killed.
            self.returncode = int.from_bytes(status, "big", signed=True) if status else -signal.SIGKILL
            self._pipe.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._readable(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("bookie", timeout or 0.0)
        return status


class Zygote:
    """The forking process of one test process."""

    def __init__(self) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", __name__, str(theirs.fileno())]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
            self._process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        self._lock = threading.Lock()
        atexit.register(self._end, os.getpid())

    def _end(self, owner: int) -> None:
        self._ours.close()
        if os.getpid() == owner:
            self._process.kill()  # nothing to lose: the bookies are processes of their own
            self._process.wait(_END_SECONDS_MAX)

    def fork(self, options: str, log: int) -> Forked:
        paths = os.pathsep.join(path for path in sys.path if path)
        request = {"options": options, "environment": {**os.environ, "PYTHONPATH": paths}}
        reading, writing = os.pipe()
        with open(os.devnull, "rb") as nothing, self._lock:
            payload = json.dumps(request).encode()
            socket.send_fds(self._ours, [len(payload).to_bytes(8, "big")], [nothing.fileno(), log, writing])
            self._ours.sendall(payload)
        os.close(writing)
        return Forked(reading)


@cache
def _zygote(pid: int) -> Zygote:
    return Zygote()


_from_nothing = launch._spawn


def _spawn(config: BookieConfig) -> subprocess.Popen[bytes] | Forked:
    if launch.DAEMON != "bookspark.servers.daemon" or "LD_PRELOAD" in os.environ:
        return _from_nothing(config)
    options, output = launch._settle_home(config)
    with output:
        return _zygote(os.getpid()).fork(str(options), output.fileno())


# -- the process that forks


def serve(requests: socket.socket) -> None:
    from bookspark.servers.daemon.__main__ import main

    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        head, descriptors, *_ = socket.recv_fds(requests, 8, 3)
        if not head:
            return
        size, payload = int.from_bytes(head, "big"), b""
        while len(payload) < size:
            payload += requests.recv(size - len(payload))
        if os.fork() == 0:
            requests.close()
            if _wait_for_child(descriptors[2]):
                os._exit(0)
            _become(json.loads(payload), descriptors)
            sys.exit(main(sys.argv[1:]))
        for descriptor in descriptors:
            os.close(descriptor)


def _wait_for_child(pipe: int) -> bool:
    """Fork, and report the child's pid and exit status on the pipe. False in the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        return False
    os.setsid()
    os.write(pipe, child.to_bytes(8, "big"))
    _, status = os.waitpid(child, 0)
    with suppress(OSError):  # the reader has gone
        os.write(pipe, os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
    return True


def _become(request: dict[str, object], descriptors: list[int]) -> None:
    """Make the changes that ``exec`` would have made."""
    os.setsid()
    os.chdir("/")
    for target, descriptor in enumerate((descriptors[0], descriptors[1], descriptors[1])):
        os.dup2(descriptor, target)
    for descriptor in descriptors:
        os.close(descriptor)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(request["environment"])  # type: ignore[call-overload]
    sys.argv = ["bookspark.servers.daemon", str(request["options"])]


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))

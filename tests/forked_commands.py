"""``bookspark`` for pages of the manual, forked from a process that has imported it, instead of started as a new process.

A page has dozens of commands, and imports take most of the time of each. Law: the forked process runs the command like any
other, with its own arguments, environment, folder, descriptors and exit status. Commands that serve until they are stopped
are started as new processes, so that signals reach them.

``folder()`` has a program ``bookspark``, which sends its arguments and descriptors to that process and waits for the exit
status. ``python -m tests.forked_commands SOCKET`` is that process; it ends when its input does.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import pkgutil
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import typer

# A command with one of these words serves until it is stopped.
SERVES = "chaos", "console", "local", "run", "top"
_LEFT_OUT = "bench", "console", "demo", "jobs", "simulation", "spark", "testing"
_PROGRAM = """#!{python} -IS
import json, os, socket, sys

if {serves} & {{*sys.argv[1:3]}}:
    os.execv({real!r}, [{real!r}, *sys.argv[1:]])
asked = {{"arguments": sys.argv, "environment": dict(os.environ), "folder": os.getcwd()}}
payload = json.dumps(asked).encode()
server = socket.socket(socket.AF_UNIX)
server.connect({place!r})
socket.send_fds(server, [len(payload).to_bytes(8, "big")], [0, 1, 2])
server.sendall(payload)
status = server.recv(8)
sys.exit(int.from_bytes(status, "big") if status else "the process that runs commands has ended")
"""


@cache
def folder() -> str:
    """A folder for PATH, before the folder of the real ``bookspark``."""
    made = Path(tempfile.mkdtemp(prefix="bookspark-commands-"))
    place, real = str(made / "socket"), str(Path(sys.executable).with_name("bookspark"))
    program = made / "bookspark"
    program.write_text(_PROGRAM.format(python=sys.executable, serves={*SERVES}, real=real, place=place))
    program.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    server = subprocess.Popen(
        [sys.executable, "-m", __name__, place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    )
    atexit.register(_end, server, made, os.getpid())
    assert server.stdout is not None and server.stdout.read(1), "it listens"
    return str(made)


def _end(server: subprocess.Popen[bytes], made: Path, owner: int) -> None:
    if os.getpid() == owner:
        server.kill()
        server.wait()
        shutil.rmtree(made, ignore_errors=True)


# -- the process that forks


def serve(listening: socket.socket) -> None:
    """Run the requested commands, each in a process of its own."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.freeze()
    while True:
        asked, _ = listening.accept()
        head, descriptors, *_ = socket.recv_fds(asked, 8, 3)
        size, payload = int.from_bytes(head, "big"), b""
        while len(payload) < size and (part := asked.recv(size - len(payload))):
            payload += part
        if len(payload) == size and os.fork() == 0:
            listening.close()
            _wait_for_child(asked)
            _become(json.loads(payload), descriptors)
            from bookspark.__main__ import main

            main()
        for descriptor in descriptors:
            os.close(descriptor)
        asked.close()


def _wait_for_child(asked: socket.socket) -> None:
    """Fork, and report the child's exit status. Returns in the child."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    child = os.fork()
    if child == 0:
        asked.close()
        return
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    with suppress(OSError):  # the client has gone
        asked.sendall((code if code >= 0 else 128 - code).to_bytes(8, "big"))
    os._exit(0)


def _become(asked: dict[str, Any], descriptors: list[int]) -> None:
    """Make the changes that ``exec`` would have made."""
    os.chdir(asked["folder"])
    for target, descriptor in enumerate(descriptors):
        os.dup2(descriptor, target)
        os.close(descriptor)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, errors="backslashreplace", closefd=False)
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = asked["arguments"]
    sys.modules["__main__"].__package__ = None  # else a command's usage says ``python -m``


def _import_all() -> None:
    """Import the product, and build the tree of all commands, which typer builds for each call and which takes longer than
    most of them."""
    import bookspark.operations.cli.main

    importlib.import_module("pydantic").TypeAdapter(int)  # typer imports it for the first argument
    made = typer.main.get_command(bookspark.operations.cli.main.command_line())
    typer.main.get_command = lambda app: made  # type: ignore[assignment]
    for found in pkgutil.walk_packages(bookspark.__path__, "bookspark."):
        if found.name.split(".")[1] not in _LEFT_OUT and not found.name.endswith("__main__"):
            importlib.import_module(found.name)


if __name__ == "__main__":
    _import_all()
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(sys.argv[1])
        made.listen(64)
        os.write(1, b"\n")
        serve(made)

"""Simulated hosts on one machine: each has its own name, its own disk at a shared path, and its own loopback address.

``unshare --uts --mount`` gives a process tree its own host name and mounts. The processes of a host are found by their UTS
namespace, so all of them can be killed at once, as a power cut does. Root is needed. Source: unshare(1), namespaces(7).
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path


class Machine:
    """The hosts of a cluster. ``folder`` holds their disks; ``names`` are the hosts, at 127.0.0.2 and up. The machine itself
    is the gateway, at 127.0.0.1, which knows all names."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self.folder = folder
        self.names = names
        self.disk = folder / "disk"
        """Path of each host's own disk."""
        self.disk.mkdir(parents=True, exist_ok=True)
        own = os.uname().nodename
        lines = [f"127.0.0.1 localhost gateway {own}", *(f"127.0.0.{n} {name}" for n, name in enumerate(names, 2))]
        self._hosts_file = folder / "hosts"
        self._hosts_file.write_text("\n".join(lines) + "\n")
        self._started: list[subprocess.Popen[bytes]] = []

    def run_on(
        self, name: str, command: list[str], log: Path, environment: Mapping[str, str], private: tuple[Path, ...] = ()
    ) -> subprocess.Popen[bytes]:
        """Start a process on a host, with its own disk, and its own content at the paths ``private``."""
        mounts = "".join(
            f"mkdir -p {own} {path}; mount --bind {own} {path}; "
            for path in (self.disk, *private)
            for own in [shlex.quote(str(self.folder / name / path.name))]
        )
        script = (
            f"set -e; hostname {name}; mount --bind {self._hosts_file} /etc/hosts; {mounts} exec {shlex.join(command)}"
        )
        return self._start(["unshare", "--uts", "--mount", "--propagation", "private"], script, log, environment)

    def run_on_gateway(self, command: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Start a process on the gateway, with the hosts' names."""
        script = f"set -e; mount --bind {self._hosts_file} /etc/hosts; exec {shlex.join(command)}"
        return self._start(["unshare", "--mount", "--propagation", "private"], script, log, environment)

    def _start(
        self, prefix: list[str], script: str, log: Path, environment: Mapping[str, str]
    ) -> subprocess.Popen[bytes]:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*prefix, "bash", "-c", script],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process

    def processes_of(self, name: str) -> dict[int, str]:
        """Command lines of all processes on a host, by pid."""
        # A namespace's number is reused later, so no name is cached between calls.
        names: dict[str, str] = {}
        return {pid: command for pid, command in _processes() if _hostname(pid, names) == name}

    def processes_with(self, *words: str) -> dict[int, str]:
        """Command lines of this machine's processes that contain all these words. Other clusters may run beside this one, so
        one of the words must be a path of it."""
        return {pid: command for pid, command in _processes() if all(word in command for word in words)}

    def end(self, pids: Iterator[int] | list[int], number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal to each process."""
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def cut_power(self, name: str) -> None:
        """Kill all processes of a host."""
        while processes := self.processes_of(name):
            self.end(list(processes))
            for process in self._started:
                process.poll()

    def close(self) -> None:
        """Kill all started processes and any others on the hosts."""
        for name in self.names:
            self.cut_power(name)
        for process in self._started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(30)
        self.end([pid for pid, command in _processes() if str(self.folder) in command and pid != os.getpid()])


def _processes() -> Iterator[tuple[int, str]]:
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            command = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if command:
                yield int(process.name), command


def _hostname(pid: int, names: dict[str, str]) -> str:
    """The host name that a process sees, by its UTS namespace. ``names``: cache of names by namespace."""
    with suppress(OSError):
        namespace = os.readlink(f"/proc/{pid}/ns/uts")
        if namespace == os.readlink("/proc/self/ns/uts"):
            return ""
        if namespace not in names:
            command = ["nsenter", "--uts", "--target", str(pid), "hostname"]
            asked = subprocess.run(command, capture_output=True, text=True, check=False)
            if asked.returncode != 0:
                return ""
            names[namespace] = asked.stdout.strip()
        return names[namespace]
    return ""

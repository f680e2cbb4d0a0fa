"""An embedded ZooKeeper: the server in pyspark's jars, as a child JVM on this host's loopback.

Law: the server never outlives the process that started it, even after SIGKILL. Two servers never share a directory. In
``directory``::

    zoo.cfg          the packaged settings and this start's dataDir and port; written anew at each start
    data/version-2/  ZooKeeper's transaction logs and snapshots: they outlast a restart
    zookeeper.log    the server's warnings, and its lock: held (flock) by the process that has it open, the JVM

Death with the parent: the child is a shell that leaves a watcher in its own process group and then becomes the JVM. The
watcher reads a pipe that only the parent holds open, and kills the group at its end. As a member of the group it keeps the
system from reusing the group's number.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import importlib.util
import os
import socket
import subprocess
import time
from importlib import resources
from pathlib import Path
from typing import IO

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.store.metadata.zookeeper.java import find_java
from bookspark.support.extras import advice
from bookspark.support.private_files import make_private_directory, open_private, refuse_foreign_content

HOST = "127.0.0.1"
_WATCHED_JVM = (
    'umask 077; exec 3<&0 </dev/null; { read -r _ <&3; kill -s KILL -- -$$; } >/dev/null 2>&1 & exec 3<&-; exec "$@"'
)
_JARS = ("zookeeper", "slf4j-api-", "log4j-", "netty-", "metrics-core-", "snappy-java-")
"""With all of Spark's jars on the class path the JVM takes twice as long to start."""
_HEAP = "-Xmx192m"
_PORT_ATTEMPTS = 5
_ATTEMPT_SECONDS = 0.05
_LAST_WORDS_BYTES = 2000
_KILLED_SECONDS = 60.0
"""Longest wait for the end of a killed server: on a busy machine the watcher wakes late."""
_START_SECONDS = 60.0
_LOCK_SECONDS = 3.0


class PortInUseError(ConfigurationError):
    """Another process listens on this port."""


class EmbeddedZooKeeper:
    """A ZooKeeper server with its data in ``directory``. ``port`` 0 is any free port, a new one at each start.

    ``start`` returns once it answers, ``stop`` once it is gone. Both are idempotent. Also a context manager.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        port: int = 0,
        *,
        stop_seconds: float = 10.0,
    ) -> None:
        if not 0 <= port <= 65535:
            raise ConfigurationError(f"ZooKeeper port {port} is not one; use 1 to 65535, or 0 for any free one")
        self.directory = Path(directory).absolute()
        self._wanted_port = port
        self.port = 0
        """0 when it is not running."""
        self._stop_seconds = stop_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._owner_pid = 0

    @property
    def connection_string(self) -> str:
        """``127.0.0.1:port``, for kazoo, ``ZooKeeperStore`` and ``BookKeeper``. Raises MetadataStoreError when it is not
        running."""
        if not self.port:
            raise MetadataStoreError("the embedded ZooKeeper is not running: call start() first")
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int | None:
        """The JVM's; None when it is not running."""
        return None if self._process is None or self._process.poll() is not None else self._process.pid

    def __enter__(self) -> EmbeddedZooKeeper:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start it and wait until it serves. Raises ConfigurationError (no Java, port or directory in use), or
        MetadataStoreError with the server's last words."""
        if self.pid is not None:
            return
        self.stop()
        java = find_java()
        deadline = time.monotonic() + _START_SECONDS
        for attempt in range(_PORT_ATTEMPTS):
            port = _free_port(self._wanted_port)
            try:
                self._start_at(java, port, deadline)
                return
            except PortInUseError:
                # Another process took the port between our probe and the server's bind.
                if self._wanted_port or attempt == _PORT_ATTEMPTS - 1:
                    raise

    def stop(self) -> None:
        """End the server, by force if it takes longer than ``stop_seconds``. Every confirmed change is on disk already."""
        if self._process is not None and os.getpid() != self._owner_pid:
            # A forked process: the server is its parent's.
            return
        process, self._process, self.port = self._process, None, 0
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(self._stop_seconds)
        assert process.stdin is not None
        # The watcher wakes and kills the rest: a hanging JVM, then itself.
        process.stdin.close()
        process.wait(_KILLED_SECONDS)

    def _start_at(self, java: str, port: int, deadline: float) -> None:
        jars = _jars()
        with _locked_log(self.directory) as log:
            make_private_directory(self.directory / "data")
            settings = resources.files(__package__).joinpath("zoo.cfg").read_text("utf-8")
            # A relative dataDir needs no escapes of Java's property files.
            added = f"# Added at this start\ndataDir=./data\nclientPort={port}\nclientPortAddress={HOST}\n"
            with open_private(self.directory / "zoo.cfg") as file:
                file.write(f"{settings}\n{added}".encode())
            command = [
                *(java, _HEAP, "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8"),
                *("-Dorg.apache.logging.log4j.level=WARN", "-cp", os.pathsep.join(jars)),
                *("org.apache.zookeeper.server.ZooKeeperServerMain", "./zoo.cfg"),
            ]
            self._owner_pid = os.getpid()
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", _WATCHED_JVM, "zookeeper", *command],
                cwd=self.directory,
                env={**os.environ, "LC_ALL": "C.UTF-8"},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._await_answer(port, deadline)
        except BaseException:
            self.stop()
            raise
        self.port = port

    def _await_answer(self, port: int, deadline: float) -> None:
        assert self._process is not None
        ours = f"dataDir={os.path.realpath(self.directory / 'data' / 'version-2')}"
        while True:
            status = self._process.poll()
            if status is not None:
                words = self._last_words()
                if "Address already in use" in words:
                    raise _port_in_use(port)
                raise MetadataStoreError(f"the embedded ZooKeeper ended at its start with status {status}: {words}")
            if ours in [_real_path(line) for line in _ask(port, "conf").splitlines()]:
                return
            if time.monotonic() > deadline:
                raise MetadataStoreError(
                    f"the embedded ZooKeeper did not answer on {HOST}:{port} in {_START_SECONDS:g} s; if this host is busy, "
                    f"try again later; its last words: {self._last_words()}"
                )
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_ATTEMPT_SECONDS)

    def _last_words(self) -> str:
        text = (self.directory / "zookeeper.log").read_bytes()[-_LAST_WORDS_BYTES:].decode("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines()]
        return " / ".join(line for line in lines if line and not line.startswith("at ")) or "none"


def _real_path(line: str) -> str:
    name, _, value = line.partition("=")
    return f"dataDir={os.path.realpath(value)}" if name == "dataDir" else line


def _ask(port: int, word: str) -> str:
    answer = bytearray()
    try:
        with socket.create_connection((HOST, port), timeout=1.0) as connection:
            connection.sendall(word.encode())
            while part := connection.recv(4096):
                answer += part
    except OSError:
        return ""
    return answer.decode("utf-8", "replace")


def _free_port(wanted: int) -> int:
    """``wanted``, or any free port for 0. Raises PortInUseError, ConfigurationError."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise _port_in_use(wanted) from error
            raise ConfigurationError(f"ZooKeeper port {wanted} can't be used: {error.strerror}") from error
        return int(probe.getsockname()[1])


def _port_in_use(port: int) -> PortInUseError:
    return PortInUseError(f"port {port} of {HOST} is in use by another process; choose another, or 0 for any free one")


def _jars() -> list[str]:
    package = importlib.util.find_spec("pyspark")
    locations = list((package.submodule_search_locations if package else None) or [])
    # Under spark-submit pyspark is imported from a zip, without jars.
    if home := os.environ.get("SPARK_HOME"):
        locations.insert(0, home)
    for location in locations:
        found = sorted(str(jar) for jar in Path(location, "jars").glob("*.jar") if jar.name.startswith(_JARS))
        if found:
            return found
    raise ConfigurationError(
        f"pyspark's jars, which hold the ZooKeeper server, were not found; install them: {advice('spark')}"
    )


def _locked_log(directory: Path) -> IO[bytes]:
    """The log file, empty and locked. The JVM inherits it, so the lock lasts as long as the JVM."""
    try:
        make_private_directory(directory)
        refuse_foreign_content(directory)
        log = open_private(directory / "zookeeper.log", append=True)
    except OSError as error:
        raise ConfigurationError(f"ZooKeeper's directory {directory} can't be written: {error.strerror}") from error
    deadline = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            log.truncate(0)
            return log
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                log.close()
                raise ConfigurationError(
                    f"another ZooKeeper runs in {directory}; stop it, or give this one a directory of its own"
                ) from error
            time.sleep(_ATTEMPT_SECONDS)

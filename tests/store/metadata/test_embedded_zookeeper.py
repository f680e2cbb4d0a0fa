"""The embedded ZooKeeper: its start, the errors of a failed start, and its end with its parent."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark.errors import ConfigurationError, MetadataStoreError
from bookspark.store.metadata.zookeeper import embedded
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper, PortInUseError
from bookspark.store.metadata.zookeeper.java import find_java
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.processes import halted
from tests.store.metadata.kit import EVENT_SECONDS, begun

pytestmark = pytest.mark.acceptance


def await_end(pid: int) -> None:
    """Wait until process ``pid``, which need not be a child, has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], EVENT_SECONDS)[0], f"process {pid} runs on"
    finally:
        os.close(handle)


def test_embedded_zookeeper_serves_until_stopped_and_keeps_its_data(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path / "new" / "Ärger & 'more'")
    assert server.pid is None and server.port == 0
    with pytest.raises(MetadataStoreError, match=r"start\(\) first"):
        _ = server.connection_string
    server.start()
    server.start()
    pid = server.pid
    assert pid is not None and os.getsid(pid) == pid, "a session of its own: Ctrl-C does not reach it"
    with ZooKeeperStoreOf(server) as store:
        assert store.new_ledger_id() == 0
    server.stop()
    server.stop()
    await_end(pid)
    assert server.pid is None
    with server, ZooKeeperStoreOf(server) as store:
        assert store.new_ledger_id() == 1


class ZooKeeperStoreOf:
    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self._store = begun(server.connection_string)

    def __enter__(self) -> ZooKeeperStore:
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()


def test_port_in_use_is_refused_with_its_number(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(PortInUseError, match=f"port {port} of 127.0.0.1 is in use"):
            EmbeddedZooKeeper(tmp_path, port=port).start()


@pytest.mark.parametrize("port", [-1, 65536])
def test_invalid_port_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"port {port} is not one"):
        EmbeddedZooKeeper(tmp_path, port=port)


def test_port_lost_between_choice_and_bind_is_replaced(
    tmp_path: Path, zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The port's new owner is also a ZooKeeper; it must not be taken for ours."""
    ports = iter([zookeeper.port])
    free_port = embedded._free_port
    monkeypatch.setattr(embedded, "_free_port", lambda wanted: next(ports, None) or free_port(wanted))
    with EmbeddedZooKeeper(tmp_path) as server:
        assert server.port != zookeeper.port


def test_directory_in_use_is_refused(zookeeper: EmbeddedZooKeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedded, "_LOCK_SECONDS", 0.1)
    with pytest.raises(ConfigurationError, match="another ZooKeeper runs in"):
        EmbeddedZooKeeper(zookeeper.directory).start()
    with ZooKeeperStoreOf(zookeeper) as store:
        assert store.instance_id


def test_directory_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigurationError, match="can't be written"):
        EmbeddedZooKeeper(tmp_path / "file" / "inner").start()


def test_start_with_damaged_data_fails_with_the_servers_last_output(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("not a directory")
    with pytest.raises(MetadataStoreError, match=r"ended at its start with status \d+: .*version-2"):
        EmbeddedZooKeeper(tmp_path).start()


def test_killed_server_is_noticed_and_can_be_restarted(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        pid = server.pid
        assert pid
        os.kill(pid, signal.SIGKILL)
        await_end(pid)
        assert server.pid is None
        server.start()
        assert server.pid not in (None, pid)


def test_embedded_zookeeper_ends_with_its_killed_parent(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper\n"
        "server = EmbeddedZooKeeper(sys.argv[1])\nserver.start()\nprint(server.pid, flush=True)\nsys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        os.kill(pid, 0)
        parent.kill()
        await_end(pid)
    with EmbeddedZooKeeper(tmp_path) as again:
        assert again.pid != pid


def test_hanging_server_is_killed_at_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait after SIGKILL was as short as the wait before it: a stop on a busy machine raised TimeoutExpired."""
    server = EmbeddedZooKeeper(tmp_path, stop_seconds=0.5)
    server.start()
    pid = server.pid
    assert pid
    waits: list[float | None] = []
    wait = subprocess.Popen.wait

    def noting(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        waits.append(timeout)
        return wait(process, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", noting)
    with halted(pid):
        server.stop()
    assert waits == [0.5, embedded._KILLED_SECONDS]
    await_end(pid)


def test_stop_in_a_forked_child_does_not_end_the_server(tmp_path: Path) -> None:
    with EmbeddedZooKeeper(tmp_path) as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert server.pid is not None
        with ZooKeeperStoreOf(server) as store:
            assert store.instance_id


# -- Java


def fake_java(directory: Path, version: str, where: str = "java") -> None:
    java = directory / where
    java.parent.mkdir(parents=True, exist_ok=True)
    java.write_text(f"#!/bin/sh\necho '{version}' >&2\n")
    java.chmod(0o755)


def test_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"no java on PATH.*install Java 17"):
        EmbeddedZooKeeper(tmp_path / "data").start()


def test_wrong_java_home_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match=r"JAVA_HOME is .* no bin/java"):
        find_java()


@pytest.mark.parametrize(("told", "version"), [('openjdk version "11.0.20"', 11), ('java version "1.8.0_412"', 8)])
def test_old_java_is_refused_with_its_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, version: int
) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    fake_java(tmp_path, told)
    with pytest.raises(ConfigurationError, match=f"is Java {version}, and 17 or later"):
        find_java()


def test_java_without_a_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_java(tmp_path, "what?", "bin/java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ConfigurationError, match="does not tell its version"):
        find_java()


@pytest.mark.parametrize("told", ['openjdk version "17.0.15"', 'openjdk version "21" 2023-09-19'])
def test_java_home_is_used_before_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    fake_java(tmp_path, told, "bin/java")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert find_java() == str(tmp_path / "bin" / "java")

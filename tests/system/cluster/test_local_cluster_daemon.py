"""The bookie process: its lease, its locks and its errors at start."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bookspark import BookKeeper
from bookspark.errors import BookieError
from bookspark.operations.cli.commands.bookie import lines
from bookspark.servers.daemon import launch, processes
from bookspark.servers.daemon.directories import DirectoryLocks, lock_holder, read_cookie, write_cookie
from bookspark.servers.daemon.launch import Bookie, adopt_or_start
from bookspark.servers.daemon.lease_client import LeaseConnection, LeaseLostError, LeaseRefusedError
from bookspark.servers.daemon.lease_server import LeaseServer
from bookspark.servers.daemon.processes import Process, wait_for_end
from bookspark.store.bookie.bookie_config import BookieConfig, bookie_config
from bookspark.store.metadata.bookie_homes import BookieHome, read_home
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore, begin_cluster
from tests.awaiting import SECONDS_MAX, await_that
from tests.ports import free_port

pytestmark = pytest.mark.acceptance

Launcher = Callable[..., Bookie]


@pytest.fixture
def config(tmp_path: Path, chroot: str) -> Callable[..., BookieConfig]:
    """Options of a bookie with two directories, in paths too long for a Unix socket address."""
    base = tmp_path / ("long " * 20 + "path")

    def make(**options: Any) -> BookieConfig:
        directories = [str(base / name) for name in ("one", "two")]
        return bookie_config(**{"directories": directories, "zookeeper": chroot, **options})

    return make


@pytest.fixture
def start() -> Iterator[Launcher]:
    """``start(config, holder)``: a serving bookie, killed after the test."""
    started: list[Bookie] = []

    def launcher(config: BookieConfig, holder: str = "test") -> Bookie:
        bookie = adopt_or_start(config, holder)
        started.append(bookie)
        bookie.wait_serving()
        return bookie

    yield launcher
    for bookie in started:
        bookie.kill()


def log_of(config: BookieConfig) -> str:
    return Path(config.directories[0], "bookie.log").read_text()


def test_bookie_with_a_dropped_lease_is_adopted_without_restart(config: Any, start: Launcher) -> None:
    first = start(config(), "task 0 of attempt 0")
    first.lease.close()
    second = start(config(), "task 1 of attempt 1")
    assert first.started and not second.started
    assert second.process == first.process
    assert second.status.bookie_id == first.status.bookie_id
    assert second.status.holder == "task 1 of attempt 1"


def test_held_lease_is_refused_and_its_holder_named(config: Any, start: Launcher) -> None:
    bookie = start(config(), "task 0")
    with pytest.raises(LeaseRefusedError, match="held by task 0") as caught:
        adopt_or_start(config(), "task 1")
    assert caught.value.holder == "task 0"
    assert bookie.alive


def test_launcher_does_not_stop_a_bookie_of_another_cluster(config: Any, start: Launcher) -> None:
    """A job with another cluster's ZooKeeper stopped the bookies of its directories that no process held."""
    first = start(config(), "task 0")
    first.lease.close()
    with pytest.raises(BookieError, match=r"serves another cluster, at .*, and goes on; name that ZooKeeper"):
        adopt_or_start(config(zookeeper="127.0.0.1:1"), "task 1", instance_id="another")
    assert first.alive and start(config(), "task 2").process == first.process


def test_bookie_status_names_the_lease_holder_and_the_time_until_stop(config: Any, start: Launcher) -> None:
    bookie = start(config(), "task 0")
    with BookKeeper(bookie.config.zookeeper) as bookkeeper:
        asked = bookkeeper.bookie_status(bookie.status.bookie_id)
        assert (asked.keeper, asked.stops_in_seconds) == ("task 0", None)
        assert "  looked after by task 0" in list(lines(asked))
        bookie.lease.close()
        await_that(lambda: bookkeeper.bookie_status(bookie.status.bookie_id).keeper == "")
        asked = bookkeeper.bookie_status(bookie.status.bookie_id)
        assert asked.stops_in_seconds is not None and 500 < asked.stops_in_seconds <= 600
        assert any("nobody looks after it; it stops in 5" in line or "in 600 s" in line for line in lines(asked))
    assert "lease dropped by task 0; stopping in 600 s if nobody claims it" in log_of(bookie.config)


def test_host_and_directories_of_a_bookie_stay_in_metadata_after_a_kill(
    config: Any, start: Launcher, chroot: str
) -> None:
    bookie = start(config())
    bookie.kill()
    store = ZooKeeperStore(chroot)
    assert read_home(store, bookie.status.bookie_id) == BookieHome(socket.gethostname(), bookie.config.directories)
    store.close()


def test_expired_lease_ends_the_bookie_cleanly(config: Any, start: Launcher, chroot: str) -> None:
    bookie = start(config(lease_seconds=0.5))
    bookie.lease.close()
    assert bookie.wait_ended(SECONDS_MAX)
    assert "stopping: nobody has held its lease for 0.5 s" in log_of(bookie.config)
    store = ZooKeeperStore(chroot)
    assert store.bookies() == {}
    store.close()
    assert lock_holder(bookie.config.directories[0]) is None
    assert not Path(bookie.config.directories[0], "lease.sock").exists()


def test_new_bookie_is_restarted_if_its_lease_expires_before_the_claim(
    config: Any, start: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, children = launch._claim, []

    def slow_claim(config: Any, process: Any, holder: str, deadline: float, child: Any) -> Bookie:
        children.append(child)
        if len(children) == 1:
            assert child.wait(SECONDS_MAX) == 0
        return claim(config, process, holder, deadline, child)

    monkeypatch.setattr(launch, "_claim", slow_claim)
    bookie = start(config(lease_seconds=1))
    assert len(children) > 1
    assert bookie.process.pid == children[-1].pid


def test_new_bookie_is_restarted_if_it_is_stopping_at_the_claim(config: Any, start: Launcher, monkeypatch: Any) -> None:
    """Its lease time expired at that moment: the launcher took it for a bookie held by another process, and the start failed."""
    refused: list[str] = []
    claim = LeaseConnection.claim

    def late(lease: LeaseConnection, holder: str, timeout: float = 10.0) -> Any:
        if not refused:
            refused.append(holder)
            lease.ask_stop()
            raise LeaseRefusedError("the bookie is stopping", "")
        return claim(lease, holder, timeout)

    monkeypatch.setattr(LeaseConnection, "claim", late)
    bookie = start(config())
    assert bookie.alive and refused == ["test"]


def test_status_request_needs_no_lease_and_identifies_the_bookie(config: Any, start: Launcher) -> None:
    bookie = start(config(), "task 0")
    other = LeaseConnection(bookie.config.directories)
    status = other.ask_status()
    other.close()
    cookie = read_cookie(bookie.config.directories[1])
    assert cookie is not None
    assert (status.bookie_id, status.pid, status.phase) == (cookie.bookie_id, bookie.process.pid, "serving")
    assert status.holder == "task 0" and status.address.startswith("127.0.0.1:") and status.incarnation > 0


def test_malformed_lease_requests_get_an_error_and_do_not_disturb_the_lease(config: Any, start: Launcher) -> None:
    bookie = start(config())
    with socket.socket(socket.AF_UNIX) as nonsense:
        directory = os.open(bookie.config.directories[0], os.O_RDONLY)
        nonsense.connect(f"/proc/self/fd/{directory}/lease.sock")
        os.close(directory)
        nonsense.settimeout(SECONDS_MAX)
        nonsense.sendall(b'{"request": "dance"}\n')
        assert b"unknown request 'dance'" in nonsense.recv(4096)
        nonsense.sendall(b'{"request": "\xff"}\n')
        assert b"not a request" in nonsense.recv(4096)
        nonsense.sendall(b"x" * 10_000)
        with contextlib.suppress(ConnectionResetError):
            assert nonsense.recv(4096) == b""
    assert bookie.lease.ask_status().phase == "serving"


def test_lease_server_survives_an_exception_in_answering_a_peer(tmp_path: Path, monkeypatch: Any) -> None:
    """The thread that serves the lease ended, and the bookie could not be stopped any more."""
    answer = LeaseServer._answer
    monkeypatch.setattr(
        LeaseServer, "_answer", lambda self, number, line: answer(self, number, line) if b"status" in line else 1 / 0
    )
    ended = threading.Event()
    server = LeaseServer([str(tmp_path)], 60.0, "", lambda why: ended.set())
    server.start()
    with contextlib.closing(LeaseConnection([str(tmp_path)])) as peer, pytest.raises(LeaseLostError):
        peer.claim("task 0")
    other = LeaseConnection([str(tmp_path)])
    assert other.ask_status().phase == "starting"
    other.close()
    server.stop("the test is over")
    assert ended.wait(SECONDS_MAX)
    server.close()


def test_sigterm_stops_the_bookie_cleanly(config: Any, start: Launcher) -> None:
    bookie = start(config())
    bookie.send_signal(signal.SIGTERM)
    assert bookie.wait_ended(SECONDS_MAX)
    assert bookie._child is not None and bookie._child.returncode == 0
    assert "stopping: SIGTERM" in log_of(bookie.config)


def test_sigterm_sent_to_a_suspended_bookie_stops_it_after_resume(config: Any, start: Launcher) -> None:
    """BookKeeper's ``BookieWriteLedgerTest`` detected that SIGTERM was ignored: after SIGCONT the kernel delivers it to any
    thread, and Python handles it in the main thread, which slept on."""
    for _ in range(3):
        bookie = start(config())
        bookie.send_signal(signal.SIGSTOP)
        await_that(lambda bookie=bookie: bookie.process.suspended, what="the bookie stands still")
        bookie.send_signal(signal.SIGTERM)
        bookie.send_signal(signal.SIGCONT)
        assert bookie.wait_ended(SECONDS_MAX)


def test_process_counts_as_suspended_only_when_all_its_threads_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once only the first thread was checked: on a busy machine, other threads of ZooKeeper answered a request after that."""
    monkeypatch.setattr(processes, "_PROC", tmp_path)
    threads = tmp_path / "7" / "task"
    for number, state in ((7, "T"), (8, "S")):
        (threads / str(number)).mkdir(parents=True)
        (threads / str(number) / "stat").write_text(f"{number} (a) S) {state} 1 7")
    (tmp_path / "7" / "stat").write_text("7 (a) T 1 7")
    process = Process(7, 1)
    assert not process.suspended
    (threads / "8" / "stat").write_text("8 (b) T 1 7")
    assert process.suspended
    assert not Process(9, 1).suspended


def test_sigterm_during_boot_stops_the_bookie_cleanly(config: Any) -> None:
    bookie = adopt_or_start(config(), "test")
    bookie.send_signal(signal.SIGTERM)
    assert bookie.wait_ended(SECONDS_MAX)
    assert bookie._child is not None and bookie._child.returncode == 0
    bookie.lease.close()


def test_hung_bookie_that_holds_its_locks_is_killed_and_replaced(
    config: Any, start: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launch, "_UNANSWERED_SECONDS", 0.5)
    hung = start(config())
    hung.send_signal(signal.SIGSTOP)
    while not hung.process.suspended:
        assert hung.alive
    hung.lease.close()
    bookie = start(config())
    assert not hung.alive
    assert bookie.status.bookie_id == hung.status.bookie_id and bookie.process != hung.process


def test_error_for_a_slow_bookie_says_that_the_launcher_killed_it(
    config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine a bookie did not start within a minute, and the launcher wrongly reported that it had ended."""
    (tmp_path / "never_answers.py").write_text("import time\n\ntime.sleep(3600)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(launch, "DAEMON", "never_answers")
    with pytest.raises(BookieError, match="did not answer in time, and was killed"):
        adopt_or_start(config(), "launcher", timeout=0.01)


def test_bookie_with_another_zookeeper_address_is_restarted(config: Any, start: Launcher, chroot: str) -> None:
    first = start(config())
    first.lease.close()
    host = chroot.partition("/")[0].replace("127.0.0.1", "localhost")
    second = start(config(zookeeper=f"{host}/{chroot.partition('/')[2]}"))
    assert second.started and second.status.bookie_id == first.status.bookie_id


def test_bookie_directory_is_locked_against_other_processes(config: Any, start: Launcher) -> None:
    bookie = start(config())
    with pytest.raises(BookieError, match=f"in use by process {bookie.process.pid}; stop it, or give"):
        DirectoryLocks([bookie.config.directories[1]])
    assert lock_holder(bookie.config.directories[1]) == bookie.process


def test_process_is_distinguished_from_a_later_process_with_the_same_pid() -> None:
    own = Process.of(os.getpid())
    assert own is not None and own.alive
    stranger = Process(own.pid, own.start_time + 1)
    assert not stranger.alive
    launch.signal_process(stranger, signal.SIGKILL)  # would kill this test run
    assert wait_for_end(stranger, 0)


def refusal(config: BookieConfig) -> str:
    with pytest.raises(BookieError) as caught:
        adopt_or_start(config, "test").wait_serving()
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_error_names_the_unwritable_directory(config: Any, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    directory = str(tmp_path / "file" / "bookie")
    assert refusal(config(directories=[directory])) == (
        f"directory {directory} is not writable (Not a directory); make it writable for this user, or choose another"
    )


def test_directory_with_foreign_files_is_refused_and_unchanged(config: Any) -> None:
    options = config()
    os.makedirs(options.directories[1])
    Path(options.directories[1], "thesis.txt").write_text("mine")
    assert "has no cookie but is not empty" in refusal(options)
    assert Path(options.directories[1], "thesis.txt").read_text() == "mine"


def test_directory_of_another_bookie_is_refused(config: Any, start: Launcher) -> None:
    bookie = start(config())
    bookie.stop()
    message = refusal(config(directories=[bookie.config.directories[1]]))
    assert f"belongs to {bookie.status.bookie_id}: expected directories {bookie.config.directories[0]}" in message


def test_directory_of_another_cluster_is_refused(config: Any, start: Launcher, chroot: str) -> None:
    bookie = start(config())
    bookie.stop()
    begin_cluster(chroot + "-other")
    assert f"belongs to {bookie.status.bookie_id} of another cluster" in refusal(config(zookeeper=chroot + "-other"))


def test_directory_without_its_cookie_is_refused(config: Any, start: Launcher) -> None:
    bookie = start(config())
    bookie.stop()
    Path(bookie.config.directories[1], "COOKIE").unlink()
    assert "its disk is missing or was emptied" in refusal(config())


def lose(directory: str) -> None:
    """Replace the directory by a file, as if its disk were gone: nothing can be opened or created there."""
    os.rename(directory, directory + ".gone")
    Path(directory).write_text("no directory")


def bring_back(directory: str) -> None:
    os.unlink(directory)
    os.rename(directory + ".gone", directory)


@pytest.fixture
def three(config: Any, tmp_path: Path) -> BookieConfig:
    return config(directories=[str(tmp_path / name) for name in ("one", "two", "three")])


def test_bookie_without_its_first_directory_serves_is_adopted_and_stops(three: Any, start: Launcher) -> None:
    whole = start(three)
    assert whole.stop()
    lose(three.directories[0])
    first = start(three, "task 0")
    assert first.started and first.status.bookie_id == whole.status.bookie_id
    home = Path(three.directories[1])
    assert (home / "bookie.json").exists()
    assert "one is not writable (File exists)" in (home / "bookie.log").read_text()
    first.lease.close()
    bring_back(three.directories[0])  # must not hide the running bookie
    second = start(three, "task 1")
    assert not second.started and second.process == first.process
    assert second.stop()
    assert not [directory for directory in three.directories[1:] if Path(directory, "lease.sock").exists()]
    third = start(three)
    assert third.started and third.status.bookie_id == whole.status.bookie_id


def test_bookie_that_lost_its_first_directory_while_running_is_adopted(three: Any, start: Launcher) -> None:
    first = start(three, "task 0")
    lose(three.directories[0])
    first.lease.close()
    second = start(three, "task 1")
    assert not second.started and second.process == first.process
    assert second.stop()


def test_launcher_reports_the_error_of_the_last_start_from_any_directory(three: Any, start: Launcher) -> None:
    bookie = start(three)
    bookie.stop()
    lose(three.directories[0])
    Path(three.directories[1], "COOKIE").unlink()
    assert f"directory {three.directories[1]} of {bookie.status.bookie_id} has no cookie" in refusal(three)
    bring_back(three.directories[0])
    assert f"directory {three.directories[1]} of {bookie.status.bookie_id} has no cookie" in refusal(three)


def test_error_without_a_usable_directory_names_the_first_directory(three: Any, start: Launcher) -> None:
    start(three).stop()
    for directory in three.directories:
        lose(directory)
    assert f"directory {three.directories[0]} is not writable (File exists)" in refusal(three)


def test_first_boot_that_crashed_before_registering_its_cookie_is_completed(
    config: Any, start: Launcher, chroot: str
) -> None:
    bookie = start(config(directories=[config().directories[0]]))
    cookie = read_cookie(bookie.config.directories[0])
    assert cookie is not None
    bookie.kill()
    other = config(directories=[config().directories[1]])
    os.makedirs(other.directories[0])
    stamped = type(cookie)("bookie-crashed", other.directories, cookie.instance_id, "nonce")
    write_cookie(other.directories[0], stamped)  # the crash came before the metadata store got the cookie
    assert start(other).status.bookie_id == "bookie-crashed"
    store = ZooKeeperStore(chroot)
    assert "bookie-crashed" in store.list_cookies()
    store.close()


def test_bookie_with_data_does_not_create_a_cluster_at_a_mistyped_chroot(
    config: Any, start: Launcher, chroot: str
) -> None:
    """With a mistyped ZooKeeper address, a bookie with data became the only bookie of a new cluster."""
    start(config()).stop()
    assert f"no cluster at zk://{chroot}/mistyped; there is one at zk://{chroot}" in refusal(
        config(zookeeper=f"{chroot}/mistyped")
    )


def test_error_names_the_port_in_use(config: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"port {port} on 127.0.0.1 is in use" in refusal(config(port=port))


def test_error_names_the_unreachable_zookeeper(config: Any) -> None:
    port = free_port()
    assert f"127.0.0.1:{port}" in refusal(config(zookeeper=f"127.0.0.1:{port}"))


def test_autorecovery_process_that_cannot_start_exits_with_status_2() -> None:
    command = [sys.executable, "-m", "bookspark.store.autorecovery"]
    for line in ("[]\n", '{"zookeeper": "127.0.0.1:1", "client": {"zookeeper_timeout_seconds": 0.1}}\n'):
        ended = subprocess.run(
            command, input=line, capture_output=True, text=True, timeout=2 * SECONDS_MAX, check=False
        )
        assert ended.returncode == 2
        assert ended.stderr.splitlines()[-1].startswith("bookspark autorecovery: ")


def test_daemon_with_wrong_options_exits_with_status_2_and_the_reason(tmp_path: Path) -> None:
    options = tmp_path / "options.json"
    for content, words in (
        (
            json.dumps({"directories": ["/x"], "zookeeper": "z", "prot": 1}),
            "unknown bookie option 'prot'; did you mean 'port'?",
        ),
        ("[]", "is not a JSON object"),
        (None, "can't be read: No such file or directory"),
    ):
        options.unlink(missing_ok=True)
        if content is not None:
            options.write_text(content)
        command = [sys.executable, "-m", "bookspark.servers.daemon", str(options)]
        daemon = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS_MAX, check=False)
        assert daemon.returncode == 2
        last = daemon.stderr.splitlines()[-1]
        assert last.startswith("bookspark bookie: ") and words in last


def test_lease_connection_to_a_directory_without_a_bookie_fails(tmp_path: Path) -> None:
    with pytest.raises(LeaseLostError, match="no bookie answers"):
        LeaseConnection([str(tmp_path)])


def test_bookie_daemon_imports_neither_spark_nor_arrow() -> None:
    program = (
        "import sys, bookspark.servers.daemon.bookie_process; "
        "print([name for name in ('pyarrow', 'pyspark', 'pandas', 'numpy') if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, timeout=2 * SECONDS_MAX)
    assert run.stdout == b"[]\n"

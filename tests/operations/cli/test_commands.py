"""Commands without a module of their own, and the errors of wrong command lines."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import typer

from bookspark.local import LocalCluster
from bookspark.operations.cli.main import COMMANDS, command_line
from bookspark.servers.daemon.directories import lock_holder
from bookspark.servers.daemon.processes import signal_process
from bookspark.store.metadata.zookeeper.embedded import EmbeddedZooKeeper
from bookspark.store.metadata.zookeeper.layout import LedgerManager
from bookspark.store.metadata.zookeeper.zookeeper_store import ZooKeeperStore
from tests.authority import private
from tests.awaiting import SECONDS_MAX
from tests.operations.cli.conftest import Run
from tests.processes import Output

BOOKSPARK = str(Path(sys.executable).with_name("bookspark"))


def test_bookies_are_listed_with_state_and_address(on_cluster: Run, cluster: LocalCluster) -> None:
    told = json.loads(on_cluster("bookies", "--json").out)
    assert [(one["bookie_id"], one["state"]) for one in told] == [
        (bookie_id, "writable") for bookie_id in sorted(bookie.bookie_id for bookie in cluster.bookies)
    ]
    shown = on_cluster("bookies").text
    assert all(bookie.address in shown for bookie in cluster.bookies)


def test_suspended_bookie_is_listed_as_not_answering(on_cluster: Run, cluster: LocalCluster, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[client]\nanswer_timeout_seconds = 0.2\n")
    bookie = cluster.bookies[0]
    bookie.suspend()
    try:
        told = json.loads(on_cluster("--config", str(settings), "bookies", "--json").out)
    finally:
        bookie.resume()
    assert {one["state"] for one in told if one["bookie_id"] == bookie.bookie_id} == {"does not answer"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("ledgr",), "Did you mean 'ledger'?"),
        (("ledger", "lis"), "Did you mean 'list'?"),
        (("local", "--bookie", "3"), "--bookies"),
        (("ledger", "read", "x"), "LEDGER"),
        (("ledger", "read", "-1"), "-1"),
    ],
)
def test_wrong_command_line_is_a_usage_error_with_a_hint(
    bookspark: Run, arguments: tuple[str, ...], words: str
) -> None:
    outcome = bookspark(*arguments)
    assert outcome.status == 2
    assert words in outcome.err
    assert "Traceback" not in outcome.err


def test_init_creates_a_cluster_at_the_given_place_once(bookspark: Run, new_chroot: Callable[[], str]) -> None:
    place = new_chroot()
    refused = bookspark("ledger", "list", "--zookeeper", place)
    assert refused.status != 0 and f"bookspark init --zookeeper zk://{place}" in refused.err
    begun = bookspark("init", "--zookeeper", place, "--ledger-manager", "flat")
    assert begun.status == 0
    assert bookspark("init", "--zookeeper", place).text == begun.text
    assert bookspark("ledger", "list", "--zookeeper", place).status == 0


def test_command_without_a_named_cluster_says_how_to_name_it(bookspark: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BOOKSPARK_ZOOKEEPER", raising=False)
    for command in (("bookies",), ("ledger", "list"), ("log", "list"), ("audit",), ("snapshot", "--path", "x")):
        outcome = bookspark(*command)
        assert (outcome.status, outcome.err) == (
            2,
            "bookspark: which cluster? Give --zookeeper HOST:PORT, or set BOOKSPARK_ZOOKEEPER\n",
        )


@pytest.mark.usefixtures("impatient")
def test_unreachable_zookeeper_is_an_error_in_one_line(bookspark: Run, tmp_path: Path) -> None:
    settings = tmp_path / "settings.toml"
    settings.write_text("[client]\nmetadata_timeout_seconds = 0.5\n")
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    outcome = bookspark("--config", str(settings), "ledger", "list", "--zookeeper", address)
    assert outcome.status == 2
    assert address in outcome.err and outcome.err.count("\n") == 1
    assert "'http://x' does not name a ZooKeeper" in bookspark("ledger", "list", "--zookeeper", "http://x").err


def test_each_command_has_the_same_help_alone_as_in_the_whole_command_line() -> None:
    """Only the needed commands are imported; an option's value is not mistaken for a command."""
    whole = typer.main.get_command(command_line())
    assert list(whole.commands) == list(COMMANDS)
    for name in COMMANDS:
        part = typer.main.get_command(command_line(["--config", "log", "--debug", name, "simulate"]))
        assert name in part.commands and len(part.commands) < len(COMMANDS) / 2
        assert shown(part, name) == shown(whole, name)


def shown(commands: Any, name: str) -> str:
    with commands.make_context("bookspark", [name]) as context:
        return str(commands.commands[name].get_help(context))


def test_debug_prints_the_traceback(bookspark: Run) -> None:
    outcome = bookspark("--debug", "ledger", "list", "--zookeeper", "http://x")
    assert outcome.status == 2
    assert "Traceback" in outcome.err and outcome.err.splitlines()[-1].startswith("bookspark: ")


def test_log_commands_create_describe_read_and_delete_a_log(on_cluster: Run, tmp_path: Path) -> None:
    assert on_cluster("log", "list").status == 0
    outcome = on_cluster("log", "describe", "nothing")
    assert outcome.status == 2
    assert "no log 'nothing'" in outcome.err and outcome.err.count("\n") == 1
    given = ("--password-file", private(tmp_path / "password", "secret\n"))
    create = ("log", "create", "orders", "--ack-quorum", "3", "--compression", "zstd", *given)
    assert on_cluster(*create).status == 0
    outcome = on_cluster(*create)
    assert (outcome.status, outcome.err) == (
        2, "bookspark: there is a log 'orders' already; choose another name, or delete that log\n"
    )  # fmt: skip
    described = json.loads(on_cluster("log", "describe", "orders", *given, "--json").out)
    assert (described["ack_quorum"], described["compression"], described["rows"]) == (3, "zstd", 0)
    assert on_cluster("log", "read", "orders", *given).out == b""
    assert on_cluster("log", "describe", "orders").err.startswith("bookspark: log 'orders': wrong password")
    assert on_cluster("log", "delete", "orders", "--yes", *given).status == 0


def test_no_command_takes_a_password_from_its_command_line() -> None:
    """``ps`` and /proc show command lines to every user of the host."""
    options, groups = [], [typer.main.get_command(command_line())]
    while groups:
        command = groups.pop()
        groups += getattr(command, "commands", {}).values()
        options += [name for one in command.params for name in one.opts]
    assert options.count("--password-file") >= 19 and "--password" not in options


def test_unknown_audit_query_is_refused_before_spark_starts(on_cluster: Run) -> None:
    outcome = on_cluster("audit", "orphan")
    assert (outcome.status, outcome.err) == (2, "bookspark: unknown audit query 'orphan'; did you mean 'orphans'?\n")


def test_local_runs_until_sigint_and_leaves_no_bookie_process(tmp_path: Path) -> None:
    command = [BOOKSPARK, "local", "--bookies", "1", "--directory", str(tmp_path / "a cluster")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        zookeeper = process.stdout.readline().strip()
        said = Output(process.stderr)
        said.wait_for("^bookie-", SECONDS_MAX)
        told = subprocess.run(
            [BOOKSPARK, "bookies", "--json"],
            env={**os.environ, "BOOKSPARK_ZOOKEEPER": zookeeper},
            capture_output=True,
            timeout=300,
            check=True,
        )
        (bookie,) = json.loads(told.stdout)
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS_MAX) == 0
        said.rest(SECONDS_MAX)
        assert "Traceback" not in "".join(said.lines)
    assert not Path(f"/proc/{bookie['pid']}").exists()


def test_local_says_which_of_its_processes_died_once_and_how_to_start_it_again(tmp_path: Path) -> None:
    command = [BOOKSPARK, "local", "--bookies", "2", "--directory", str(tmp_path / "cluster")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        told = Output(process.stderr)
        told.wait_for("export BOOKSPARK_ZOOKEEPER=", SECONDS_MAX)
        bookie = lock_holder(str(tmp_path / "cluster/bookie-1"))
        assert bookie is not None
        signal_process(bookie, signal.SIGKILL)
        told.wait_for(
            r"bookspark: bookie-\w+ has ended: start it again: bookspark bookie run --directory \S+/bookie-1;",
            SECONDS_MAX,
        )
        (server,) = (one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java")
        server.kill()
        told.wait_for("bookspark: ZooKeeper has ended: ", SECONDS_MAX)
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS_MAX)
        told.rest(SECONDS_MAX)
    assert sum("has ended" in line for line in told.lines) == 2


def test_local_without_a_directory_keeps_its_data_if_its_zookeeper_died() -> None:
    """The advice was to start it again in its directory, which its end removed."""
    command = [BOOKSPARK, "local", "--bookies", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        told = Output(process.stderr)
        told.wait_for("export BOOKSPARK_ZOOKEEPER=", SECONDS_MAX)
        with closing(ZooKeeperStore(process.stdout.readline().strip())) as store:
            instance_id = store.instance_id
        (server,) = (one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java")
        server.kill()
        told.wait_for("bookspark: ZooKeeper has ended: ", SECONDS_MAX)
        process.send_signal(signal.SIGINT)
        process.wait(SECONDS_MAX)
        told.rest(SECONDS_MAX)
    (found,) = (one for line in told.lines if (one := re.search("with its data: bookspark (local .*)", line)))
    words = shlex.split(found[1])
    with subprocess.Popen([BOOKSPARK, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as again:
        try:
            assert again.stdout is not None
            with closing(ZooKeeperStore(again.stdout.readline().strip())) as store:
                assert store.instance_id == instance_id
        finally:
            again.send_signal(signal.SIGINT)
            again.communicate(timeout=SECONDS_MAX)
            shutil.rmtree(words[words.index("--directory") + 1])


def test_zookeeper_whose_server_died_ends_with_the_command_that_goes_on_with_its_data() -> None:
    """The command waited on, without a word and without a server."""
    command = [BOOKSPARK, "zookeeper", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        address = process.stdout.readline().strip()
        with closing(ZooKeeperStore(address, begin=LedgerManager.HIERARCHICAL)) as store:
            instance_id = store.instance_id
        (server,) = (one for one in psutil.Process(process.pid).children(recursive=True) if one.name() == "java")
        server.kill()
        try:
            told = process.communicate(timeout=SECONDS_MAX)[1]
        finally:
            process.kill()
    found = re.fullmatch(r"bookspark: ZooKeeper has ended: .* Start it again: (bookspark zookeeper .*)\n", told)
    assert process.returncode == 2 and found is not None, told
    words = shlex.split(found[1])
    directory = words[words.index("--directory") + 1]
    try:
        assert words[words.index("--port") + 1] == address.rpartition(":")[2]
        with EmbeddedZooKeeper(directory) as again, closing(ZooKeeperStore(again.connection_string)) as store:
            assert store.instance_id == instance_id
    finally:
        shutil.rmtree(directory)


def test_zookeeper_at_a_port_in_use_is_an_error_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [BOOKSPARK, "zookeeper", "--port", str(port), "--directory", str(tmp_path)],
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    assert done.returncode == 2
    assert f"port {port}" in done.stderr and done.stderr.count("\n") == 1


def test_commands_that_need_java_name_a_wrong_java_home(
    monkeypatch: pytest.MonkeyPatch, bookspark: Run, tmp_path: Path
) -> None:
    (tmp_path / "ledgers" / "_delta_log").mkdir(parents=True)
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    for command in (("local",), ("zookeeper", "--port", "0"), ("run",), ("audit", "--path", str(tmp_path))):
        outcome = bookspark(*command)
        assert outcome.status == 2
        assert outcome.err.startswith("bookspark: JAVA_HOME is '/nowhere'") and outcome.err.count("\n") == 1


@pytest.mark.parametrize("closed", ["0<&-", ">&-", "2>&-"])
def test_command_with_a_closed_stream_ends_with_the_status_of_its_problem(closed: str) -> None:
    """Status 1, findings, was that of a command that could not say its problem."""
    done = subprocess.run(
        ["bash", "-c", f'"$0" conf nosuch {closed}', BOOKSPARK], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2 and "Traceback" not in done.stderr

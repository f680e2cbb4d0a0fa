"""``bookspark ledger`` against real bookies."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from bookspark.local import LocalCluster
from tests.awaiting import await_that
from tests.operations.cli.conftest import Run


def test_lines_are_appended_and_read_back(on_cluster: Run) -> None:
    appended = on_cluster("ledger", "append", stdin=b"one\n\nthree \xff\r\nno end of line")
    assert appended.status == 0, appended.err
    read = on_cluster("ledger", "read", appended.text.strip())
    assert read.out == b"one\n\nthree \xff\r\nno end of line\n"
    assert read.err == ""


def test_durability_and_replication_are_chosen_at_create(on_cluster: Run) -> None:
    options = ("--ledger-type", "vd_journal", "--replication", "guaranteed")
    ledger = on_cluster("ledger", "append", *options, stdin=b"a\nb\n").text.strip()
    metadata = json.loads(on_cluster("ledger", "metadata", ledger).out)
    assert (metadata["ledger_type"], metadata["replication"]) == ("VD_JOURNAL", "guaranteed")
    assert (metadata["state"], metadata["last_entry_id"]) == ("CLOSED", 1)
    refused = on_cluster("ledger", "create", "-E", "1", "-w", "1", "-a", "1", "--replication", "guaranteed")
    assert refused.status == 2
    assert "choose a write_quorum of 2 or more" in refused.err


def test_long_line_read_in_pieces_is_one_entry(on_cluster: Run) -> None:
    line = bytes(range(11, 256)) * 5000
    ledger = on_cluster("ledger", "append", stdin=line + b"\nlast\n").text.strip()
    assert on_cluster("ledger", "read", ledger).out == line + b"\nlast\n"


def test_append_reads_lines_from_a_file(on_cluster: Run, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"a\nb\n")
    ledger = on_cluster("ledger", "append", str(tmp_path / "lines")).text.strip()
    assert on_cluster("ledger", "read", ledger, "--first", "1").out == b"b\n"
    missing = on_cluster("ledger", "append", str(tmp_path / "missing"))
    assert (missing.status, missing.err) == (
        2,
        f"bookspark: {tmp_path}/missing can't be read: No such file or directory\n",
    )


def test_read_json_prints_text_or_base64_payloads(on_cluster: Run) -> None:
    ledger = on_cluster("ledger", "append", stdin=b"text\n\xff").text.strip()
    lines = [json.loads(line) for line in on_cluster("ledger", "read", ledger, "--json").out.splitlines()]
    assert lines == [
        {"entry_id": 0, "length": 4, "payload": "text"},
        {"entry_id": 1, "length": 5, "payload_base64": "/w=="},
    ]


def test_metadata_and_list_show_the_ledgers_options(on_cluster: Run) -> None:
    options = ("-E", "2", "-w", "2", "-a", "1", "--digest-type", "hmac", "--custom-metadata", "owner=me")
    ledger = on_cluster("ledger", "append", *options, stdin=b"x\n").text.strip()
    metadata = json.loads(on_cluster("ledger", "metadata", ledger).out)
    assert (metadata["state"], metadata["last_entry_id"], metadata["length"]) == ("CLOSED", 0, 1)
    assert (metadata["digest_type"], metadata["custom_metadata"]) == ("HMAC", {"owner": "me"})
    assert len(metadata["fragments"][0]["ensemble"]) == 2
    assert ledger in on_cluster("ledger", "list").text.split()
    assert "2/2/1" in on_cluster("ledger", "list", "--long").text


def test_ledger_without_its_writer_is_recovered(on_cluster: Run) -> None:
    ledger = on_cluster("ledger", "create").text.strip()
    assert json.loads(on_cluster("ledger", "metadata", ledger).out)["state"] == "OPEN"
    assert on_cluster("ledger", "read", ledger).out == b""
    assert (
        on_cluster("ledger", "recover", ledger).text == f"ledger {ledger} is recovered and closed: 0 entries, 0 bytes\n"
    )
    assert "was closed already" in on_cluster("ledger", "recover", ledger).text


def test_delete_asks_for_confirmation(on_cluster: Run) -> None:
    ledger = on_cluster("ledger", "append", stdin=b"x\n").text.strip()
    assert on_cluster("ledger", "delete", ledger, stdin=b"n\n").status == 2
    assert on_cluster("ledger", "metadata", ledger).status == 0
    assert on_cluster("ledger", "delete", ledger, stdin=b"y\n").status == 0
    gone = on_cluster("ledger", "read", ledger)
    assert (gone.status, gone.err) == (2, f"bookspark: there is no ledger {ledger}; it was deleted or never created\n")


def test_wrong_password_is_an_error_in_one_line(on_cluster: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BOOKSPARK_PASSWORD", "right")
    ledger = on_cluster("ledger", "append", stdin=b"x\n").text.strip()
    assert on_cluster("ledger", "read", ledger).out == b"x\n"
    monkeypatch.setenv("BOOKSPARK_PASSWORD", "wrong")
    wrong = on_cluster("ledger", "read", ledger)
    assert wrong.status == 2
    assert wrong.err.startswith("bookspark: ") and "password" in wrong.err and wrong.err.count("\n") == 1


def test_read_beyond_the_last_entry_is_an_error_in_one_line(on_cluster: Run) -> None:
    ledger = on_cluster("ledger", "append", stdin=b"x\n").text.strip()
    beyond = on_cluster("ledger", "read", ledger, "--last", "5")
    assert beyond.status == 2 and beyond.err.count("\n") == 1


def test_closed_output_pipe_ends_read_silently(cluster: LocalCluster) -> None:
    command = shlex.quote(str(Path(sys.executable).with_name("bookspark")))
    script = (
        f"set -o pipefail; ledger=$(seq 20000 | {command} ledger append) && {command} ledger read $ledger | head -n 2"
    )
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "BOOKSPARK_ZOOKEEPER": cluster.zookeeper},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("1\n2\n", "")


def test_terminated_append_names_the_open_ledger_it_leaves(cluster: LocalCluster) -> None:
    command = [sys.executable, "-c", "from bookspark.operations.cli.main import main; main()", "ledger", "append"]
    environment = {**os.environ, "BOOKSPARK_ZOOKEEPER": cluster.zookeeper}
    with cluster.bookkeeper() as bookkeeper:
        before = set(bookkeeper.list_ledgers())
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert process.stdin is not None
        process.stdin.write("acknowledged\n")
        process.stdin.flush()
        (ledger_id,) = await_that(lambda: set(bookkeeper.list_ledgers()) - before)
        reader = bookkeeper.open_ledger_no_recovery(ledger_id)
        assert reader.read_last_add_confirmed_and_entry(0, 60.0)[0] == 0
        process.terminate()
        out, err = process.communicate(timeout=300)
    assert (process.returncode, out) == (130, "")
    assert (
        f"bookspark: ledger {ledger_id} is left open with 1 ack" in err
        and f"bookspark ledger recover {ledger_id}" in err
    )


def test_command_line_imports_no_client_spark_simulator_or_bookie() -> None:
    """Importing the client takes most of the time of a command that does not need it."""
    heavy = ("bookspark.store.client", "pyspark", "bookspark.lab.simulation.world", "bookspark.store.bookie.storage")
    script = f"import sys, bookspark.operations.cli.main; print([one for one in {heavy} if one in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "[]\n"), ran

"""What strangers write into ZooKeeper, ledgers and logs reaches no terminal as it is: every command, on a terminal."""

import json
import logging
import sys
import traceback

import pytest
import typer
from kazoo.client import KazooClient
from rich.text import Text

from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.operations.cli.main import command_line, main
from bookspark.operations.cli.terminal.output import console
from bookspark.support.log_lines import LineFormatter
from bookspark.support.plain_text import printable
from tests.terminals import CommandTerminal

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202e\u2028\nFORGED line\r\x7f"
SHOWN = r"\x1b]0;PWNED\x07"
NODE = "evil\u202e\u2066\u2028"
"""ZooKeeper allows no controls in the names of nodes."""
RAW = [each.encode() for each in ("\x1b]0", "\x1b[2J", "\x07", "\x9b", "\u202e", "\u2066", "\u2028", "\x7f")]

NOT_RUN = {
    **dict.fromkeys(("run", "simulate", "chaos", "replay"), "an experiment of its own: no cluster of others"),
    **dict.fromkeys(("local", "zookeeper", "init", "console"), "a server: it tells its own addresses"),
    "stop-bookies": "it ends the cluster",
    "secret": "it prints hexadecimal digits",
    "bookie alive": "it asks the bookie of its own directory",
    **dict.fromkeys(("snapshot", "audit", "safe-to-stop"), "it needs Spark; tables are those of `ledger list`"),
    **dict.fromkeys(("bookie run", "autorecovery run"), "a server: it writes a log (``LineFormatter``)"),
    "ledger append": "it reads standard input",
    "log append": "it reads standard input",
    **{
        f"bench {name}": "an experiment of its own: no cluster of others"
        for name in (
            "ledger", "storage", "micro-batches", "repair", "against", "page", "peers ledger", "peers spark", "peers logs",
            "peers client",
        )
    },
}  # fmt: skip


def runs(ledger, opened, directory):
    """The arguments of each other command; those that change something come last."""
    return {
        "job": [""],
        "bookies": [""], "conf": [""], "ledger list": ["--long"], "ledger read": [f"{ledger}"], "ledger metadata": [f"{ledger}"],
        "ledger lost": [""], "log list": ["", "--long"], "log describe": ["orders"], "log read": ["orders", "orders --json"],
        "log readers": ["orders"], "cookie list": [""], "cookie get": ["bookie-evil"], "bookie status": ["bookie-evil"],
        "bookie safe-to-stop": ["bookie-evil"], "bookie collect": ["bookie-evil"], "bookie read-only": ["bookie-evil on"],
        "why": ["", f"is ledger {opened} open", "is bookie bookie-evil down"], "top": ["--once"],
        "log tail": ["orders --since=1"],
        "bookie logs": [directory], "bookie read": [f"1 {directory} --entries", f"1 {directory} --entries --json"],
        "bookie index": [directory], "bookie verify": [directory], "bookie rebuild": [directory],
        "bookie accept-loss": [f"{directory} --yes"],
        "autorecovery status": [""], "autorecovery list": [""], "autorecovery who-is-auditor": [""],
        "autorecovery delay": [""], "cluster status": [""], "cluster plan": ["--restart all"], "cluster placement": [""],
        "cluster give-up": [""], "cluster apply": ["--restart bookie-evil"], "ledger create": [["--label", f"k={EVIL}"]],
        "ledger recover": [f"{opened}"], "log create": [f"new{NODE}"], "log alter": [["orders", f"--retention={EVIL}"]],
        "log truncate": ["orders 1 --yes"], "log collect": ["orders"], "log end": ["orders --yes"], "log end-offload": ["orders"],
        "cookie create": [directory], "cookie update": [directory], "cookie fix": [directory],
        "cookie delete": ["bookie-evil --yes"], "autorecovery trigger": [""], "autorecovery enable": [""],
        "autorecovery disable": [""], "autorecovery decommission": ["bookie-evil --yes"],
        "log delete": ["orders --yes"], "ledger delete": [f"{ledger} --yes"],
    }  # fmt: skip


def leaves(command, name=""):
    for below, one in getattr(command, "commands", {}).items():
        yield from leaves(one, f"{name} {below}".strip())
    if not hasattr(command, "commands"):
        yield name


@pytest.fixture
def hostile(new_chroot, monkeypatch):
    """A cluster with EVIL in labels, payloads, rows, and in whatever a stranger writes into ZooKeeper."""
    with LocalCluster(bookies=3, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as client:
        bookie = cluster.bookies[0]
        labels = {"bookspark.log": EVIL.encode(), f"k{EVIL}": EVIL.encode()}
        closed = client.create_ledger(3, 3, 2, custom_metadata=labels)
        closed.append(EVIL.encode())
        closed.close()
        opened = client.create_ledger(3, 3, 2, custom_metadata=labels)
        opened.append(EVIL.encode())
        log = create_log(client, "orders")
        with log.producer("billing") as producer:
            producer.append(EVIL.encode())
        zookeeper = KazooClient(cluster.zookeeper)
        zookeeper.start()
        for path in ("available", "cookies"):
            known = json.loads(zookeeper.get(f"/ledgers/{path}/{bookie.bookie_id}")[0])
            for name in ("bookie-evil", NODE):
                words = {
                    key: EVIL for key, value in known.items() if isinstance(value, str) and key in ("host", "rack")
                }
                value = json.dumps({**known, **words, "bookie_id": name}).encode()
                zookeeper.create(f"/ledgers/{path}/{name}", value)
        zookeeper.create(f"/bookspark/logs/{NODE}", zookeeper.get("/bookspark/logs/orders")[0])
        zookeeper.stop()
        zookeeper.close()
        bookie.stop()  # commands for the directories of a stopped bookie
        monkeypatch.setenv("COLUMNS", "400")
        monkeypatch.setenv("BOOKSPARK_ZOOKEEPER", cluster.zookeeper)
        yield closed.ledger_id, opened.ledger_id, bookie.directories[0]


def test_no_command_shows_foreign_text_to_a_terminal_as_it_is(hostile, monkeypatch, request):
    wanted = runs(*hostile)
    # A usage error, and a traceback.
    wanted["ledger read"] = [*wanted["ledger read"], [EVIL]]
    named = set(leaves(typer.main.get_command(command_line())))
    assert named == wanted.keys() | NOT_RUN.keys(), "name a new command in one of them"
    terminal, escaped = CommandTerminal(monkeypatch), []
    request.addfinalizer(terminal.close)
    for name, lines in wanted.items():
        for line in lines:
            words = [*name.split(), *(line.split() if isinstance(line, str) else line)]
            out = terminal.run(*words, interrupt_after=SHOWN.encode() if name == "log tail" else b"")
            assert not [each for each in RAW if each in out], (words, out)
            assert b"\nFORGED" not in out or name in ("ledger read", "log read", "log tail"), (words, out)
            if SHOWN.encode() in out or b"\\u001b]0;PWNED" in out:
                escaped.append(name)
    assert {"bookies", "ledger list", "ledger metadata", "ledger read", "log read", "log tail"} <= set(escaped), escaped


@pytest.mark.parametrize("command", ["ledger read {closed}", "log read orders"])
def test_payloads_go_to_a_pipe_as_they_are(hostile, bookspark, command):
    closed, _, _ = hostile
    assert bookspark(*command.format(closed=closed).split()).out == EVIL.encode() + b"\n"


def test_records_of_a_log_are_lines_whatever_is_in_them():
    try:
        raise ValueError(EVIL)
    except ValueError:
        told = sys.exc_info()
    record = logging.LogRecord("name", logging.ERROR, "", 0, "greeted by %s", (EVIL,), told)
    first, *rest = LineFormatter().format(record).split("\n")
    assert SHOWN in first and r"\nFORGED line\r\x7f" in first
    assert not [each for each in RAW if each.decode() in first + "".join(rest)]
    assert all(line.startswith("  ") for line in rest), "no line of a traceback looks like a record"
    assert traceback.format_exception(*told)


def test_printable_text_has_an_escape_for_each_character_that_commands_a_terminal():
    for code in (
        *range(0x20),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        0x2028,
        0x2029,
        0xDC9B,
    ):
        assert eval(f'"{printable(chr(code))}"') == chr(code) and printable(chr(code)).isprintable()
    assert printable("Grüße, 日本 👩‍🚀 \\") == "Grüße, 日本 👩‍🚀 \\", "other text stays"
    assert printable("a\tb\nc\x1b", lines=True) == "a\tb\nc\\x1b"


def test_console_and_tracebacks_show_no_foreign_text_as_it_is(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["bookspark", "--debug", "--config", f"/nowhere/{EVIL}", "ledger", "list"])
    with pytest.raises(SystemExit):
        main()
    told = capsys.readouterr().err
    assert "Traceback" in told and not [each for each in RAW if each.decode() in told]
    console().print(Text(EVIL))
    told = capsys.readouterr().out
    assert r"\x1b]0;PWNED" in told and not [each for each in RAW if each.decode() in told]

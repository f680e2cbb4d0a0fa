"""The console of a running cluster."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bookspark.errors import BookieError, ConfigurationError
from bookspark.local import LocalCluster
from bookspark.logs import create_log
from bookspark.operations.console import WebConsole
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.zookeeper import embedded
from bookspark.support.metrics import web
from tests.awaiting import SECONDS_MAX, await_that
from tests.operations.console import snapshots
from tests.operations.console.conftest import PATIENT, ask, words

LOOKS = 3
BROWSER = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BROWSER_SECONDS_MAX = 600


def test_overview_shows_every_bookie_and_has_security_headers(cluster, console):
    await_that(lambda: "3 of 3 bookies are up" in ask(console).text and "tell metrics" not in ask(console).text)
    found = ask(console)
    assert found.status == 200 and "3 of 3 bookies are up" in found.text
    assert all(one.bookie_id in found.text for one in cluster.bookies)
    assert "tell metrics" not in found.text
    for name in ("Content-Security-Policy", "X-Content-Type-Options", "Cache-Control"):
        assert found.headers[name]


def test_overview_follows_a_stopped_and_restarted_bookie(cluster, console):
    await_that(lambda: "3 of 3 bookies are up" in ask(console).text)
    bookie = cluster.bookies[0]
    bookie.stop()
    try:
        await_that(lambda: "2 of 3 bookies are up" in ask(console).text)
        await_that(lambda: f"bookie {bookie.bookie_id} is down" in ask(console).text)
    finally:
        bookie.start()
    await_that(lambda: "3 of 3 bookies are up" in ask(console).text)


@pytest.mark.parametrize("peers", [8, 40])
def test_console_answers_beside_peers_that_send_nothing_or_half_a_request(console, monkeypatch, peers):
    """Eight of them stopped it for ten seconds."""
    monkeypatch.setattr(web, "_CONNECTION_SECONDS_MAX", 2 * SECONDS_MAX)
    address = urlsplit(console.url)
    with contextlib.ExitStack() as stack:
        slow = [
            stack.enter_context(socket.create_connection((address.hostname, address.port), SECONDS_MAX))
            for _ in range(peers)
        ]
        for one in slow[::2]:
            one.sendall(b"GET / HTTP/1.1\r\nHost:")
        assert ask(console).status == 200
        slow[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            slow[-1].recv(1)


def test_every_answer_has_a_content_policy_and_refuses_foreign_hosts(console):
    pages = ("/logs", "/log", "/ledgers", "/ledger", "/what-if")
    for path in ("/", "/console.css", "/console.js", "/nothing", "/?x=<script>", *pages):
        found = ask(console, path)
        assert found.status == (404 if path == "/nothing" else 200)
        assert "default-src 'none'" in found.headers["Content-Security-Policy"]
        assert "<script>" not in found.text
        assert ask(console, path, Host="evil.example").status == 421


def test_failing_page_reveals_no_detail(console, monkeypatch):
    def fail(*_: object) -> str:
        raise ValueError("a secret")

    monkeypatch.setattr("bookspark.operations.console.overview.content", fail)
    found = ask(console)
    assert found.status == 503 and "a secret" not in found.text
    assert found.headers["Content-Security-Policy"]


def test_console_refuses_a_port_in_use_and_an_open_address_without_a_token(cluster):
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper, socket.create_server(("127.0.0.1", 0)) as taken:
        with pytest.raises(BookieError, match="the console can't be answered"):
            WebConsole(bookkeeper, port=taken.getsockname()[1])
        with pytest.raises(ConfigurationError, match="--token-file"):
            WebConsole(bookkeeper, "0.0.0.0")


@pytest.mark.acceptance
def test_console_writes_nothing(tmp_path):
    """Checked by ZooKeeper's own transaction count, by the sizes of the bookies' logs, and by the files of the snapshots."""
    with LocalCluster(bookies=2, metrics_port=-1) as cluster:
        with cluster.bookkeeper().create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2) as ledger:
            ledger.append(b"one")
        open_ledger = cluster.bookkeeper().create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2)
        open_ledger.append(b"two")
        # Otherwise the writer would send its LAC later, during the console's looks.
        open_ledger.flush_last_add_confirmed()
        producer = create_log(cluster.bookkeeper(), "orders", options=LogOptions(2, 2, 2)).producer("billing")
        producer.append(b"a row")
        producer.close()
        oldest = snapshots.take(cluster.bookkeeper(), tmp_path)
        snapshots.take(cluster.bookkeeper(), tmp_path, oldest=oldest)
        pages = (
            "/logs",
            "/log?name=orders&lane=orders@1&row=0",
            "/ledgers",
            f"/ledger?id={open_ledger.ledger_id}",
            f"/what-if?bookie={cluster.bookies[0].bookie_id}",
            "/time",
            "/time/ledgers",
            f"/time/ledger?id={open_ledger.ledger_id}",
            "/time/logs",
        )
        with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
            # The client's session is a transaction itself, so it starts before the count.
            held = [bookkeeper.bookie_status(one.bookie_id).log_bytes for one in cluster.bookies]
            before = _transactions(cluster)
            assert before
            files = _files(tmp_path)
            with WebConsole(bookkeeper, show_rows=True, snapshots=str(tmp_path)) as console:
                found = [words(console, page) for page in pages]
                assert "a row" in found[1] and "holds up to 0" in found[3] and "Not safe" in found[4]
                assert "2 of 2" in found[5] and "holds up to 0" in found[7] and "orders@1" in found[8]
                seen = set()
                await_that(lambda: seen.add(_seen_at(ask(console).text)) or len(seen) > LOOKS)
            assert _transactions(cluster) == before
            assert _files(tmp_path) == files
            assert [bookkeeper.bookie_status(one.bookie_id).log_bytes for one in cluster.bookies] == held
            bookkeeper.create_ledger(ensemble_size=2, write_quorum=2, ack_quorum=2).close()
            assert _transactions(cluster) != before


def _files(folder: Path) -> set[tuple[Path, int, int]]:
    return {(one, one.stat().st_mtime_ns, one.stat().st_size) for one in folder.rglob("*")}


def _seen_at(text: str) -> str:
    return text.partition('<time datetime="')[2].partition('"')[0]


def _transactions(cluster: LocalCluster) -> str:
    port = int(cluster.zookeeper.partition("/")[0].rpartition(":")[2])
    told = embedded._ask(port, "srvr")
    return next((line for line in told.splitlines() if line.startswith("Zxid")), "")


def test_console_command_serves_until_sigint(cluster):
    command = [sys.executable, "-m", "bookspark", "console", "--zookeeper", cluster.zookeeper, "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("http://127.0.0.1:")
            process.send_signal(signal.SIGINT)
            assert process.wait(SECONDS_MAX) == 0
        finally:
            process.kill()


@pytest.mark.skipif(BROWSER is None, reason="there is no Chromium on this machine")
def test_browser_shows_the_bookies_without_console_errors(cluster, console, tmp_path):
    """The browser loads style and script without breaking the page's content policy."""
    assert BROWSER is not None
    shown = subprocess.run(
        [
            BROWSER,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--v=0",
            f"--user-data-dir={tmp_path}",
            "--virtual-time-budget=20000",
            "--dump-dom",
            console.url,
        ],
        capture_output=True,
        text=True,
        timeout=BROWSER_SECONDS_MAX,
        check=True,
    )
    assert all(one.bookie_id in shown.stdout for one in cluster.bookies)
    assert "CONSOLE" not in shown.stderr, shown.stderr

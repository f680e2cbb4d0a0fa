"""The table of ``bookspark bench peers``, and the processor time of servers."""

from __future__ import annotations

import subprocess
import sys

from bookspark.lab.bench.kept_results import side_by_side
from bookspark.lab.bench.processes import family_cpu_seconds

_BURN = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint(flush=True); sys.stdin.read()"


def test_table_shows_how_many_times_better_bookspark_is() -> None:
    lines = [
        *({"system": "bookspark", "case": "write", "rows_per_second": rate} for rate in (100.0, 300.0, 9000.0)),
        {"system": "kafka", "case": "write", "rows_per_second": 200.0},
        {"system": "bookspark", "case": "latency", "p50_seconds": 0.5, "p99_seconds": 4.0},
        {"system": "kafka", "case": "latency", "p50_seconds": 1.0, "p99_seconds": 2.0},
    ]
    heads, _, *rows = [[cell.strip() for cell in row.split("|")[1:-1]] for row in side_by_side(lines).splitlines()]
    assert heads == ["case", "bookspark", "kafka", "against kafka"]
    assert rows == [
        ["write, rows per second", "300", "200", "1.5"],
        ["latency, p50 seconds", "0.5", "1", "2"],
        ["latency, p99 seconds", "4", "2", "0.5"],
    ]


def test_system_whose_turn_failed_has_empty_cells() -> None:
    lines = [
        {"system": "bookspark", "case": "write", "rows_per_second": 300.0},
        {"system": "delta", "case": "write", "rows_per_second": 200.0},
        {"system": "delta", "case": "read", "rows_per_second": 400.0},
    ]
    write, read = side_by_side(lines).splitlines()[2:]
    assert (write, read) == (
        "| write, rows per second | 300 | 200 | 1.5 |",
        "| read, rows per second |  | 400 |  |",
    )


def test_peer_with_one_call_is_compared_with_each_of_our_calls() -> None:
    lines = [
        {"system": "bookspark", "label": "L4", "api": "read", "reads_per_second": 100.0},
        {"system": "bookspark", "label": "L4", "api": "read_batches", "reads_per_second": 800.0},
        {"system": "bookkeeper", "label": "L4", "reads_per_second": 50.0},
    ]
    assert side_by_side(lines).splitlines()[2:4] == [
        "| L4 read, reads per second | 100 | 50 | 2 |",
        "| L4 read_batches, reads per second | 800 | 50 | 16 |",
    ]


def test_peers_measured_without_bookspark_get_no_ratios() -> None:
    line = {"system": "kafka", "case": "read 100 B", "rows_per_second": 1234.0}
    heads, _, row = side_by_side([line]).splitlines()
    assert (heads, row) == ("| case | kafka |", "| read 100 B, rows per second | 1,234 |")


def test_processor_time_of_servers_counts_while_they_run_and_after_they_end() -> None:
    before = family_cpu_seconds()
    with subprocess.Popen([sys.executable, "-c", _BURN], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdin is not None and server.stdout is not None
        server.stdout.readline()
        running = family_cpu_seconds()
        server.stdin.close()
    assert running >= before + 0.4
    assert family_cpu_seconds() >= before + 0.4

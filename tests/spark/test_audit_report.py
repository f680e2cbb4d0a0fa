"""The audit report's page and terminal output, without Spark."""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from importlib.resources import files
from itertools import pairwise

import pytest
from rich.console import Console

from bookspark.spark.audit import Finding, names, show
from bookspark.spark.audit.report import Point, page
from bookspark.spark.audit.runner import head_of
from bookspark.support.snapshot_commits import Snapshot


def test_report_page_of_a_cluster_without_confirmed_entries_shows_none() -> None:
    histogram = Finding("replication_factor_histogram", "Copies", "how many", ("replication_factor", "entries"), (), 0)
    text = page([histogram], [], Snapshot("s0", 0, datetime(2026, 1, 1, tzinfo=UTC)))
    assert '<h2>Copies</h2><p>How many</p><p class="good">None.</p>' in text
    assert '<meta name="viewport" content="width=device-width' in text


ORPHANS = ("ledger_id", "log", "epoch", "bytes", "created_at", "ensemble")
ROW = (1234567, "orders", 17, 98765432, "2026-01-01 10:00:00", ["bookie-0123456789ab", "bookie-0123456789cd"])


@pytest.mark.parametrize("width", [80, 200])
def test_finding_is_readable_in_a_narrow_terminal(width: int) -> None:
    """Each of many columns got a few characters and broke its values over many lines."""
    out = io.StringIO()
    show([Finding("orphans", "Orphans", "", ORPHANS, (ROW, ROW), 30)], Console(file=out, width=width), rows_max=2)
    lines = out.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    for word in ("1234567", "98,765,432", "2026-01-01", "10:00:00", "bookie-0123456789ab", "bookie-0123456789cd"):
        assert sum(word in line.split() for line in lines) == 2
    assert sum("ledger id" in line for line in lines) == 1 and "2 of 30" in lines[-1]


def test_query_is_explained_only_by_the_comment_at_its_head() -> None:
    query = "-- Orphans: what nobody\n-- names.\nSELECT 1\n-- A ledger with a higher id is younger.\nWHERE TRUE\n"
    assert head_of(query) == ("Orphans", "what nobody names.")
    for name in names():
        title, explanation = head_of((files("bookspark.spark.audit") / f"{name}.sql").read_text())
        assert len(title.split()) <= 5 and explanation.endswith("."), name


def test_axis_labels_are_distinct() -> None:
    """Halves were labelled 0, 1, 1, 2, 2."""
    points = [Point(Snapshot(f"s{n}", n, datetime(2026, 1, 1, tzinfo=UTC)), 1000, 0, 2_600_000 * n) for n in (0, 1)]
    *_, plot = page([], points, points[1].snapshot).split("<figure>")
    labels = re.findall(r"<text[^>]*>([\d.,]+)</text>", plot)
    of_bytes = labels[2:]  # after the snapshots' versions
    assert "0.5" in of_bytes
    assert len(of_bytes) == len(set(of_bytes))


BYTES = ("bookie_id", "state", "entries")
GARBAGE = ("bookie_id", "live_bytes", "garbage_bytes")


def plots_of(bookies: list[tuple[str, str, int]], logs_in_all: int) -> tuple[str, str]:
    found = [
        Finding("bytes_per_bookie", "Bytes", "", BYTES, tuple(bookies), len(bookies)),
        Finding(
            "garbage_per_entry_log", "Garbage", "", GARBAGE, tuple((b[0], b[2], b[2]) for b in bookies), logs_in_all
        ),
    ]
    _, first, second = page(found, [], Snapshot("s0", 0, datetime(2026, 1, 1, tzinfo=UTC))).split("<figure>")
    return first, second.split("</figure>")[0]


def test_plots_of_many_bookies_with_long_names_are_readable() -> None:
    """Names overlapped and left no room for bars; a bookie that was down reports no entries and so had no red bar."""
    names = [f"bookie-{n:02}.rack-{n}.datacenter-1.example-company.internal:3181" for n in range(30)]
    bookies = [(name, "down" if n == 7 else "writable", 0 if n == 7 else 10**9) for n, name in enumerate(names)]
    entries, garbage = plots_of(bookies, 4000)
    for plot in (entries, garbage):
        places = [float(y) for y in re.findall(r'<text[^>]*y="([\d.]+)"[^>]*>bookie', plot)]
        assert len(places) == 30
        assert min(abs(a - b) for a, b in pairwise(places)) > 10, "points, of a font of 10"
        assert all(len(text) <= 24 for text in re.findall(r">(bookie[^<]*)<", plot))
    assert re.findall(r'<text style="[^"]*#b3402f[^"]*"[^>]*>(bookie-..)', entries) == ["bookie-07"]
    assert "MB in the 30 worst of 4,000 entry logs" in garbage


def test_plots_of_empty_bookies_have_no_negative_labels() -> None:
    entries, garbage = plots_of([("a", "writable", 0), ("b", "writable", 0)], 2)
    for plot in (entries, garbage):
        assert "−" not in plot

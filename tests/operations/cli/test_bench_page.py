"""``bookspark bench page``: the tables of docs/performance.md, made from the kept results of the benches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from bookspark.lab.bench.page import LEDGERS, SPARK, STORAGE, TABLES, kept_runs, marks, with_tables
from tests.operations.cli.conftest import Run

PAGE = Path(__file__).resolve().parents[3] / "docs/performance.md"
EMPTY = "before\n" + "".join("{}\nas it was\n{}\n".format(*marks(name)) for name in TABLES) + "after\n"


def run(bench: str, figures: dict[str, Any], **others: Any) -> dict[str, Any]:
    told = {"bench": bench, "commit": "abc", "machine": "host, 2 processors", "scale": 1.0, "load": 1.5, "rounds": 3}
    return {**told, "time": "2026-11-26T20:15:07Z", "figures": figures, **others}


def rows_of(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")][1:]


def test_row_has_its_ratio_its_target_and_the_limit_of_the_same_run() -> None:
    figures = {
        "bookspark L1": {"p50_ms": 0.5, "p99_ms": 1.0},
        "bookkeeper L1": {"p50_ms": 3.0, "p99_ms": 20.0},
        "bookkeeper L1-no-group-wait": {"p50_ms": 0.8, "p99_ms": 18.0},
        "limit L1": {"p50_ms": 0.2, "p99_ms": 0.5},
    }
    text = with_tables(EMPTY, [run("ledger", figures)])
    assert rows_of(text) == [
        ["one add in flight, 1 KiB, p50 ms", "0.5", "the limit 0.2", "2.5", "≤ 2: missed", "2.5"],
        ["…", "", "BookKeeper 3", "0.167", "≤ 0.125: missed", ""],
        ["…", "", "BookKeeper without its group wait 0.8", "0.625", "≤ 0.5: missed", ""],
        ["… p99 ms", "1", "BookKeeper 20", "0.05", "≤ 0.25: met", "2"],
    ]
    assert "`bench ledger`, 2026-11-26 20:15:07 UTC, commit `abc`, 2 processors; 3 rounds; load up to 1.5" in text
    assert text.count("as it was") == 2, "tables of which nothing was measured stay"
    assert text.startswith("before\n") and text.endswith("after\n")


def test_rates_own_figures_best_peer_figures_and_differences_are_judged() -> None:
    figures = {
        "bookspark L3-1024x100": {"adds_per_second": 400e3},
        "bookkeeper L2-1024": {"adds_per_second": 30e3},
        "bookkeeper L2-1024-deep": {"adds_per_second": 60e3},
        "limit L3-1024x100": {"adds_per_second": 500e3},
    }
    micro = {
        "bookspark trigger noop": {"p50_ms": 200.0},
        "bookspark trigger sink": {"p50_ms": 225.0},
        "limit trigger sink": {"p50_ms": 216.0},
        "bookspark commits 1500 count": {"seconds": 3.0, "commits": 1500},
        "bookspark commits 1 count": {"seconds": 1.0, "commits": 1},
    }
    judged = [
        (row[0], *row[2:5], *row[1:2][: row[0].startswith("… ")])
        for row in rows_of(with_tables(EMPTY, [run("ledger", figures), run("micro-batches", micro)]))
        if row[0]
    ]
    assert judged == [
        ("batches of 100, 1 KiB, entries/s", "", "", "≥ 350,000 itself: met"),
        ("…", "BookKeeper's best 60,000", "6.67", "≥ 8: missed"),
        ("…", "the limit 500,000", "0.8", "≥ 0.7: met"),
        ("1,500 commits of ten rows, counted, s", "one commit 1", "3", "≤ 2: missed"),
        ("a trigger of one row into a log, p50 ms", "noop 200", "1.12", "≤ 1.15: met"),
        ("… Bookspark's own share, ms", "noop 200", "", "≤ 30 more: met", "25"),
        ("… more than a Python sink that does nothing, ms", "the limit 216", "", "", "9"),
    ]


def test_each_row_shows_the_newest_full_run_that_measured_it(tmp_path: Path) -> None:
    runs = [
        run("ledger", {"bookspark L1": {"p50_ms": 9.0, "p99_ms": 9.0}, "limit L1": {"p50_ms": 1.0}}),
        run("ledger", {"bookspark L1": {"p50_ms": 3.0, "p99_ms": 9.0}}, commit="newer"),
        run("ledger", {"bookspark L13": {"idle_ledger_bytes": 7000.0}}),
        run("ledger", {"bookspark L1": {"p50_ms": 1.0, "p99_ms": 9.0}}, scale=0.02),
    ]
    (tmp_path / "history.jsonl").write_text("".join(json.dumps(one) + "\n" for one in runs))
    runs = [run("micro-batches", {"bookspark trigger sink": {"p50_ms": 225.0}})]
    assert [row[0] for row in rows_of(with_tables(EMPTY, runs))] == ["a trigger of one row into a log, p50 ms"], (
        "a difference from what was not measured is not told"
    )
    p50, *_, p99, idle = rows_of(with_tables(EMPTY, kept_runs(tmp_path)))
    assert p50[1:5] == ["3", "", "", "≤ 2: not measured"], "a figure of another run is not held against it"
    assert p99[0].endswith("p99 ms") and idle[1] == "7,000"
    assert rows_of(with_tables(EMPTY, kept_runs(tmp_path, quick=True)))[0][1] == "1"


def test_page_without_marks_and_folder_without_results_are_refused(bookspark: Run, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("no marks")
    outcome = bookspark("bench", "page", str(page), "--cache", str(tmp_path))
    assert outcome.status != 0 and "history.jsonl" in outcome.err
    (tmp_path / "history.jsonl").write_text(json.dumps(run("ledger", {})) + "\n")
    outcome = bookspark("bench", "page", str(page), "--cache", str(tmp_path))
    assert outcome.status != 0 and "begin" in outcome.err and page.read_text() == "no marks"
    page.write_text(EMPTY)
    assert bookspark("bench", "page", str(page), "--cache", str(tmp_path)).status == 0
    assert page.read_text() == EMPTY


@pytest.mark.parametrize("name", TABLES)
def test_page_explains_the_limit_of_each_case(name: str) -> None:
    text = PAGE.read_text("utf-8")
    begin, end = marks(name)
    section = re.split(r"^## ", text.partition(begin)[2].partition(end)[2], flags=re.MULTILINE)[0]
    words = {row[0] for row in rows_of(section)}
    assert words == {row.case for row in TABLES[name]}


def test_rows_name_figures_that_the_benches_measure() -> None:
    """A row that no bench measures would never appear on the page."""
    from bookspark.lab.bench.ledger.cases import WORKLOADS

    labels = {workload.label for workloads in WORKLOADS.values() for workload in workloads}
    assert {row.ours.split()[1] for row in LEDGERS} <= labels
    assert len({(row.what, row.ours, row.beside, row.bound) for row in (*LEDGERS, *STORAGE, *SPARK)}) == len(
        (*LEDGERS, *STORAGE, *SPARK)
    )

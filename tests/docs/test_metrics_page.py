"""docs/metrics.md lists every metric as the code describes it, and no other."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from bookspark.support.metrics import tables
from bookspark.support.metrics.described import Described, Form

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/metrics.md").read_text()
TABLES = {
    "Bookies": tables.BOOKIE,
    "ZooKeeper": tables.ZOOKEEPER,
    "Clients": tables.CLIENT,
    "Autorecovery": tables.AUTORECOVERY,
    "Readers of logs": tables.LOG_READERS,
}
METRICS = [one for table in TABLES.values() for one in table]


def section(heading: str) -> str:
    found = re.search(rf"^## {heading}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, heading
    return found[1]


def row(one: Described) -> str:
    labels = f"{{{', '.join(one.labels)}}}" * bool(one.labels)
    histogram = " (histogram)" * (one.form is Form.HISTOGRAM)
    return f"* `{one.name}{labels}`{histogram}: {one.help}"


@pytest.mark.parametrize("heading", TABLES)
def test_metrics_of_each_section_match_the_code(heading):
    rows = [line for line in section(heading).splitlines() if line.startswith("* `")]
    assert rows == [row(one) for one in TABLES[heading]]


def test_every_metrics_table_is_on_the_page():
    all_tables = [value for name, value in vars(tables).items() if name[0].isupper() and isinstance(value, tuple)]
    assert all(any(table is shown for shown in TABLES.values()) for table in all_tables)


def test_every_alarm_is_on_the_page():
    rules = yaml.safe_load((ROOT / "conf/prometheus/rules.yml").read_text())["groups"][0]["rules"]
    by_time: dict[str, list[str]] = {}
    for rule in rules:
        by_time.setdefault(rule.get("for", "0s"), []).append(alarm(rule))
    lines = [line for line in section("Alarms").splitlines() if line.startswith("* ")]
    assert sorted(lines) == sorted(f"* {time}: {', '.join(alarms)}" for time, alarms in by_time.items())


def alarm(rule: dict[str, Any]) -> str:
    labels = rule["labels"]
    notes = [f"`{labels['why']}`"] if "why" in labels else []
    notes += ["danger"] * (labels["severity"] == "danger")
    return f"`{rule['alert']}`" + f" ({', '.join(notes)})" * bool(notes)


def test_metric_names_follow_the_conventions():
    names = [one.name for one in METRICS]
    assert len(set(names)) == len(names)
    for one in METRICS:
        assert re.fullmatch(r"bookspark(_[a-z]+)+", one.name), one.name
        assert one.name.endswith("_total") == (one.form is Form.COUNTER), one.name
        assert one.help.endswith("."), one.name
        if one.form is Form.HISTOGRAM:
            assert one.name.endswith(("_seconds", "_bytes", "_adds")), one.name

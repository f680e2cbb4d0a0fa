"""The dashboard of conf/grafana: valid JSON for Grafana, with existing metrics."""

from __future__ import annotations

import json
import re
import subprocess

import pytest

from tests.awaiting import SECONDS_MAX
from tests.support.metrics.kit import METRICS, PROMTOOL, ROOT, named

DASHBOARD = json.loads((ROOT / "conf/grafana/bookspark.json").read_text())
PANELS = DASHBOARD["panels"]
GRAPHS = [one for one in PANELS if one["type"] != "row"]
EXPRESSIONS = [target["expr"] for one in GRAPHS for target in one["targets"]]
COLUMNS = 24
OF_PROMETHEUS = {"le", "instance", "job"}
OF_PROCESSES = {"bookie_id", "client"}


def test_dashboard_has_the_json_that_grafana_needs():
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] == "bookspark" and DASHBOARD["title"]
    ids = [one["id"] for one in PANELS]
    assert len(set(ids)) == len(ids)
    assert {one["name"] for one in DASHBOARD["templating"]["list"]} == {"datasource", "bookie"}
    for one in GRAPHS:
        assert one["type"] in ("timeseries", "stat") and one["title"] and one["targets"]
        assert one["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
        assert len({target["refId"] for target in one["targets"]}) == len(one["targets"])


def test_panels_do_not_overlap():
    taken = set()
    for one in PANELS:
        place = one["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, one["title"]
        taken |= cells


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_expression_uses_existing_metrics_and_labels(expression):
    assert named(expression) and named(expression) <= METRICS.keys()
    labels = {label for name in named(expression) for label in METRICS[name].labels} | OF_PROMETHEUS | OF_PROCESSES
    grouped = {label.strip() for by in re.findall(r"by \(([^)]*)\)", expression) for label in by.split(",")}
    matched = set(re.findall(r"([a-z_]+)(?:=~|!=|=)\"", expression))
    assert grouped | matched <= labels


def test_legends_use_labels_of_their_metrics():
    for one in GRAPHS:
        for target in one["targets"]:
            of_legend = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            (name,) = named(target["expr"])
            assert of_legend <= set(METRICS[name].labels) | OF_PROMETHEUS | OF_PROCESSES, target


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_accepts_every_expression(tmp_path):
    rules = [
        {"record": f"r{number}", "expr": one.replace("$__rate_interval", "1m").replace("$bookie", ".*")}
        for number, one in enumerate(EXPRESSIONS)
    ]
    file = tmp_path / "rules.yml"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    found = subprocess.run([PROMTOOL, "check", "rules", file], capture_output=True, text=True, timeout=SECONDS_MAX)
    assert found.returncode == 0, found.stdout + found.stderr

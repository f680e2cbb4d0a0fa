"""The table of twenty troubles is whole. ``scripts/soak troubles`` brings each of them about."""

from __future__ import annotations

import yaml

from tests.operations.why.twenty import TROUBLES
from tests.support.metrics.kit import ROOT


def test_there_are_twenty() -> None:
    assert len({one.title for one in TROUBLES}) == len({one.bring_about for one in TROUBLES}) == 20


def test_alerts_are_rules_of_prometheus() -> None:
    rules = yaml.safe_load((ROOT / "conf/prometheus/rules.yml").read_text())["groups"][0]["rules"]
    named = {one.alert for one in TROUBLES if one.alert}
    assert named <= {one["alert"] for one in rules}
    # An open ledger that nobody writes looks like one whose writer pauses: docs/metrics.md says so.
    assert sum(not one.alert for one in TROUBLES) == 1

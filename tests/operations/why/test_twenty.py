"""The table of twenty troubles is complete. ``scripts/soak troubles`` causes each of them."""

from __future__ import annotations

import yaml

from tests.operations.why.twenty import TROUBLES
from tests.support.metrics.kit import ROOT


def test_table_has_twenty_distinct_troubles() -> None:
    assert len({one.title for one in TROUBLES}) == len({one.bring_about for one in TROUBLES}) == 20


def test_alerts_of_the_table_are_prometheus_rules() -> None:
    rules = yaml.safe_load((ROOT / "conf/prometheus/rules.yml").read_text())["groups"][0]["rules"]
    named = {one.alert for one in TROUBLES if one.alert}
    assert named <= {one["alert"] for one in rules}
    # An abandoned open ledger looks like a ledger whose writer pauses, see docs/metrics.md, so that trouble has no alert.
    assert sum(not one.alert for one in TROUBLES) == 1

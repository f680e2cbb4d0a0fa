"""The alert rules of conf/prometheus: they use existing metrics, and each fires only in its own trouble.

The rules are evaluated by ``promtool`` (Debian's package ``prometheus``), if it is installed.
"""

from __future__ import annotations

import json
import re
import subprocess

import pytest
import yaml

from bookspark.support.metrics.described import Form
from tests.awaiting import SECONDS_MAX
from tests.support.metrics.kit import METRICS, PROMTOOL, ROOT, named

RULES = ROOT / "conf/prometheus/rules.yml"
ALERTS = {one["alert"]: one for one in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
_R = 'log="l",kind="python",reader="r"'
_B, _D = 'bookie_id="b1"', 'bookie_id="b1",directory="/d"'


def buckets(name, labels, quick, slow):
    """Series of a histogram in seconds with ``quick`` fast observations and ``slow`` observations of 5 s per minute."""
    return {
        f'{name}_bucket{{{labels},le="0.5"}}': f"0+{quick}x100",
        f'{name}_bucket{{{labels},le="5.0"}}': f"0+{quick + slow}x100",
        f'{name}_bucket{{{labels},le="+Inf"}}': f"0+{quick + slow}x100",
    }


def constant(value):
    return f"{value}x100"


def series(name, value, labels=""):
    return {f"{name}{{{labels}}}" if labels else name: value if isinstance(value, str) else constant(value)}


HEALTHY = {
    **series("up", 1, 'job="bookspark-bookies",instance="h:8000"'),
    **series("bookspark_cluster_bookies", 3, 'state="writable"'),
    **series("bookspark_cluster_bookies", 0, 'state="down"'),
    **series("bookspark_bookie_info", 1, f'{_B},version="0.1.0"'),
    **series("bookspark_bookie_directory_failed", 0, _D),
    **series("bookspark_bookie_directory_full", 0, _D),
    **series("bookspark_bookie_free_bytes", "100000000000-1000x100", _D),
    **series("bookspark_bookie_directory_read_errors_total", 0, _D),
    **series("bookspark_bookie_lacking_ledgers", 0, _B),
    **series("bookspark_bookie_lost_copies_total", 0, _B),
    **series("bookspark_bookie_read_only", 0, _B),
    **series("bookspark_bookie_limbo_ledgers", 0, _B),
    **series("bookspark_bookie_healing_ledgers_left", 0, _B),
    **series("bookspark_bookie_healing_lost_entries", 0, _B),
    **series("bookspark_bookie_kept", 1, _B),
    **series("bookspark_bookie_collection_failed", 0, _B),
    **series("bookspark_bookie_reading_paused", 0, _B),
    **buckets("bookspark_bookie_sync_seconds", _D, 1000, 0),
    **buckets("bookspark_bookie_add_seconds", _B, 1000, 0),
    # A client that has the secret is first refused with the challenge to prove.
    **series("bookspark_bookie_requests_total", "0+10x100", f'{_B},kind="hello",status="unauthorized"'),
    **series("bookspark_bookie_requests_total", "0+10x100", f'{_B},kind="hello",status="ok"'),
    **series("bookspark_autorecovery_enabled", 1),
    **series("bookspark_autorecovery_auditors", 1),
    **series("bookspark_autorecovery_underreplicated_ledgers", 0),
    **series("bookspark_autorecovery_failed_repairs_total", 0),
    **series("bookspark_autorecovery_standing_recoveries", 0),
    **series("bookspark_autorecovery_check_unreadable_ledgers", 0),
    **series("bookspark_autorecovery_check_finished_timestamp_seconds", "0+60x100"),
    **series("bookspark_bookie_scrub_finished_timestamp_seconds", 0, _B),
    **series("bookspark_zookeeper_connected", 1, f'{_B},instance="h:8000"'),
    **buckets("bookspark_zookeeper_call_seconds", f'{_B},instance="h:8000"', 1000, 0),
    **series("bookspark_client_waiting_appends", " ".join(["0 3x2"] * 100), 'client="c"'),
    **series("bookspark_bookie_clock_ahead_seconds", "20x100", _B),
    **series("bookspark_autorecovery_clock_ahead_seconds", 0),
    **series("bookspark_bookie_certificate_days", 90, f'{_B},option="tls_certificate"'),
    **series("bookspark_log_reader_gone", 0, _R),
    **series("bookspark_log_reader_lag_rows", 7, _R),
}
DISK_FULL = series("bookspark_bookie_directory_full", 1, _D)
TROUBLES = {
    "BooksparkBookieDown": series("bookspark_cluster_bookies", 1, 'state="down"'),
    "BooksparkNothingWritable": series("bookspark_cluster_bookies", 0, 'state="writable"'),
    "BooksparkNotScraped": series("up", 0, 'job="bookspark-bookies",instance="h:8000"'),
    "BooksparkDirectoryFailed": series("bookspark_bookie_directory_failed", 1, _D),
    "BooksparkDirectoryFull": DISK_FULL,
    "BooksparkDiskFullSoon": series("bookspark_bookie_free_bytes", "100000000000-200000000x100", _D),
    "BooksparkReadErrors": series("bookspark_bookie_directory_read_errors_total", "0+1x100", _D),
    "BooksparkRot": series("bookspark_bookie_lacking_ledgers", 2, _B),
    "BooksparkReadOnly": series("bookspark_bookie_read_only", 1, _B),
    "BooksparkLimbo": series("bookspark_bookie_limbo_ledgers", 2, _B),
    "BooksparkHealing": series("bookspark_bookie_healing_ledgers_left", 2, _B),
    "BooksparkEntriesLost": series("bookspark_bookie_healing_lost_entries", 2, _B),
    "BooksparkNoKeeper": series("bookspark_bookie_kept", 0, _B),
    "BooksparkCollectionFails": series("bookspark_bookie_collection_failed", 1, _B),
    "BooksparkSlowDisk": buckets("bookspark_bookie_sync_seconds", _D, 90, 10),
    "BooksparkSlowAdds": buckets("bookspark_bookie_add_seconds", _B, 90, 10),
    "BooksparkOverloaded": series("bookspark_bookie_reading_paused", 1, _B),
    "BooksparkWrongSecret": series(
        "bookspark_bookie_requests_total", "0+30x100", f'{_B},kind="hello",status="unauthorized"'
    ),
    "BooksparkAutorecoveryDisabled": series("bookspark_autorecovery_enabled", 0),
    "BooksparkNoAuditor": series("bookspark_autorecovery_auditors", 0),
    "BooksparkUnderReplicated": series("bookspark_autorecovery_underreplicated_ledgers", 5),
    "BooksparkRepairsFail": series("bookspark_autorecovery_failed_repairs_total", "0+1x100"),
    "BooksparkRecoveryStands": series("bookspark_autorecovery_standing_recoveries", 1),
    "BooksparkUnreadableRecords": series("bookspark_autorecovery_check_unreadable_ledgers", 1),
    "BooksparkReaderGone": series("bookspark_log_reader_gone", 1, _R),
    "BooksparkClock": series("bookspark_autorecovery_clock_ahead_seconds", "3600x100"),
    "BooksparkCertificate": series("bookspark_bookie_certificate_days", 13, f'{_B},option="tls_certificate"'),
    "BooksparkVersions": series("bookspark_bookie_info", 1, 'bookie_id="b2",version="0.2.0"'),
    "BooksparkZooKeeper": series("bookspark_zookeeper_connected", 0, f'{_B},instance="h:8000"'),
    "BooksparkZooKeeperSlow": buckets("bookspark_zookeeper_call_seconds", f'{_B},instance="h:8000"', 50, 50),
    "BooksparkAppendsWait": series("bookspark_client_waiting_appends", 3, 'client="c"'),
}
MORE = [
    ("BooksparkClock", series("bookspark_bookie_clock_ahead_seconds", "3600x100", _B)),
    ("BooksparkClock", series("bookspark_bookie_clock_ahead_seconds", "-3600x100", _B)),
    ("", series("bookspark_log_reader_gone", 0, _R) | series("bookspark_log_reader_lag_rows", 9, _R)),
]
"""Further series: the alert that fires, or "" for none."""


def test_every_alert_has_a_test_case():
    assert set(TROUBLES) == set(ALERTS)


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_uses_existing_metrics_and_labels(alert):
    rule = ALERTS[alert]
    assert named(rule["expr"]) <= METRICS.keys(), rule["expr"]
    assert rule["labels"]["severity"] in ("danger", "trouble")
    for name in re.findall(r"\bbookspark_[a-z_]+_bucket", rule["expr"]):
        assert METRICS[name.removesuffix("_bucket")].form is Form.HISTOGRAM
    used = re.findall(r"\b([a-z_]+)=~?\"", rule["expr"])
    known = {label for name in named(rule["expr"]) for label in METRICS[name].labels} | {"job"}
    assert set(used) <= known, rule["expr"]


def test_every_alert_has_an_entry_in_the_why_page():
    page = (ROOT / "docs/why.md").read_text()
    for alert, rule in ALERTS.items():
        assert f"`{rule['labels'].get('why', 'clock')}`" in page, alert


@pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")
def test_each_alert_fires_only_in_its_own_trouble(tmp_path):
    firing = 'group by (alertname) (ALERTS{alertstate="firing"})'
    cases = []
    for name, trouble in [("", {}), *TROUBLES.items(), *MORE]:
        asked = {
            "expr": firing,
            "eval_time": "70m",
            "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name else [],
        }
        told = [{"series": key, "values": value} for key, value in {**HEALTHY, **trouble}.items()]
        cases.append(
            {"name": name or "all is well", "interval": "1m", "input_series": told, "promql_expr_test": [asked]}
        )
    file = tmp_path / "alerts.yml"
    file.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": cases}))
    found = subprocess.run([PROMTOOL, "test", "rules", file], capture_output=True, text=True, timeout=300)
    assert found.returncode == 0, found.stdout + found.stderr
    checked = subprocess.run(
        [PROMTOOL, "check", "config", ROOT / "conf/prometheus/prometheus.yml"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr

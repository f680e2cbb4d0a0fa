"""Twenty troubles (``tests/operations/why/twenty.py``), each in a real cluster: do ``bookspark why`` and the console name
the cause, after how many seconds, does the named command work and repair it, and which alert fires?

The seconds count from the moment of the break. ROUNDS: how many of the troubles, from ``--first`` on (1: the first).
Alerts are tried where ``promtool`` is installed (Debian: prometheus).
"""

from __future__ import annotations

import json
import subprocess
import tempfile
import threading
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.awaiting import await_that
from tests.operations.why.trouble_stage import GONE_SECONDS, Stage
from tests.operations.why.twenty import TROUBLES, Broken, Trouble
from tests.soak._command import main
from tests.support.metrics.kit import PROMTOOL, ROOT

NAMED_SECONDS_MAX = 10.0
_SEARCH_SECONDS_MAX = 90.0
_ALERT_SECONDS_MAX = 30.0
_LOOK_SECONDS = 0.2
_NEEDED = 19


def try_one(trouble: Trouble) -> dict[str, Any]:
    """The row of a trouble. Never raises Exception: a trouble that is not named is a row of the table too."""
    row: dict[str, Any] = {
        "trouble": trouble.title,
        "kind": "",
        "why_s": None,
        "console_s": None,
        "command": "",
        "mended": False,
    }
    try:
        with Stage() as stage:
            broken = trouble.bring_about(stage)
            row["kind"] = broken.kind
            _tell(stage, trouble, broken, row)
    except Exception:
        row["failure"] = traceback.format_exc()
    return row


def _tell(stage: Stage, trouble: Trouble, broken: Broken, row: dict[str, Any]) -> None:
    began = time.monotonic()
    named: list[dict[str, Any]] = []

    seen: list[tuple[float, str]] = []
    ends = threading.Event()

    def watch() -> None:
        while not ends.wait(_LOOK_SECONDS):
            with suppress(OSError):
                seen.append((time.monotonic() - began, stage.page(broken.page)))

    def on_console() -> float | None:
        texts = (broken.words, named[0]["command"])
        return next((round(at, 1) for at, page in seen if all(one in page for one in texts)), None)

    def why() -> bool:
        found = stage.why(broken.question)
        row["told"] = [one["kind"] for one in found]
        named[:] = [one for one in found if one["kind"] == broken.kind and broken.words in one["verdict"]]
        return bool(named)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        await_that(why, _SEARCH_SECONDS_MAX, lambda: row["told"])
        row["why_s"] = round(time.monotonic() - began, 1)
        with suppress(AssertionError):
            await_that(lambda: on_console() is not None, _SEARCH_SECONDS_MAX)
        row["console_s"] = on_console()
    finally:
        ends.set()
        watcher.join(60)
    assert set(row["told"]) - {broken.kind} <= broken.also, f"told besides: {row['told']}"
    row["command"] = named[0]["command"]
    if trouble.alert and PROMTOOL:

        def fires() -> bool:
            row["alerts"] = fired(stage.series())
            return trouble.alert in row["alerts"]

        # Some metrics are counted only after a session has ended.
        with suppress(AssertionError):
            await_that(fires, _ALERT_SECONDS_MAX)
    broken.before()
    _mend(stage, broken, named[0], row)


def _mend(stage: Stage, broken: Broken, named: Mapping[str, Any], row: dict[str, Any]) -> None:
    """Type the named command, and then the commands still named, until the trouble is gone."""
    if broken.kind == "failed-directory":
        applying = stage.spawn(*named["command"].split()[1:], "--yes")
        stage.equips(applying, broken.after)
        row["works"] = applying.wait(120) == 0
    else:
        ran = stage.types(named["command"])
        # 1: the command succeeded and reports a finding.
        row["works"] = ran.status in (0, 1)
        row["printed"] = ran.out[-300:]
        broken.after()
    typed = {named["command"]}

    def gone() -> bool:
        found = [one for one in stage.why(broken.question) if one["kind"]]
        for one in found:
            if one["kind"] in broken.also and one["command"] not in typed:
                typed.add(one["command"])
                stage.types(one["command"])
        row["left"] = [one["kind"] for one in found]
        return broken.kind not in row["left"]

    await_that(gone, GONE_SECONDS, lambda: f"still told: {row['left']}")
    row["mended"] = True


def fired(series: Mapping[str, str]) -> list[str]:
    """The alerts that fire if Prometheus scrapes these series for 70 minutes."""
    asked = {"expr": 'group by (alertname) (ALERTS{alertstate="firing"})', "eval_time": "70m", "exp_samples": []}
    told = [{"series": key, "values": value} for key, value in series.items()]
    case = {"name": "trouble", "interval": "1m", "input_series": told, "promql_expr_test": [asked]}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "alerts.yml")
        rules = [str(ROOT / "conf/prometheus/rules.yml")]
        file.write_text(json.dumps({"rule_files": rules, "evaluation_interval": "1m", "tests": [case]}))
        found = subprocess.run([str(PROMTOOL), "test", "rules", file], capture_output=True, text=True, timeout=300)
    out = found.stdout + found.stderr
    return sorted({part.partition('"')[0] for part in out.split('alertname="')[1:]}) or (
        [] if found.returncode == 0 else [out]
    )


def troubles(rounds: int, first: int = 0) -> Mapping[str, object]:
    """Raises AssertionError if fewer than 19 of 20 are named in time with a command that works."""
    chosen = TROUBLES[max(0, first - 1) :][:rounds]
    rows = []
    for one in chosen:
        rows.append(try_one(one))
        print(json.dumps(rows[-1]), flush=True)
    good = [one for one in rows if is_good(one)]
    print(_table(rows), flush=True)
    assert len(good) >= len(rows) - (len(TROUBLES) - _NEEDED), [one["trouble"] for one in rows if one not in good]
    return {"troubles": len(rows), "named in time with a command that works": len(good)}


def is_good(row: Mapping[str, Any], seconds_max: float = NAMED_SECONDS_MAX) -> bool:
    """Whether both named it within ``seconds_max``, and the command worked."""
    times = (row["why_s"], row["console_s"])
    return all(one is not None and one <= seconds_max for one in times) and bool(row.get("works")) and row["mended"]


def _table(rows: list[dict[str, Any]]) -> str:
    lines = ["trouble | kind | why s | console s | command | works | mended | alerts"]
    for one in rows:
        cells = ("trouble", "kind", "why_s", "console_s", "command", "works", "mended", "alerts")
        lines.append(" | ".join(str(one.get(name, "")) for name in cells))
    return "\n".join(lines)


if __name__ == "__main__":
    main(__doc__, troubles, len(TROUBLES))

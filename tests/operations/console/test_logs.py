"""The console's pages about logs, and the row viewer."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import quote

import pytest
from markupsafe import escape

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, create_log, delete_log, open_log
from bookspark.logs.readers.lag import ReaderLag
from bookspark.operations.console import WebConsole, logs, rows
from bookspark.operations.console.looks import Look
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.protocol.logs.reader_record import ReaderKind, ReaderState
from bookspark.store.client import BookKeeper
from tests.awaiting import await_that, time_passes
from tests.operations.console.conftest import PATIENT, ask, page, words
from tests.operations.console.parsing import EVIL, Parsed

ORDERS = 120


@pytest.fixture(scope="module")
def orders(cluster: LocalCluster) -> Iterator[str]:
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        log = create_log(bookkeeper, "orders")
        with log.producer("billing") as producer:
            for number in range(ORDERS):
                producer.append(json.dumps({"order": number, "note": EVIL}).encode())
        reader = log.reader(group="late")
        reader.read(20)
        reader.commit()
        reader.close()
        create_log(bookkeeper, "secret", b"a password")
        with open_log(bookkeeper, "secret", b"a password").producer("billing") as producer:
            producer.append(b"for nobody's eyes")
        yield "orders"


@pytest.fixture(scope="module")
def viewer(cluster: LocalCluster) -> Iterator[WebConsole]:
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper, WebConsole(bookkeeper, show_rows=True) as console:
        yield console


def test_log_list_shows_lanes_rows_and_the_most_lagging_reader(console, orders):
    found = words(console, "/logs")
    assert re.search(rf"orders 2 {ORDERS} .* 1 {ORDERS - 20} rows: late", found), found
    assert "It has a password" in found


def test_log_page_shows_its_lanes_and_the_lag_of_every_reader(console, orders):
    found = words(console, "/log?name=orders")
    assert re.search(rf"orders@1 \S*billing 0 {ORDERS} ", found), found
    assert re.search(rf"late python \S+:\d+ closed {ORDERS - 20} \d:\d\d:\d\d", found), found
    assert "3 on 3 bookies, 2 acknowledge" in found


def test_log_page_names_a_stopped_reader_and_the_command_to_type(console, orders):
    found = words(console, "/log?name=orders")
    assert re.search(
        rf"trouble reader late does not run, and is {ORDERS - 20} rows and \S+ behind log orders", found
    ), found
    assert "So: start it again: it goes on where it was bookspark log readers orders" in found
    assert f"it has {ORDERS} rows in 2 lanes" in found


def test_unknown_log_is_reported_and_invalid_log_names_are_escaped(console):
    assert "there is no log 'nothing'" in words(console, "/log?name=nothing")
    for name in ("", EVIL, "x" * 5000):
        found = ask(console, f"/log?name={quote(name)}")
        assert found.status == 200 and "<script>alert" not in found.text


def test_rows_are_hidden_without_show_rows(console, orders):
    found = page(console, "/log?name=orders&lane=orders@1&row=0")
    assert "without --show-rows" in found and "&#34;order&#34;" not in found


def test_viewer_shows_rows_from_a_position(viewer, orders):
    found = words(viewer, "/log?name=orders&lane=orders@1&row=30&as=text")
    assert f"Rows 30 to {30 + rows.ROWS_MAX - 1} of orders@1, which has {ORDERS}" in found
    assert json.dumps({"order": 30, "note": EVIL}) in found and '"order": 29' not in found
    newest = words(viewer, "/log?name=orders&as=text")
    assert f'"order": {ORDERS - 1},' in newest
    assert "it has 120" in words(viewer, "/log?name=orders&lane=orders@1&row=500")


def test_viewer_shows_rows_from_a_time(cluster, viewer, orders):
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        found = [one.time_ms for one in open_log(bookkeeper, "orders@1").reader()]
    at = datetime.fromtimestamp(found[77] / 1000, UTC).isoformat()
    first = found.index(found[77])
    assert f"Rows {first} to " in words(viewer, f"/log?name=orders&lane=orders@1&since={quote(at)}")
    assert "is no time" in words(viewer, "/log?name=orders&lane=orders@1&since=2026-11-22")


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ("row=-1", "is no row"),
        ("row=9" * 30, "is no row"),
        ("row=²", "is no row"),
        ("lane=secret", "has no lane 'secret'"),
    ],
)
def test_invalid_rows_and_lanes_are_refused(viewer, orders, asked, told):
    assert told in words(viewer, f"/log?name=orders&{quote(asked, safe='=&')}")


def test_row_is_shown_as_json_and_its_content_is_escaped(viewer, orders):
    found = page(viewer, "/log?name=orders&lane=orders@1&row=3&as=json")
    assert str(escape(json.dumps({"order": 3, "note": EVIL}, indent=2))) in found
    assert words(viewer, "/log?name=orders&row=3").count('{ "order": 3, ') == 1
    tags = Parsed(found).tags
    assert "img" not in [name for name, _ in tags] and "alert" not in [name for name, at in tags if "src" not in at]


def test_rows_of_a_log_with_a_password_are_not_shown(viewer, orders):
    found = words(viewer, "/log?name=secret&lane=secret@1&row=0")
    assert "It has a password" in found and "eyes" not in found


def test_viewer_does_not_register_as_a_reader_of_the_log(cluster, viewer, orders):
    words(viewer, "/log?name=orders&lane=orders@1&row=0")
    assert words(viewer, "/log?name=orders").count("late python") == 1
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        assert len(logs.look_at(bookkeeper, "orders").readers) == 1


def test_long_values_are_cut_and_bytes_are_hexadecimal():
    seen = rows.RowsSeen(0, 2, 2, ((0, 0, {"value": b"a" * 5000}), (1, 0, {"value": b"\xff\x00"})))
    found = rows.content(rows.Wanted("orders"), "orders", "text", Look(seen))
    assert "3,000 more characters" in found and "a" * 2001 not in found and "0xff00" in found


def test_each_column_of_a_row_is_shown_and_escaped():
    row = {EVIL: EVIL, "at": datetime(2026, 1, 1, tzinfo=UTC), "parts": [{"n": None}]}
    found = Parsed(rows.content(rows.Wanted("l"), "l", "columns", Look(rows.RowsSeen(7, 8, 8, ((7, 0, row),)))))
    assert (
        EVIL in found.text and "2026-01-01 00:00:00+00:00" in found.text and "img" not in [tag for tag, _ in found.tags]
    )
    assert [tag for tag, _ in found.tags].count("td") == 4 and found.text.count("parts") == 1


def test_log_list_is_shown_in_pages_in_an_order_and_by_a_part_of_the_name(cluster, viewer, orders):
    names = [f"page-{number:03}" for number in range(logs.ON_A_PAGE + 3)]
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        for name in names:
            create_log(bookkeeper, name)
        every = LogRegistry(bookkeeper.metadata).names()
    await_that(lambda: f"{len(every)} logs" in page(viewer, "/logs"))
    first = page(viewer, "/logs")
    assert every[logs.ON_A_PAGE - 1] in first and every[logs.ON_A_PAGE] not in first
    assert "/logs?page=1" in first
    assert every[logs.ON_A_PAGE] in page(viewer, "/logs?page=1")
    found = words(viewer, "/logs?find=order")
    assert f"1 log of {len(every)}" in found and "page-0" not in found
    largest = page(viewer, "/logs?by=rows")
    assert largest.index(">orders<") < largest.index(">page-000<")
    assert "by=rows&amp;page=1" in largest


def test_readers_page_shows_readers_and_writers_of_all_logs(viewer, orders):
    found = words(viewer, "/readers?find=orders")
    assert re.search(rf"late orders python \S+:\d+ closed {ORDERS - 20} ", found), found
    assert re.search(rf"service:billing orders orders@1 {ORDERS} ", found), found
    assert "secret" not in found
    assert "late" in words(viewer, "/readers?find=late") and "Nobody reads it" in words(viewer, "/readers?find=nobody")


def test_figures_of_a_log_have_its_rates_and_the_lag_of_each_reader(viewer, orders):
    def figures():
        return json.loads(ask(viewer, "/figures/log?name=orders&seconds=900").text)["plots"]

    await_that(lambda: len(figures()["lag"]["x"]) > 1)
    found = figures()
    assert set(found["lag"]["lines"]["late"]) == {ORDERS - 20}
    assert found["rows"]["lines"]["rows"][-1] == 0.0 and len(found["rows"]["x"]) == len(found["rows"]["lines"]["rows"])
    for path in ("/figures/log?name=orders&", "/figures?"):
        refused = ask(viewer, f"{path}seconds=7")
        assert refused.status == 400 and "'7' is no range: give 900, 3600" in refused.text
    assert json.loads(ask(viewer, "/figures/log?name=nothing&seconds=900").text)["plots"] == {}


def test_log_made_anew_begins_with_no_figures_and_a_deleted_one_leaves_the_list(cluster, viewer):
    def times():
        shown = json.loads(ask(viewer, "/figures/log?name=anew&seconds=900").text)["plots"]
        return shown["rows"]["x"] if shown else []

    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper:
        first = create_log(bookkeeper, "anew").id
        await_that(times)
        time_passes(1.0)
        deleted_at = time.time()
        delete_log(bookkeeper, "anew", b"")
        second = create_log(bookkeeper, "anew").id
        await_that(lambda: str(second) in page(viewer, "/log?name=anew"))
        assert times()[0] >= deleted_at - 0.5 and first != second
        delete_log(bookkeeper, "anew", b"")
        await_that(lambda: "There is none" in words(viewer, "/logs?find=anew") and not times())


def test_log_metadata_is_escaped_in_the_page():
    lag = ReaderLag(EVIL, EVIL, ReaderKind.PYTHON, EVIL, EVIL, ReaderState.LIVE, 0, 0, {}, None, None, EVIL)
    lane = logs.LaneSeen(EVIL, EVIL, 0, 1, 1, -(10**18))
    found = Parsed(logs.content(EVIL, Look(logs.LogSeen(LogRecord("orders"), (lane,), (lag,)))))
    assert "img" not in [name for name, _ in found.tags] and found.text.count(EVIL) == 4

"""Figures from a Prometheus."""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from urllib.parse import parse_qs

import pytest

from bookspark.errors import ConfigurationError, ReadError
from bookspark.operations.console import WebConsole
from bookspark.operations.console.figures import Point, Prometheus
from bookspark.store.client import BookKeeper
from bookspark.support.metrics.web import Page, WebServer
from tests.awaiting import await_that
from tests.operations.console.conftest import PATIENT, ask


def test_points_are_those_of_the_asked_range_and_labels():
    asked = []

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self):
            path, _, words = self.path.partition("?")
            query = {name: one for name, [one] in parse_qs(words).items()}
            asked.append(query)
            start, step = float(query["start"]), float(query["step"])
            values = [] if "read" in query["query"] else [[start + at * step, str(at)] for at in range(3)]
            values = [*values, *([[start + 3 * step, "NaN"]] if values else [])]
            found = {
                "status": "success",
                "data": {"resultType": "matrix", "result": [{"metric": {}, "values": values}]},
            }
            assert path == "/under/api/v1/query_range"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

    with HTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        try:
            address = f'http://127.0.0.1:{server.server_port}/under/?job=bookies&cluster=a"b'
            points = Prometheus(address).points(7 * 86400)
        finally:
            server.shutdown()
    assert [Point(*values) for _, values in points] == [Point(at, at, None, at, None, None) for at in (0.0, 1.0, 2.0)]
    assert points[1][0] - points[0][0] == 7 * 86400 / 360
    # A label's value can't end its string.
    assert all('{job="bookies",cluster="a\\"b"}' in one["query"] for one in asked) and len(asked) == 5


def test_plots_name_the_source_of_their_figures(cluster):
    found = {"data": {"result": [{"values": [[time.time() - 60, "7"], [time.time(), "8"]]}]}}
    web = WebServer("127.0.0.1", 0, {"/api/v1/query_range": lambda: Page(200, json.dumps(found).encode())})
    url = f"http://127.0.0.1:{web.port}"

    def figures():
        return json.loads(ask(console, "/figures?seconds=86400").text)

    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper, WebConsole(bookkeeper, prometheus=url) as console:
        await_that(lambda: figures()["source"] == "from Prometheus")
        assert figures()["plots"]["entries"]["lines"]["added"] == [7.0, 8.0]
        web.close()
        await_that(lambda: "Prometheus did not answer: Prometheus can't be read" in figures()["source"])
        assert "seen by this console since its start" in figures()["source"]


@pytest.mark.parametrize(
    ("status", "content"),
    [(503, b""), (200, b"nonsense"), (200, b'{"data": 7}'), (200, b'{"data": {"result": [{"values": [[1]]}]}}')],
    ids=["down", "no JSON", "no matrix", "no pairs"],
)
def test_unusable_answer_is_an_error_that_names_prometheus(status, content):
    web = WebServer("127.0.0.1", 0, {"/api/v1/query_range": lambda: Page(status, content)})
    try:
        with pytest.raises(ReadError, match="Prometheus"):
            Prometheus(f"http://127.0.0.1:{web.port}").points(900)
    finally:
        web.close()


@pytest.mark.parametrize(
    "address", ["", "prometheus:9090", "ftp://a", "http://", "http://a:x", "http://u:p@a", "http://a?0=b", "http://a#b"]
)
def test_address_that_is_none_is_refused(address):
    with pytest.raises(ConfigurationError, match="prometheus"):
        Prometheus(address)

"""A console of a real cluster, and requests as a browser makes them."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from bookspark.client import BookKeeper
from bookspark.console import WebConsole
from bookspark.local import LocalCluster
from bookspark.why.gathering import DEADLINES
from tests.awaiting import await_that
from tests.console.parsing import Parsed


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str


def ask(console: WebConsole, path: str = "/", **headers: str) -> Answer:
    address = urlsplit(console.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port or 0, timeout=30)
    try:
        connection.request("GET", path, headers=headers)
        found = connection.getresponse()
        return Answer(found.status, found.headers, found.read().decode())
    finally:
        connection.close()


def words(console: WebConsole, path: str) -> str:
    """The text of a page, once its looks have ended."""
    found: list[str] = []

    def seen() -> bool:
        answer = ask(console, path)
        assert answer.status == 200
        found.append(re.sub(r"\s+", " ", Parsed(re.sub(r"(?=</?(td|dd|p|table)\b)", " ", answer.text)).text))
        return "being looked at" not in found[-1]

    await_that(seen)
    return found[-1]


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, autorecovery=True, zookeeper=new_chroot(), metrics_port=-1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[WebConsole]:
    with BookKeeper(cluster.zookeeper, **DEADLINES) as bookkeeper, WebConsole(bookkeeper) as console:
        yield console

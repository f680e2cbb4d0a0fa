"""A console of a real cluster, and HTTP requests to it."""

from __future__ import annotations

import http.client
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from bookspark.local import LocalCluster
from bookspark.operations.console import WebConsole, looks, watch
from bookspark.store.client import BookKeeper
from tests.awaiting import PATIENT, SECONDS_MAX, await_that
from tests.operations.console.parsing import Parsed


class Answer(NamedTuple):
    status: int
    headers: http.client.HTTPMessage
    text: str


def ask(console: WebConsole, path: str = "/", **headers: str) -> Answer:
    address = urlsplit(console.url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port or 0, timeout=SECONDS_MAX)
    try:
        connection.request("GET", path, headers=headers)
        found = connection.getresponse()
        return Answer(found.status, found.headers, found.read().decode())
    finally:
        connection.close()


def page(console: WebConsole, path: str) -> str:
    """The page after its looks have ended."""
    found: list[str] = []

    def seen() -> bool:
        answer = ask(console, path)
        assert answer.status == 200
        found.append(answer.text)
        return "being looked at" not in answer.text and "The first look at the cluster" not in answer.text

    await_that(seen)
    return found[-1]


def words(console: WebConsole, path: str) -> str:
    """The text of a page after its looks have ended."""
    return re.sub(r"\s+", " ", Parsed(re.sub(r"(?=</?(td|dd|p|table)\b)", " ", page(console, path))).text)


@pytest.fixture(scope="module", autouse=True)
def _short_rests() -> Iterator[None]:
    """A console rests for up to a minute after a look that took much processor time, as every look does on a slow machine;
    the tests wait for several looks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(watch, "_REST_SECONDS_MAX", watch.LIVE_SECONDS)
        patched.setattr(looks, "_REST_SECONDS_MAX", looks._FRESH_SECONDS)
        yield


@pytest.fixture(scope="module")
def cluster(new_chroot: Callable[[], str]) -> Iterator[LocalCluster]:
    with LocalCluster(bookies=3, autorecovery=True, zookeeper=new_chroot(), metrics_port=-1) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def console(cluster: LocalCluster) -> Iterator[WebConsole]:
    with BookKeeper(cluster.zookeeper, **PATIENT) as bookkeeper, WebConsole(bookkeeper) as console:
        yield console

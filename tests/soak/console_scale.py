"""The console of a cluster with very many ledgers: response time of each page with a warm index.

A round is a thousand ledgers, so the default is a million. Their metadata is created in transactions of a thousand,
several at once: the same bytes as the client writes, naming running bookies that hold no entries. There are also logs with
real rows and a lagging reader, some real ledgers, and two snapshots with the schema and files of ``bookspark snapshot``,
written without Spark. The console is a process of its own.
"""

from __future__ import annotations

import http.client
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow
from kazoo.client import KazooClient
from kazoo.interfaces import IAsyncResult

from bookspark.local import LocalCluster
from bookspark.logs import create_log, open_log
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from bookspark.spark.snapshots.snapshot import ROWS_PER_FILE
from bookspark.store.client import BookKeeper
from bookspark.store.metadata.records.codec import encode_ledger
from bookspark.store.metadata.zookeeper import embedded
from bookspark.store.metadata.zookeeper.layout import Layout, parse_address
from tests.awaiting import time_passes
from tests.operations.console import snapshots
from tests.soak._command import main

# The id of the first ledger that exists only as metadata.
FIRST = 1_000
_ENTRIES = 100
_BOOKIES = 5
_LOGS = 30
_BATCH, _UNDER_WAY = 1_000, 8
_REQUESTS = 200
_WARM_SECONDS_MAX = 1800.0
_P95_SECONDS_MAX = 0.2
_RANDOM = random.Random(21)


def console_scale(thousands: int, requests: int = 0) -> Mapping[str, object]:
    """Raises AssertionError if a page is too slow."""
    ledgers, requests = 1000 * thousands, requests or _REQUESTS
    embedded._HEAP = "-Xmx4g"
    with tempfile.TemporaryDirectory() as folder, LocalCluster(bookies=_BOOKIES, metrics_port=-1) as cluster:
        names = sorted(one.bookie_id for one in cluster.bookies)
        began = time.monotonic()
        with cluster.bookkeeper() as bookkeeper:
            _make_logs(bookkeeper)
            _take(Path(folder), bookkeeper, names, ledgers)
            _tell(f"two snapshots of {ledgers:,} ledgers after {time.monotonic() - began:.0f} s")
            began = time.monotonic()
            make_records(cluster.zookeeper, names, ledgers)
        _tell(f"{ledgers:,} records after {time.monotonic() - began:.0f} s")
        command = [sys.executable, "-m", "bookspark", "console", "--zookeeper", cluster.zookeeper, "--port", "0"]
        command += ["--show-rows", "--snapshots", folder]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
            try:
                assert process.stdout is not None
                url = process.stdout.readline().split()[0]
                warm = _await_words(url, f"/ledgers?from={FIRST + ledgers - 1}", f"{FIRST + ledgers - 1}</a>")
                _tell(f"the index is warm after {warm:.0f} s; the console has {_resident(process.pid) >> 20} MiB")
                result = _measure(url, process.pid, names, ledgers, requests)
                memory = _resident(process.pid)
            finally:
                process.kill()
    told = {"ledgers": ledgers, "requests": requests, "pages_p50_p95_cpu_ms": result, "console_mib": memory >> 20}
    slow = [page for page, (_, p95, _) in result.items() if p95 > 1000 * _P95_SECONDS_MAX]
    assert not slow, (slow, told)
    return told


def _tell(words: str) -> None:
    print(words, flush=True)


def _make_logs(bookkeeper: BookKeeper) -> None:
    for number in range(_LOGS):
        with create_log(bookkeeper, f"log-{number:02}").producer("billing") as producer:
            for _ in range(5):
                producer.append_batch([b"a row"] * 200)
        with open_log(bookkeeper, f"log-{number:02}").reader(group="shipping") as reader:
            reader.read(100)
            reader.commit()


def metadata_of(ledger_id: int, first: tuple[str, ...], second: tuple[str, ...], ctime_ms: int) -> LedgerMetadata:
    """A closed ledger on the ensemble ``first``; every tenth has half of its entries on ``second``."""
    fragments = (Fragment(0, first), *((Fragment(50, second),) if ledger_id % 10 == 0 else ()))
    return LedgerMetadata(
        ledger_id,
        3,
        3,
        2,
        fragments,
        LedgerState.CLOSED,
        _ENTRIES - 1,
        _ENTRIES * 1000,
        ctime_ms=ctime_ms,
    )


def _metadata(names: list[str], ledger_id: int) -> LedgerMetadata:
    first, second = (tuple(_RANDOM.sample(names, 3)) for _ in range(2))
    return metadata_of(ledger_id, first, second, time.time_ns() // 1_000_000)


def make_records(zookeeper: str, names: list[str], ledgers: int, first: int = FIRST) -> None:
    """Create the metadata of closed ledgers, from the id ``first`` on, on the bookies ``names``."""
    address = parse_address(zookeeper)
    layout = Layout(address.chroot)
    client = KazooClient(address.servers, timeout=60.0)
    client.start(60)
    try:
        under_way: deque[IAsyncResult] = deque()
        ids = iter(range(first, first + ledgers))
        parents: set[str] = set()
        while some := list(islice(ids, _BATCH)):
            transaction = client.transaction()
            for ledger_id in some:
                path = layout.ledger(ledger_id)
                parent = path.rpartition("/")[0]
                if parent not in parents:
                    client.ensure_path(parent)
                    parents.add(parent)
                transaction.create(path, encode_ledger(_metadata(names, ledger_id)))
            under_way.append(transaction.commit_async())
            if len(under_way) > _UNDER_WAY:
                _check(under_way.popleft().get())
        while under_way:
            _check(under_way.popleft().get())
    finally:
        client.stop()
        client.close()


def _check(results: list[object]) -> None:
    for one in results:
        if isinstance(one, Exception):
            raise one


# -- snapshots


def _take(path: Path, bookkeeper: BookKeeper, names: list[str], ledgers: int) -> None:
    """Write two snapshots; between them a thousandth of the ledgers was deleted, and as many were created."""
    few = {
        "logs",
        "log_commits",
        "bookies",
        "cookies",
        "autorecovery",
        "disks",
        "entry_logs",
        "limbo",
        "underreplication",
    }
    tables = {name: snapshots.TABLES[name] for name in few}
    real = {
        name: [one for argument in table.plan(bookkeeper) for one in table.read(bookkeeper, argument, b"")]
        for name, table in tables.items()
    }
    oldest = ""
    for moved in (0, ledgers // 1000):
        ids = range(FIRST + moved, FIRST + ledgers + moved)
        many = {
            "ledgers": _ledger_files(ids),
            "fragments": _fragment_files(ids, names),
            "accepted_losses": (),
            "index_ranges": _index_files(ids, names),
        }
        taken = snapshots.write_many(path, {**real, **many}, oldest=oldest, cluster=bookkeeper.zookeeper)
        oldest = oldest or taken


def _parts(ids: range) -> Iterator[range]:
    return (ids[at : at + 2000] for at in range(0, len(ids), 2000))


def _columns(table: str, count: int, **given: object) -> pyarrow.RecordBatch:
    schema = snapshots.schema_of(table)

    def column(field: pyarrow.Field) -> pyarrow.Array:
        value = given.get(field.name)
        if isinstance(value, pyarrow.Array):
            return value.cast(field.type)
        return pyarrow.repeat(pyarrow.scalar(value, field.type), count)

    return pyarrow.RecordBatch.from_arrays([column(field) for field in schema], schema=schema)


def _ledger_files(ids: range) -> Iterator[pyarrow.RecordBatch]:
    for part in _parts(ids):
        yield _columns(
            "ledgers",
            len(part),
            ledger_id=pyarrow.array(part),
            metadata_version=1,
            state=pyarrow.array(["CLOSED" if one % 1000 else "OPEN" for one in part]),
            ensemble_size=3,
            write_quorum=3,
            ack_quorum=2,
            digest_type="CRC32C",
            ledger_type="PD_JOURNAL",
            replication="best_effort",
            last_entry_id=pyarrow.array([_ENTRIES - 1 if one % 1000 else None for one in part]),
            length=pyarrow.array([_ENTRIES * 1000 if one % 1000 else None for one in part]),
            last_add_confirmed=_ENTRIES - 1,
            fragments=pyarrow.array([2 if one % 10 == 0 else 1 for one in part]),
            created_at=datetime.now(UTC),
            custom_metadata='{"bookspark.log": "log-01"}',
        )


def _ensemble(names: list[str], number: int) -> list[str]:
    return [names[(number + at) % len(names)] for at in range(3)]


def _fragment_files(ids: range, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
    for part in _parts(ids):
        rows = []
        for one in part:
            last = None if one % 1000 == 0 else _ENTRIES - 1
            rows.append((one, 1, 0, 0, 49 if one % 10 == 0 else last, _ensemble(names, one)))
            if one % 10 == 0:
                rows.append((one, 1, 1, 50, last, _ensemble(names, one + 1)))
        yield snapshots.batch("fragments", rows)


def _index_files(ids: range, names: list[str]) -> Iterator[pyarrow.RecordBatch]:
    for at, name in enumerate(names):
        every = [one for one in ids if (at - one) % len(names) < 3]
        for first in range(0, len(every), ROWS_PER_FILE):
            own = every[first : first + ROWS_PER_FILE]
            yield _columns(
                "index_ranges",
                len(own),
                bookie_id=name,
                ledger_id=pyarrow.array(own),
                first_entry_id=0,
                last_entry_id=pyarrow.array([49 if one % 10 == 0 else _ENTRIES - 1 for one in own]),
                entry_log=pyarrow.array([one // 5000 for one in own]),
                position=pyarrow.array([one * 1000 for one in own]),
                bytes=100_000,
            )


# -- measuring


def _measure(
    url: str, pid: int, names: list[str], ledgers: int, requests: int
) -> dict[str, tuple[float, float, float]]:
    """For each page, p50 and p95 of its time and the console's processor time for a request, in ms. The last predicts the
    time on an idle machine."""

    def any_id() -> int:
        return FIRST + _RANDOM.randrange(ledgers)

    pages = {
        "overview": lambda: "/",
        "ledgers": lambda: f"/ledgers?from={any_id()}",
        "ledger": lambda: f"/ledger?id={any_id()}",
        "logs": lambda: "/logs",
        "logs by rows": lambda: "/logs?by=rows",
        "readers": lambda: "/readers",
        "log": lambda: f"/log?name=log-{_RANDOM.randrange(_LOGS):02}",
        "rows": lambda: (
            f"/log?name={(name := f'log-{_RANDOM.randrange(_LOGS):02}')}&lane={name}@1&row={_RANDOM.randrange(900)}"
        ),
        "what if": lambda: f"/what-if?bookie={_RANDOM.choice(names)}",
        "time": lambda: "/time?at=2",
        "time ledgers": lambda: f"/time/ledgers?at={_RANDOM.choice((1, 2))}&from={any_id()}",
        "time ledger": lambda: f"/time/ledger?at={_RANDOM.choice((1, 2))}&id={any_id()}",
        "time logs": lambda: "/time/logs?at=2",
    }
    result = {}
    for name, path in pages.items():
        # The first answer of each kind waits for the index or for an import.
        _await_words(url, path(), "", path)
        seconds, waiting, busy = [], 0, _busy(pid)
        for _ in range(requests):
            began = time.monotonic()
            text = _page(url, path())
            seconds.append(time.monotonic() - began)
            waiting += "being looked at" in text
        cuts = statistics.quantiles(seconds, n=20)
        p50, p95, cost = cuts[9], cuts[18], (_busy(pid) - busy) / requests
        result[name] = (round(1000 * p50, 1), round(1000 * p95, 1), round(1000 * cost, 1))
        _tell(
            f"{name}: p50 {1000 * p50:.1f} ms, p95 {1000 * p95:.1f} ms, {1000 * cost:.1f} ms of the processor; "
            f"{waiting} of {requests} were being looked at"
        )
    return result


def _await_words(url: str, path: str, words: str, another=None) -> float:
    """Request a page until it has these words and its looks have ended. Returns the seconds."""
    began = time.monotonic()
    while time.monotonic() - began < _WARM_SECONDS_MAX:
        text = _page(url, path)
        if words in text and "being looked at" not in text and "first look" not in text:
            return time.monotonic() - began
        if path.startswith("/what-if"):
            return time.monotonic() - began
        time_passes(1.0)
    raise AssertionError(f"{path} has no {words!r}")


def _page(url: str, path: str) -> str:
    address = urlsplit(url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _busy(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main(__doc__, console_scale, 1000)

"""A log is altered again and again beside a streaming query, a producer and two readers, which are killed meanwhile: each row is
there once, and each reader reads all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry, create_log
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.log_record import DATA_ROLE, LOG_LABEL, ROLE_LABEL
from tests.many_writers.accounts import appends, read_whole, tailed
from tests.many_writers.append_history import check
from tests.many_writers.processes import Program, Programs
from tests.spark.faulty_sink import AFTER_COMMIT, BEFORE_COMMIT
from tests.spark.query_kills import LOG, QueryKills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(3600)]


TAILS = ("tail-0", "tail-1")


def test_each_row_is_there_once_however_often_the_log_is_altered(new_chroot: Callable[[], str], tmp_path: Path) -> None:
    (tmp_path / "query").mkdir()
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as bookkeeper:
        registry, random, ended, count = LogRegistry(bookkeeper.metadata), Random(7), threading.Event(), 0
        create_log(bookkeeper, LOG)
        place = [str(tmp_path), cluster.zookeeper, LOG]
        producer = Program(tmp_path, "numbers-0", "producing", [*place, "numbers-0"])
        tails = [Program(tmp_path, name, "tailing", [*place, name]) for name in TAILS]
        beside = Programs([producer, *tails])

        def alter() -> None:
            nonlocal count
            copies = random.randint(1, 3)
            registry.alter(
                LOG,
                ensemble_size=3,
                write_quorum=copies,
                ack_quorum=random.randint(1, copies),
                digest_type=random.choice(list(DigestType)),
            )
            count += 1

        def alter_and_kill() -> None:
            while not ended.is_set():
                alter()
                if random.random() < 0.03:
                    random.choice(beside.all).kill()
                beside.pass_time(random.random() / 5, lambda: None)

        with ThreadPoolExecutor(1) as thread:
            try:
                for program in beside.all:
                    program.start()
                altering = thread.submit(alter_and_kill)
                # Of bookies none is killed: there may be one copy.
                kills = QueryKills(cluster, tmp_path / "query", master="local[2]")
                counts = kills.run([AFTER_COMMIT, "driver", BEFORE_COMMIT])
                ended.set()
                altering.result(600)
                (tmp_path / "finish").touch()
                beside.await_all(lambda one: one.finished or one in tails, 600, lambda: None)
                (tmp_path / "all-is-written").touch()
                beside.await_all(lambda one: one.finished, 600, lambda: None)
            finally:
                ended.set()
                for program in beside.all:
                    program.end()
        assert counts["driver starts"] == 3 and count >= 100
        assert producer.lives > 1 and sum(tail.lives for tail in tails) > 2, "they were killed"
        lanes = read_whole(bookkeeper, LOG)
        query, service = (lanes[number] for number in sorted(lanes))
        assert len(query) == counts["rows checked"], "that each is there once was checked above"
        assert [row.value for row in service] == [b"numbers-0 %d" % number for number in range(len(service))]
        heard = check([row.value for row in service], appends(tmp_path, "numbers-0"))
        assert not heard.violations and heard.counts["appended"] > 0
        for name in TAILS:
            assert tailed(tmp_path, name, lanes) == len(query) + len(service)
        found = [one for one, _ in bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {})]
        labels = {LOG_LABEL: LOG.encode(), ROLE_LABEL: DATA_ROLE.encode()}
        made = [one for one in found if labels.items() <= one.custom_metadata.items()]
        assert len({(one.write_quorum, one.ack_quorum, one.digest_type) for one in made}) > 3

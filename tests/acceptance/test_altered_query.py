"""A log is altered again and again beside its streaming query, which is killed meanwhile: each row is there once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random

import pytest

from bookspark.local import LocalCluster
from bookspark.logs import LogRegistry
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.protocol.logs.log_record import DATA_ROLE, LOG_LABEL, ROLE_LABEL, NoSuchLogError
from tests.awaiting import time_passes
from tests.spark.faulty_sink import AFTER_COMMIT, BEFORE_COMMIT
from tests.spark.query_kills import LOG, QueryKills

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]


def test_each_row_is_there_once_however_often_the_log_is_altered(new_chroot: Callable[[], str], tmp_path: Path) -> None:
    with LocalCluster(bookies=4, zookeeper=new_chroot()) as cluster, cluster.bookkeeper() as bookkeeper:
        registry, random, ended, count = LogRegistry(bookkeeper.metadata), Random(7), threading.Event(), 0

        def alter() -> None:
            nonlocal count
            while not ended.is_set():
                copies = random.randint(1, 3)
                with suppress(NoSuchLogError):
                    registry.alter(
                        LOG,
                        ensemble_size=3,
                        write_quorum=copies,
                        ack_quorum=random.randint(1, copies),
                        digest_type=random.choice(list(DigestType)),
                    )
                    count += 1
                time_passes(random.random() / 5)

        thread = threading.Thread(target=alter)
        thread.start()
        try:
            # Of bookies none is killed: there may be one copy.
            counts = QueryKills(cluster, tmp_path, master="local[2]").run([AFTER_COMMIT, "driver", BEFORE_COMMIT])
        finally:
            ended.set()
            thread.join(60)
        assert counts["driver starts"] == 3 and count >= 100
        found = [one for one, _ in bookkeeper.metadata.read_ledgers(bookkeeper.list_ledgers(), {})]
        labels = {LOG_LABEL: LOG.encode(), ROLE_LABEL: DATA_ROLE.encode()}
        made = [one for one in found if labels.items() <= one.custom_metadata.items()]
        assert len({(one.write_quorum, one.ack_quorum, one.digest_type) for one in made}) > 3

"""Where a log is and who writes it: values that tasks get, and logs may show."""

from __future__ import annotations

import pickle

from bookspark.logs import LogAddress, LogRun
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions

RUN = LogRun(LogAddress("host:1", "orders", b"secret"), 1000, "run", 7)


def test_a_run_survives_its_way_to_a_task() -> None:
    assert pickle.loads(pickle.dumps(RUN)) == RUN


def test_a_run_is_the_owner_that_the_record_names() -> None:
    record = LogRecord("orders", epoch=6, ctime_ms=1000).claim("run")
    assert LogRun.of(RUN.address, record) == RUN


def test_no_repr_shows_the_password() -> None:
    given = {"zookeeper": "host:1", "log": "orders", "password": "secret"}
    for shown in (RUN, SinkOptions.parse(given), SourceOptions.parse(given)):
        assert "orders" in repr(shown) and "secret" not in repr(shown)

"""Options of format bookspark: parsed on the driver, refused with the nearest name."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from pyspark.sql.types import BinaryType, StructField, StructType

from bookspark.errors import ConfigurationError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.spark.connector.data_source import BookSparkDataSource
from bookspark.spark.options.given_options import INSTEAD
from bookspark.spark.options.places import EARLIEST, LATEST
from bookspark.spark.options.sink_options import SinkOptions
from bookspark.spark.options.source_options import SourceOptions
from tests.spark.memory_bookkeeper import MemoryBookKeeper

SINK = {"zookeeper": "h:1", "log": "orders"}
SOURCE = {"zookeeper": "h:1"}


def test_option_names_are_recognised_in_any_case() -> None:
    options = SinkOptions.parse({**SINK, "ensemblesize": "5", "DigestType": "hmac", "ledgerrollbytes": "1000"})
    assert options.chosen == {"ensemble_size": 5, "digest_type": DigestType.HMAC}
    assert options.roll.bytes_max == 1000


def test_zookeeper_option_overrides_the_sessions_cluster() -> None:
    assert SinkOptions.parse(SINK, "session:1").log.zookeeper == "h:1"
    assert SinkOptions.parse({"log": "orders"}, "session:1").log.zookeeper == "session:1"


def test_table_in_sparks_catalog_is_refused_with_the_alternative() -> None:
    """CREATE TABLE … USING bookspark OPTIONS (log 'orders') passes these options; the error was that 'owner' is unknown."""
    given = {**SOURCE, "log": "orders", "option.log": "orders", "owner": "me", "provider": "bookspark"}
    with pytest.raises(ConfigurationError, match="make a view, by CREATE TEMPORARY VIEW name USING bookspark"):
        SourceOptions.parse(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"zookeeper": "h:1"}, "which log"),
        ({"log": "orders"}, "which cluster"),
        ({**SINK, "ensemblsize": "3"}, "unknown option 'ensemblsize' of format bookspark; did you mean 'ensembleSize'"),
        ({**SINK, "ackQuorum": "two"}, "option ackQuorum 'two' can't be used; choose at least 1"),
        ({**SINK, "ackQuorum": "0"}, "option ackQuorum 0 can't be used; choose at least 1"),
        ({**SINK, "ackQuorum": "4"}, "ack_quorum 4"),
        ({**SINK, "digestType": "md5"}, "option digestType 'md5' can't be used; choose one of CRC32C"),
        ({**SINK, "rowFormat": "csv"}, "option rowFormat 'csv' can't be used; choose one of value, arrow"),
        ({**SINK, "rowFormat": "arrow", "compression": "ZSTD_Dictionary"}, "use 'zstd'"),
        ({**SINK, "log": "a/b"}, "log 'a/b' can't be used; choose a log name"),
    ],
)
def test_sink_refuses_wrong_options(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SinkOptions.parse(given)


def test_sink_accepts_sparks_own_options() -> None:
    SinkOptions.parse({**SINK, "checkpointLocation": "/tmp/x"})


@pytest.mark.parametrize("name", ["path", "Topic", "subscribe"])
def test_name_of_another_store_that_means_one_log_is_taken_for_it(name: str) -> None:
    """``load("a")`` and ``save("a")`` pass path. For subscribe the hint was subscription, which is for something else."""
    assert SourceOptions.parse({**SOURCE, name: "orders@3"}).log == "orders@3"
    assert SinkOptions.parse({**SOURCE, name: "orders"}).log.name == "orders"
    assert SourceOptions.parse({**SOURCE, name: "orders", "log": "orders"}).log == "orders"
    with pytest.raises(ConfigurationError, match=f"options log and {name} say two things"):
        SourceOptions.parse({**SOURCE, "log": "orders", name: "others"})


def test_subscribe_with_commas_names_several_logs() -> None:
    assert SourceOptions.parse({**SOURCE, "subscribe": "a,b"}).logs == ("a", "b")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("kafka.bootstrap.servers", "option zookeeper names the cluster"),
        ("kafka.security.protocol", "settings file that BOOKSPARK_CONFIG names"),
        ("partition", "NAME@LANE"),
        ("assign", "NAME@LANE"),
        ("subscribePattern", "use option logPattern"),
        ("kafka.group.id", "Spark's checkpoint keeps a query's place"),
        ("startingOffsetsByTimestampStrategy", "a time after the last row means the end of the log"),
        ("startingVersion", "use startingOffsets"),
    ],
)
def test_name_of_another_store_is_refused_with_the_option_for_it_here(name: str, hint: str) -> None:
    for parse in (SourceOptions.parse, SinkOptions.parse):
        with pytest.raises(ConfigurationError, match=f"has no option '{name.lower()}': .*{hint}"):
            parse({**SINK, name: "x"})


def test_each_name_of_another_store_has_a_hint_and_is_no_option_of_ours() -> None:
    for name, hint in INSTEAD.items():
        assert name == name.lower() and hint
        with pytest.raises(ConfigurationError, match=f"has no option '{re.escape(name)}'"):
            SourceOptions.parse({**SINK, name: "1"})


def test_kafkas_numbers_for_earliest_and_latest_are_these_words() -> None:
    log = {**SOURCE, "log": "a"}
    assert SourceOptions.parse({**log, "startingOffsets": "-2"}).start == EARLIEST
    assert SourceOptions.parse({**log, "startingOffsets": "-1", "subscription": "x"}).start == LATEST
    assert SourceOptions.parse({**log, "endingOffsets": "-1"}).end == LATEST
    assert SourceOptions.parse({**log, "startingOffsets": '{"0": -2, "3": 7}'}).start == {3: 7}
    assert SourceOptions.parse({**log, "startingOffsets": '{"0": -2}'}).start == EARLIEST
    assert SourceOptions.parse({**log, "endingOffsets": '{"0": 5, "1": -1}'}).end == {0: 5}
    several = SourceOptions.parse({**SOURCE, "logs": "a,b", "startingOffsets": '{"a": {"0": -2, "1": 4}, "b": -2}'})
    assert (several.starts.of("a"), several.starts.of("b")) == ({1: 4}, EARLIEST)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("startingOffsets", '{"0": -1}'),
        ("endingOffsets", '{"0": -2}'),
        ("endingOffsets", "-2"),
        ("startingOffsets", "-3"),
    ],
)
def test_kafkas_numbers_are_refused_where_they_mean_no_place(name: str, text: str) -> None:
    """A start at the end of one lane would move with each restart before the first micro-batch."""
    with pytest.raises(ConfigurationError, match=f"option {name} .* can't be used; choose"):
        SourceOptions.parse({**SOURCE, "log": "a", name: text})


def test_ledgers_option_accepts_single_ids_and_spans() -> None:
    assert SourceOptions.parse({**SOURCE, "ledgers": "1, 3,7-9"}).ledgers == (1, 3, 7, 8, 9)
    assert SourceOptions.parse({**SOURCE, "ledger": "42"}).ledgers == (42,)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("90", 0.09), ("3 S", 3), ("2h", 7200), ("1min", 60), ("1d", 86400)]
)
def test_max_trigger_delay_accepts_sparks_time_formats(text: str, seconds: float) -> None:
    given = {**SOURCE, "log": "a", "minOffsetsPerTrigger": "5"}
    assert SourceOptions.parse(given).trigger_delay_seconds == 900
    assert SourceOptions.parse({**given, "maxTriggerDelay": text}).trigger_delay_seconds == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "Give exactly one of the options log, logs, logPattern, ledger, ledgers and table; none was given"),
        ({"log": "a", "ledger": "1"}, "not log and ledger at once"),
        ({"ledger": "x"}, "ledger 'x' can't be used; choose 0 to 9999999999"),
        ({"ledgers": "9-7"}, "'9-7' can't be used; choose a list of ledger ids"),
        ({"ledger": "1", "startingOffsets": "5"}, "are for reading a log, not a ledger"),
        ({"log": "a", "startingOffsets": "newest"}, "'newest' can't be used; choose 'earliest', a position"),
        ({"log": "a", "failOnDataLoss": "no"}, "'no' can't be used; choose true or false"),
        ({"ledgers": "1", "subscription": "x"}, "are for reading a log, not a ledger"),
        ({"log": "a", "maxOffsetsPerTrigger": "1", "maxBytesPerTrigger": "1"}, "one limit at a time"),
        ({"log": "a", "maxTriggerDelay": "5m"}, "waits for minOffsetsPerTrigger: give both"),
        (
            {"log": "a", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "9 is more than maxOffsetsPerTrigger 8",
        ),
        ({"log": "a", "minOffsetsPerTrigger": "9", "maxTriggerDelay": "5 fortnights"}, "choose a time like 30s, 15m"),
        ({"log": "a", "minPartition": "4"}, "did you mean 'minPartitions'"),
        ({"log": "a", "startingOffsets": "latest"}, "'latest' is for streams, and needs option subscription"),
        ({"log": "a", "startingOffsets": "-1"}, "'latest' is for streams, and needs option subscription"),
        ({"log": "a", "subscription": "x"}, "subscription is only used with startingOffsets 'latest'"),
        ({"log": "a", "startingOffsets": "9", "endingOffsets": "3"}, "startingOffsets 9 is behind endingOffsets 3"),
        ({"logs": "a,b", "startingOffsets": '{"c": 1}'}, "in log 'c', which is not read"),
    ],
)
def test_wrong_options_are_refused_by_load(given: dict[str, str], message: str) -> None:
    """``load`` asks for the schema, also of a stream. Later mistakes are an error of the running query, below Spark's stack."""
    with pytest.raises(ConfigurationError, match=message):
        BookSparkDataSource({**SOURCE, **given}).schema()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"log": "a", "startingOffsets": "latest", "subscription": "x"}, "'latest' is for streams"),
        ({"log": "a", "maxOffsetsPerTrigger": "1"}, "option maxOffsetsPerTrigger is for streams"),
        ({"log": "a", "minOffsetsPerTrigger": "1"}, "option minOffsetsPerTrigger is for streams"),
    ],
)
def test_batch_read_refuses_options_for_streams(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SourceOptions.parse({**SOURCE, **given}).for_batch()


def test_query_can_not_follow_an_application_of_batch_writes() -> None:
    """It took the lane of batch writes, and a later write of a version was there twice."""
    with pytest.raises(ConfigurationError, match="'txn:etl' is an application of batch writes"):
        SinkOptions.parse({**SINK, "follows": "txn:etl"})


def test_column_names_are_equal_in_any_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in Spark's analysis: a column VALUE was refused."""
    bookkeeper = MemoryBookKeeper()
    monkeypatch.setattr("bookspark.spark.connector.sink.client", lambda zookeeper: bookkeeper)
    registered = {name: SimpleNamespace(bookie_id=name, read_only=False) for name in "abc"}
    monkeypatch.setattr(bookkeeper.metadata, "bookies", lambda: registered)
    for log, row_format, names in (("values", "value", ["VALUE", "value"]), ("columns", "arrow", ["Id", "ID"])):
        for name in names:
            given = {"zookeeper": "h:1", "path": log, "rowFormat": row_format}
            assert BookSparkDataSource(given).writer(StructType([StructField(name, BinaryType())]), overwrite=False)
    with pytest.raises(ConfigurationError, match="has the columns struct<Id:binary> since it was created"):
        BookSparkDataSource(given).writer(StructType([StructField("other", BinaryType())]), overwrite=False)


@pytest.mark.parametrize("name", ["follows", "acceptReplay", "checkpointLocation", "queryName"])
def test_batch_write_refuses_options_for_streams(name: str) -> None:
    """They were accepted and had no effect: acceptReplay looked as if it made a batch write's second run do nothing."""
    given = {**SINK, name: "0"}
    with pytest.raises(ConfigurationError, match=f"option {name} is for streams"):
        SinkOptions.parse(given).for_batch()
    schema = StructType([StructField("value", BinaryType())])
    with pytest.raises(ConfigurationError, match=f"option {name} is for streams"):
        BookSparkDataSource(given).writer(schema, overwrite=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"table": "ledgers"}, "system table 'ledgers' can't be read as a stream"),
        ({"log": "a", "endingOffsets": "7"}, "a stream has no end"),
    ],
)
def test_stream_refuses_wrong_options(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        SourceOptions.parse({**SOURCE, **given}).for_stream()


@pytest.mark.parametrize(
    "given",
    [
        {"log": "a", "startingOffsets": '{"0": 1, "0": 2}'},
        {"log": "a", "endingOffsetsByTimestamp": '{"1": 1, "1": 2}'},
        {"logs": "a,b", "startingOffsets": '{"a": 1, "a": 2}'},
        {"logs": "a,b", "endingOffsets": '{"a": {"0": 1, "0": 2}}'},
    ],
)
def test_place_given_twice_is_refused(given: dict[str, str]) -> None:
    """The last one counted, and the rows before it were passed over."""
    name = list(given)[1]
    with pytest.raises(ConfigurationError, match=f"option {name} .* can't be used"):
        SourceOptions.parse({**SOURCE, **given})

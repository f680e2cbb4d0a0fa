"""``conf/bookspark.toml`` agrees with the code, and the options are checked."""

from __future__ import annotations

import re
import socket
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bookspark.errors import ConfigurationError
from bookspark.spark import process_client
from bookspark.store.autorecovery.autorecovery_config import AutorecoveryConfig
from bookspark.store.bookie.bookie_config import BookieConfig, advertised, bookie_config
from bookspark.store.changes_config import ChangesConfig
from bookspark.store.client.client_config import ClientConfig, client_config
from bookspark.store.settings import TABLES, of_environment, read_settings

CONF = Path(__file__).parents[3] / "conf" / "bookspark.toml"
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "bookie": BookieConfig,
    "client": ClientConfig,
    "autorecovery": AutorecoveryConfig,
    "changes": ChangesConfig,
}


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def test_settings_file_lists_every_option_with_its_default() -> None:
    uncommented = re.sub(r"^# (\w+ = )", r"\1", CONF.read_text(), flags=re.MULTILINE)
    defaults = {
        table: {
            field.name: default_of(field) for field in msgspec.structs.fields(struct) if field.name in TABLES[table]
        }
        for table, struct in STRUCTS.items()
    }
    assert tomllib.loads(uncommented) == defaults


def test_settings_file_changes_nothing_as_shipped() -> None:
    assert read_settings(CONF) == {table: {} for table in STRUCTS}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[bookies]", "did you mean 'bookie'?"),
        ("[bookie]\nlease_second = 3", "did you mean 'lease_seconds'?"),
        ("[client]\nframe_byte = 3", "did you mean 'frame_bytes'?"),
        ("bookie = 3", r"write \[bookie\]"),
        ("[bookie", "is not TOML"),
    ],
)
def test_error_in_a_settings_file_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        read_settings(path)
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_settings(tmp_path / "missing.toml")


def test_processes_not_started_by_a_command_read_the_environments_settings_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOOKSPARK_CONFIG", raising=False)
    assert of_environment("client") == {}
    path = tmp_path / "settings.toml"
    path.write_text("[client]\ntls_ca = '/ca.pem'\n")
    monkeypatch.setenv("BOOKSPARK_CONFIG", str(path))
    assert (of_environment("client"), of_environment("bookie")) == ({"tls_ca": "/ca.pem"}, {})
    process_client.kept_client.cache_clear()
    assert process_client.client("h:2181").config.tls_ca == "/ca.pem", "Spark's workers, for one"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"frames_in_flight_max": 0}, "frames_in_flight_max 0 can't be used; choose at least 1"),
        ({"frame_bytes": 32 << 20}, "frame_bytes 33554432 can't be used; choose 1 to 8388608"),
        ({"add_timeout_seconds": -1.0}, "add_timeout_seconds -1.0 can't be used; choose 0.001 to 1000000"),
        ({"answer_timeout_seconds": 0.0}, "answer_timeout_seconds"),
        ({"recovery_timeout_seconds": float("nan")}, "recovery_timeout_seconds nan"),
        ({"connect_timeout_seconds": float("inf")}, "connect_timeout_seconds inf"),
        ({"speculative_read_delay_ms": -1}, "speculative_read_delay_ms"),
        ({"frame_bytes": 0}, "frame_bytes"),
        ({"sync_bytes": 0}, "sync_bytes 0 can't be used; choose at least 1"),
        ({"sync_bytes": "1"}, "client option sync_bytes '1' can't be used; choose at least 1 (a whole number)"),
        ({"bytes_in_flight_max": 0}, "bytes_in_flight_max 0 can't be used; choose at least 1"),
    ],
)
def test_client_option_out_of_bounds_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        client_config(**options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 65536}, "port 65536 can't be used; choose 0 to 65535"),
        ({"lease_seconds": 0}, "lease_seconds"),
        ({"lease_seconds": 1e9}, "lease_seconds 1000000000.0 can't be used; choose 0.001 to 1000000"),
        ({"gc_wait_time_seconds": -1}, "gc_wait_time_seconds"),
        ({"minor_compaction_threshold": 1.5}, "minor_compaction_threshold 1.5 can't be used; choose 0 to 1"),
        ({"requests_in_flight_max": 0}, "requests_in_flight_max"),
        ({"entry_log_bytes_max": 0}, "entry_log_bytes_max 0 can't be used; choose 1 to 2147483648"),
        ({"healing_bytes_per_second": -1}, "healing_bytes_per_second"),
        ({"host": "0.0.0.0"}, "set advertised_address"),
        ({"host": "::"}, "set advertised_address"),
        ({"host": ""}, "set advertised_address"),
        ({"advertised_address": "0.0.0.0:3181"}, "is not a host:port that clients can dial"),
        ({"advertised_address": ":3181"}, "is not a host:port"),
        ({"advertised_address": "bookies.example"}, "is not a host:port"),
        ({"advertised_address": "{hostname}.example"}, "is not a host:port"),
        (
            {"advertised_address": "{name}.example:{port}"},
            "{name} stands for nothing; known are {host}, {hostname}, {port}",
        ),
    ],
)
def test_bookie_option_out_of_bounds_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        bookie_config(directories=["/a"], zookeeper="h", **options)


@pytest.mark.parametrize(
    ("host", "pattern", "told"),
    [
        ("127.0.0.1", "", "127.0.0.1:4000"),
        ("localhost", "", "localhost:4000"),
        ("127.0.0.1", "{bookie_id}.example:{port}", "bookie-1.example:4000"),
        ("10.0.0.7", "{host}:{port}", "10.0.0.7:4000"),
        ("0.0.0.0", "gateway.example:3181", "gateway.example:3181"),
        ("::", "{hostname}.example:{port}", f"{socket.gethostname()}.example:4000"),
    ],
)
def test_bookie_advertises_the_expanded_address_pattern(host: str, pattern: str, told: str) -> None:
    """One setting serves many bookies. A host name stays a name, because certificates are issued for names."""
    made = bookie_config(directories=["/a"], zookeeper="h", host=host, advertised_address=pattern)
    assert advertised(made, "127.0.0.1:4000", "bookie-1") == told


def test_bookie_with_an_advertised_address_may_listen_on_all_addresses() -> None:
    address = "bookie-1.example:3181"
    made = bookie_config(
        directories=["/a"], zookeeper="h", host="0.0.0.0", port=3181, advertised_address=address, lease_seconds=1
    )
    assert made.advertised_address == address


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": "x"}, "bookie option port 'x' can't be used; choose 0 to 65535 (a whole number)"),
        ({"port": 1.5}, "bookie option port 1.5 can't be used; choose 0 to 65535 (a whole number)"),
        ({"lease_seconds": float("nan")}, "lease_seconds nan can't be used; choose 0.001 to 1000000"),
        ({"lease_seconds": "1"}, "lease_seconds '1' can't be used; choose 0.001 to 1000000"),
        (
            {"requests_in_flight_max": True},
            "requests_in_flight_max True can't be used; choose at least 1 (a whole number)",
        ),
        ({"disk_usage_warn_threshold": 0}, "disk_usage_warn_threshold 0 can't be used; choose more than 0, at most 1"),
        ({"journal_write_data": 1}, "journal_write_data 1 can't be used; choose true or false"),
        ({"rack": 1}, "rack 1 can't be used; choose a text"),
        ({"labels": {"zone": 1}}, "labels['zone'] 1 can't be used; choose a text"),
        ({"directories": [1]}, "directories[0] 1 can't be used; choose a text"),
        ({"directories": []}, "a bookie needs at least one directory"),
    ],
)
def test_option_of_a_wrong_type_is_refused_by_its_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(words)):
        bookie_config(**{"directories": ["/a"], "zookeeper": "h", **options})


def test_missing_option_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"bookie option zookeeper is missing"):
        bookie_config(directories=["/a"])


@pytest.mark.parametrize("struct", [BookieConfig, ClientConfig, AutorecoveryConfig, ChangesConfig])
def test_every_numeric_option_has_bounds_in_its_type(struct: type[msgspec.Struct]) -> None:
    for field in msgspec.structs.fields(struct):
        kind = msgspec.inspect.type_info(field.type)
        if isinstance(kind, msgspec.inspect.IntType | msgspec.inspect.FloatType):
            assert kind.ge is not None or kind.gt is not None, field.name
        if isinstance(kind, msgspec.inspect.FloatType):
            assert kind.le is not None, f"{field.name}: infinity is a float"

"""``conf/bookspark.toml`` says what the code says."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bookspark.autorecovery.config import AutorecoveryConfig
from bookspark.bookie.config import BookieConfig
from bookspark.client.config import ClientConfig
from bookspark.daemon.settings import TABLES, of_environment, read_settings
from bookspark.protocol.errors import ConfigurationError
from bookspark.spark import clients

CONF = Path(__file__).parents[2] / "conf" / "bookspark.toml"
STRUCTS: dict[str, type[msgspec.Struct]] = {
    "bookie": BookieConfig,
    "client": ClientConfig,
    "autorecovery": AutorecoveryConfig,
}


def default_of(field: msgspec.structs.FieldInfo) -> Any:
    return field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()


def test_every_option_is_there_with_its_default() -> None:
    uncommented = re.sub(r"^# (\w+ = )", r"\1", CONF.read_text(), flags=re.MULTILINE)
    defaults = {
        table: {
            field.name: default_of(field) for field in msgspec.structs.fields(struct) if field.name in TABLES[table]
        }
        for table, struct in STRUCTS.items()
    }
    assert tomllib.loads(uncommented) == defaults


def test_it_changes_nothing_as_it_is() -> None:
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
def test_what_is_wrong_is_named(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "settings.toml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=words):
        read_settings(path)
    with pytest.raises(ConfigurationError, match="can't be read"):
        read_settings(tmp_path / "missing.toml")


def test_processes_that_no_command_started_take_the_file_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BOOKSPARK_CONFIG", raising=False)
    assert of_environment("client") == {}
    path = tmp_path / "settings.toml"
    path.write_text("[client]\ntls_ca = '/ca.pem'\n")
    monkeypatch.setenv("BOOKSPARK_CONFIG", str(path))
    assert (of_environment("client"), of_environment("bookie")) == ({"tls_ca": "/ca.pem"}, {})
    clients.client.cache_clear()
    assert clients.client("h:2181").config.tls_ca == "/ca.pem", "Spark's workers, for one"

"""A boot over files of a newer version of Bookspark names the unknown record and loses nothing."""

from __future__ import annotations

import msgspec
import pytest
from crc32c import crc32c

from bookspark.errors import StorageError
from bookspark.store.bookie.disk.control_log import NAME
from bookspark.store.bookie.disk.torn import RECORD_HEAD
from tests.store.bookie.kit import Pumped, config

RECORDS = {"a kind of record": ("of tomorrow", 7), "a field of a record": ("fence", 7, b"k", 1, 2, 3, 4, 5, 6)}


@pytest.mark.parametrize("what", RECORDS)
def test_boot_names_a_control_record_of_a_newer_version_and_loses_nothing(what, tmp_path):
    """The boot raised `KeyError: 'at'`."""
    bookie = Pumped(config(tmp_path / "a", tmp_path / "b"))
    bookie.add(7, 0, 9)
    bookie.storage.close()
    body = msgspec.msgpack.encode(RECORDS[what])
    control = tmp_path / "a" / NAME
    before = control.read_bytes()
    control.write_bytes(before + RECORD_HEAD.pack(len(body), crc32c(body)) + body)
    with pytest.raises(StorageError, match=f"record '{RECORDS[what][0]}' .* a newer version of Bookspark ran here"):
        Pumped(config(tmp_path / "a", tmp_path / "b"))
    control.write_bytes(before)
    again = Pumped(config(tmp_path / "a", tmp_path / "b"))
    assert again.ids(7) == list(range(10)) and not again.storage.lossy_boots.losses
    again.storage.close()

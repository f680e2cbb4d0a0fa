"""Digests cover every column of a row, and depend on the password where they should."""

from __future__ import annotations

import pytest

from bookspark.protocol.errors import DigestMismatchError
from bookspark.protocol.ledger_metadata import DigestType
from bookspark.wire.digests import check, digester, master_key
from bookspark.wire.entry_batch import Entry

SIZES = {
    DigestType.CRC32C: 4,
    DigestType.CRC32: 4,
    DigestType.HMAC: 32,
    DigestType.HMAC_SHA1: 20,
    DigestType.DUMMY: 0,
}
REAL = [digest_type for digest_type in DigestType if digest_type is not DigestType.DUMMY]


def signed(digest_type, password=b"secret"):
    row = (7, 3, 1, 40, b"payload")
    return Entry(*row, digester(digest_type, password)(*row))


@pytest.mark.parametrize("digest_type", DigestType)
def test_a_written_entry_checks(digest_type):
    entry = signed(digest_type)
    assert len(entry.digest) == SIZES[digest_type]
    check(entry, digester(digest_type, b"secret"))


@pytest.mark.parametrize("digest_type", REAL)
@pytest.mark.parametrize(
    "change", [{"ledger_id": 8}, {"entry_id": 4}, {"last_add_confirmed": 2}, {"length": 41}, {"payload": b"Payload"}]
)
def test_each_column_is_covered(digest_type, change):
    with pytest.raises(DigestMismatchError, match="ledger"):
        check(signed(digest_type)._replace(**change), digester(digest_type, b"secret"))


@pytest.mark.parametrize("digest_type", [DigestType.HMAC, DigestType.HMAC_SHA1])
def test_a_mac_needs_the_password(digest_type):
    with pytest.raises(DigestMismatchError):
        check(signed(digest_type), digester(digest_type, b"guess"))


def test_crc32c_is_the_one_of_the_standard():
    """RFC 3720: 32 bytes of zeros give 0x8A9136AA."""
    assert digester(DigestType.CRC32C, b"")(0, 0, 0, 0, b"") == 0x8A9136AA.to_bytes(4, "little")


def test_the_master_key_tells_passwords_apart_and_not_the_password():
    assert master_key(b"a") != master_key(b"b")
    assert len(master_key(b"")) == 16
    assert b"secret" not in master_key(b"secret")

"""Digests cover every column of a row, and depend on the password where they should."""

from __future__ import annotations

import struct

import pytest

from bookspark.errors import DigestMismatchError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.wire.digests import check, digester, first_mismatch, master_key
from bookspark.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.wire.header import Header, Kind

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


ROWS = [(7, entry_id, entry_id // 2, 10 + entry_id, bytes(entry_id)) for entry_id in range(5)]


def batch_of(entries):
    return EntryBatch(encode_entries(Header(Kind.ADD, 1, 7, entries[0].entry_id, entries[-1].entry_id), entries))


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("count", [1, 5, 64, 200])
@pytest.mark.parametrize("size", [0, 100, 5000])
def test_the_digests_of_a_column_are_those_of_its_rows(digest_type, count, size):
    digest = digester(digest_type, b"secret")
    rows = [(7, 250 + i, i // 3 - 1, (i + 1) * size, bytes([i]) * size) for i in range(count)]
    *columns, payloads = zip(*rows, strict=True)
    packed = [struct.pack(f"<{count}q", *column) for column in columns]
    assert digest.column(packed, payloads) == b"".join(digest(*row) for row in rows)
    assert digest.size == SIZES[digest_type]


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("count", [1, 5])
def test_a_batch_as_it_was_written_has_no_mismatch(digest_type, count):
    digest = digester(digest_type, b"secret")
    assert first_mismatch(batch_of([Entry(*row, digest(*row)) for row in ROWS[:count]]), digest) is None


@pytest.mark.parametrize("digest_type", REAL)
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("change", [{"payload": b"other"}, {"length": 99}, {"last_add_confirmed": 9}, {"digest": b""}])
def test_the_first_mismatch_of_a_batch_is_found_wherever_it_is(digest_type, count, change):
    digest = digester(digest_type, b"secret")
    for bad in range(count):
        entries = [Entry(*row, digest(*row)) for row in ROWS[:count]]
        for row in range(bad, count):  # the last one too, so that it is the first that counts
            entries[row] = entries[row]._replace(**change)
        assert first_mismatch(batch_of(entries), digest) == bad


def test_digests_that_fit_only_one_after_the_other_do_not_match():
    """The concatenated digests are right, but not where they are divided."""
    digest = digester(DigestType.CRC32C, b"")
    first, second = (Entry(*row, digest(*row)) for row in ROWS[:2])
    shifted = [first._replace(digest=first.digest + second.digest[:1]), second._replace(digest=second.digest[1:])]
    assert first_mismatch(batch_of(shifted), digest) == 0

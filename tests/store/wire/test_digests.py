"""Digests cover every column of a row, and macs depend on the password."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.errors import DigestMismatchError
from bookspark.protocol.ledger.ledger_metadata import DigestType
from bookspark.store.wire.batch_prefix import PREFIX_BYTES
from bookspark.store.wire.digests import check, digester, first_mismatch, master_key
from bookspark.store.wire.entry_batch import Entry, EntryBatch, encode_entries
from bookspark.store.wire.header import Header, Kind

SIZES = {
    DigestType.CRC32C: 4,
    DigestType.CRC32: 4,
    DigestType.HMAC: 32,
    DigestType.HMAC_SHA1: 20,
    DigestType.DUMMY: 0,
    DigestType.BOOKKEEPER_CRC32C: 4,
    DigestType.BOOKKEEPER_CRC32: 8,
    DigestType.BOOKKEEPER_HMAC: 20,
    DigestType.BOOKKEEPER_DUMMY: 0,
}
REAL = [digest_type for digest_type, size in SIZES.items() if size]


def signed(digest_type, password=b"secret"):
    row = (7, 3, 1, 40, b"payload")
    return Entry(*row, digester(digest_type, password)(*row))


@pytest.mark.parametrize("digest_type", DigestType)
def test_written_entry_passes_its_check(digest_type):
    entry = signed(digest_type)
    assert len(entry.digest) == SIZES[digest_type]
    check(entry, digester(digest_type, b"secret"))


@pytest.mark.parametrize("digest_type", REAL)
@pytest.mark.parametrize(
    "change", [{"ledger_id": 8}, {"entry_id": 4}, {"last_add_confirmed": 2}, {"length": 41}, {"payload": b"Payload"}]
)
def test_digest_covers_each_column(digest_type, change):
    with pytest.raises(DigestMismatchError, match="ledger"):
        check(signed(digest_type)._replace(**change), digester(digest_type, b"secret"))


@pytest.mark.parametrize("digest_type", [DigestType.HMAC, DigestType.HMAC_SHA1])
def test_mac_of_another_password_fails_the_check(digest_type):
    with pytest.raises(DigestMismatchError):
        check(signed(digest_type), digester(digest_type, b"guess"))


def test_crc32c_matches_the_value_of_rfc_3720():
    """32 bytes of zeros give 0x8A9136AA."""
    assert digester(DigestType.CRC32C, b"")(0, 0, 0, 0, b"") == 0x8A9136AA.to_bytes(4, "little")


def test_master_key_differs_by_password_and_does_not_contain_it():
    assert master_key(b"a") != master_key(b"b")
    assert len(master_key(b"")) == 16
    assert b"secret" not in master_key(b"secret")


ROWS = [(7, entry_id, entry_id // 2, 10 + entry_id, bytes(entry_id)) for entry_id in range(5)]


def batch_of(entries):
    return EntryBatch(encode_entries(Header(Kind.ADD, 1, 7, entries[0].entry_id, entries[-1].entry_id), entries))


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("count", [1, 5, 64, 200])
@pytest.mark.parametrize("size", [0, 100, 5000])
def test_digests_of_a_column_equal_the_digests_of_its_rows(digest_type, count, size):
    digest = digester(digest_type, b"secret")
    rows = [(7, 250 + i, i // 3 - 1, (i + 1) * size, bytes([i]) * size) for i in range(count)]
    *columns, payloads = zip(*rows, strict=True)
    packed = [struct.pack(f"<{count}q", *column) for column in columns]
    assert digest.column(packed, payloads) == b"".join(digest(*row) for row in rows)
    assert digest.size == SIZES[digest_type]


@pytest.mark.parametrize("digest_type", DigestType)
@pytest.mark.parametrize("count", [1, 5])
def test_unchanged_batch_has_no_mismatch(digest_type, count):
    digest = digester(digest_type, b"secret")
    assert first_mismatch(batch_of([Entry(*row, digest(*row)) for row in ROWS[:count]]), digest) is None


@pytest.mark.parametrize("digest_type", REAL)
@pytest.mark.parametrize("count", [1, 5])
@pytest.mark.parametrize("change", [{"payload": b"other"}, {"length": 99}, {"last_add_confirmed": 9}, {"digest": b""}])
def test_first_mismatch_returns_the_first_bad_entry_at_any_place(digest_type, count, change):
    digest = digester(digest_type, b"secret")
    for bad in range(count):
        entries = [Entry(*row, digest(*row)) for row in ROWS[:count]]
        for row in range(bad, count):  # also all later entries, so that the order of the search counts
            entries[row] = entries[row]._replace(**change)
        assert first_mismatch(batch_of(entries), digest) == bad


def test_digests_right_only_in_concatenation_do_not_match():
    """The concatenated digests are right, but divided at a wrong place."""
    digest = digester(DigestType.CRC32C, b"")
    first, second = (Entry(*row, digest(*row)) for row in ROWS[:2])
    shifted = [first._replace(digest=first.digest + second.digest[:1]), second._replace(digest=second.digest[1:])]
    assert first_mismatch(batch_of(shifted), digest) == 0
    many = [Entry(*row, digest(*row)) for row in rows_of_one_size(16, 40)]
    first, second = many[:2]
    many[0] = first._replace(digest=first.digest + second.digest[:1])
    many[1] = second._replace(digest=second.digest[1:])
    assert first_mismatch(batch_of(many), digest) == 250


def rows_of_one_size(count, size):
    return [(7, 250 + i, i - 1, (i + 1) * size, bytes((i + k) % 256 for k in range(size))) for i in range(count)]


@pytest.mark.parametrize("digest_type", [DigestType.CRC32C, DigestType.CRC32])
@pytest.mark.parametrize("size", [32, 36, 37, 40, 100, 1000, 4096, 4100])
@pytest.mark.parametrize("count", [2, 15, 16, 17, 40])
def test_entries_of_equal_size_are_checked_together_and_any_change_is_detected(digest_type, count, size):
    digest = digester(digest_type, b"")
    good = [Entry(*row, digest(*row)) for row in rows_of_one_size(count, size)]
    assert digest.all_match(batch_of(good))
    for at in {0, 1, count // 2, count - 2, count - 1}:
        other = bytes([good[at].payload[0] ^ 1]) + good[at].payload[1:]
        for change in ({"payload": other}, {"length": 1}, {"last_add_confirmed": 9}, {"digest": b"four"}):
            bad = [*good[:at], good[at]._replace(**change), *good[at + 1 :]]
            assert not digest.all_match(batch_of(bad)), (at, change)
            assert first_mismatch(batch_of(bad), digest) == 250 + at


def test_single_sum_of_a_batch_covers_each_bit():
    digest = digester(DigestType.CRC32C, b"")
    good = encode_entries(
        Header(Kind.ADD, 1, 7, 250, 265), [Entry(*row, digest(*row)) for row in rows_of_one_size(16, 36)]
    )
    _, payload, _, digests = EntryBatch(good).binary_columns()
    offsets_bytes = 72
    at_payload = PREFIX_BYTES + 4 * 8 * 16 + offsets_bytes
    at_digests = at_payload + len(payload) + offsets_bytes
    assert good[at_payload : at_payload + len(payload)] == payload
    assert good[at_digests : at_digests + len(digests)] == digests
    covered = [
        (PREFIX_BYTES, at_payload - offsets_bytes),
        (at_payload, at_payload + len(payload)),
        (at_digests, at_digests + len(digests)),
    ]
    for start, end in covered:
        for bit in range(8 * start, 8 * end):
            bad = bytearray(good)
            bad[bit // 8] ^= 1 << bit % 8
            assert not digest.all_match(EntryBatch(bad)), bit


def test_check_of_a_batch_does_not_affect_the_next_check():
    """Batches of one shape, and of others in between, are checked in the same memory."""
    digest = digester(DigestType.CRC32C, b"")
    for count, size in [(40, 100), (40, 100), (20, 200), (40, 100), (41, 100), (40, 104), (40, 100)]:
        good = [Entry(*row, digest(*row)) for row in rows_of_one_size(count, size)]
        for at in (0, count // 2, count - 1):
            assert not digest.all_match(batch_of([*good[:at], good[at]._replace(length=1), *good[at + 1 :]]))
            assert digest.all_match(batch_of(good))


@pytest.mark.parametrize("distance", [1, 2, 15])
@pytest.mark.parametrize("columns", [("payload",), ("payload", "digest"), ("digest",), ("length", "payload", "digest")])
def test_entries_with_exchanged_contents_do_not_cancel_out_in_the_sum(distance, columns):
    digest = digester(DigestType.CRC32C, b"")
    entries = [Entry(*row, digest(*row)) for row in rows_of_one_size(16, 40)]
    one, other = entries[0], entries[distance]
    entries[0] = one._replace(**{name: getattr(other, name) for name in columns})
    entries[distance] = other._replace(**{name: getattr(one, name) for name in columns})
    assert not digest.all_match(batch_of(entries))


@given(st.integers(16, 80), st.integers(9, 60), st.data())
def test_single_sum_of_a_batch_agrees_with_the_digest_of_each_entry(count, quarter, data):
    digest = digester(DigestType.CRC32C, b"")
    entries = [Entry(*row, digest(*row)) for row in rows_of_one_size(count, 4 * quarter)]
    for at in data.draw(st.lists(st.integers(0, count - 1), max_size=4)):
        change = data.draw(st.binary(min_size=4, max_size=4))
        entries[at] = entries[at]._replace(digest=change)
    good = all(digest(*entry[:5]) == entry.digest for entry in entries)
    assert digest.all_match(batch_of(entries)) == good

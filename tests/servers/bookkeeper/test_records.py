"""Ledger records and registrations in BookKeeper's formats."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.errors import ConfigurationError, InvalidArgumentError, MetadataStoreError, UnreadableRecordError
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss
from bookspark.protocol.ledger.ledger_choices import check_digest
from bookspark.protocol.ledger.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    Replication,
)
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.bookkeeper_format import (
    _HEAD,
    _SCHEMA,
    OUR_RECORD,
    _varint,
    is_service_info,
    service_info,
)
from bookspark.store.metadata.records.codec import (
    decode_ledger,
    decode_registration,
    encode_ledger,
    encode_registration,
)
from bookspark.store.wire.digests import master_key

BOOKKEEPERS = [kind for kind in DigestType if kind.bookkeepers]
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    password, kind = draw(st.binary(max_size=30)), draw(st.sampled_from(BOOKKEEPERS))
    state = draw(st.sampled_from(LedgerState))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**62), max_size=3)))]
    return LedgerMetadata(
        7, 3, 2, 2, tuple(Fragment(first, ("a", "b", "c")) for first in firsts),
        state=state, digest_type=kind, password=password, master_key=master_key(password, kind),
        ctime_ms=draw(st.integers(0, 2**40)), c_token=draw(st.integers(-(2**63), 2**63 - 1)),
        custom_metadata=draw(st.dictionaries(WORDS, st.binary(max_size=20))),
        last_entry_id=draw(st.integers(-1, 2**62)) if state is LedgerState.CLOSED else -1,
        length=draw(st.integers(0, 2**62)) if state is LedgerState.CLOSED else 0,
    )  # fmt: skip


@given(ledgers())
def test_ledger_record_in_bookkeepers_format_decodes_to_the_same_metadata(metadata: LedgerMetadata) -> None:
    document = encode_ledger(metadata)
    assert document.startswith(b"BookieMetadataFormatVersion\t3\n")
    assert decode_ledger(7, document) == metadata


OURS = [kind for kind in DigestType if not kind.bookkeepers]
LOSS = AcceptedLoss("ann", 5, (), not_known=("a",))


@given(
    ledgers(),
    st.sampled_from(OURS),
    st.sampled_from(LedgerType),
    st.sampled_from(Replication),
    st.sampled_from([None, LOSS]),
)
def test_record_of_a_ledger_with_our_digest_embeds_our_record_in_bookkeepers(
    theirs: LedgerMetadata,
    kind: DigestType,
    ledger_type: LedgerType,
    replication: Replication,
    loss: AcceptedLoss | None,
) -> None:
    ours = replace(
        theirs, digest_type=kind, password=b"", master_key=master_key(theirs.password, kind), ledger_type=ledger_type,
        replication=replication, accepted_loss=loss if theirs.state is LedgerState.CLOSED else None,
    )  # fmt: skip
    document = encode_ledger(ours, bookkeepers=True)
    assert document.startswith(b"BookieMetadataFormatVersion\t3\n")
    assert decode_ledger(7, document) == ours
    assert encode_ledger(ours).startswith(b"{"), "in other clusters it is JSON, as it was"


def test_state_and_fragments_changed_by_bookkeepers_clients_override_our_record() -> None:
    made = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("a",)),), digest_type=DigestType.HMAC, master_key=b"key")
    document = encode_ledger(made, bookkeepers=True)
    theirs = _SCHEMA.parse("Ledger", document[len(_HEAD) + 2 :])
    assert theirs.password and theirs.digestType == 2, "nobody of theirs can take its entries for right"
    theirs.state = 2
    theirs.segment.add(ensembleMember=["b"], firstEntryId=5)
    body = theirs.SerializeToString()
    fragments = (*made.fragments, Fragment(5, ("b",)))
    assert decode_ledger(7, _HEAD + _varint(len(body)) + body) == replace(
        made, state=LedgerState.IN_RECOVERY, fragments=fragments
    )


def test_custom_metadata_with_the_name_of_our_record_is_refused() -> None:
    made = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("a",)),), custom_metadata={OUR_RECORD: b"mine"})
    with pytest.raises(InvalidArgumentError):
        encode_ledger(made, bookkeepers=True)
    theirs = replace(
        made, digest_type=DigestType.BOOKKEEPER_DUMMY, master_key=master_key(b"", DigestType.BOOKKEEPER_DUMMY)
    )
    with pytest.raises(InvalidArgumentError):
        encode_ledger(theirs)


def test_error_about_our_damaged_record_shows_no_key() -> None:
    made = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("a",)),), digest_type=DigestType.CRC32, master_key=b"k" * 20)
    key = base64.b64encode(made.master_key)
    document = encode_ledger(made, bookkeepers=True)
    with pytest.raises(UnreadableRecordError) as told:
        decode_ledger(7, document.replace(b'"password"', b'"passworx"'))
    assert key in document and key.decode() not in str(told.value)


def test_ledger_modes_unknown_to_bookkeepers_clients_are_refused_with_their_digests() -> None:
    for choices in ((LedgerType.VD_JOURNAL, Replication.BEST_EFFORT), (LedgerType.PD_JOURNAL, Replication.GUARANTEED)):
        with pytest.raises(ConfigurationError, match="BookKeeper"):
            check_digest(DigestType.BOOKKEEPER_HMAC, *choices)
        check_digest(DigestType.HMAC, *choices)
        made = LedgerMetadata(
            7, 1, 1, 1, (Fragment(0, ("a",)),), digest_type=DigestType.BOOKKEEPER_HMAC,
            ledger_type=choices[0], replication=choices[1],
        )  # fmt: skip
        with pytest.raises(InvalidArgumentError):
            encode_ledger(made)


def test_accepted_loss_is_kept_beside_the_fields_of_bookkeepers_clients() -> None:
    kind = DigestType.BOOKKEEPER_HMAC
    made = LedgerMetadata(
        7, 1, 1, 1, (Fragment(0, ("a",)),), LedgerState.CLOSED, last_entry_id=3, length=9, digest_type=kind,
        password=b"secret", master_key=master_key(b"secret", kind), accepted_loss=LOSS, custom_metadata={"mine": b"1"},
    )  # fmt: skip
    document = encode_ledger(made)
    assert decode_ledger(7, document) == made
    theirs = _SCHEMA.parse("Ledger", document[document.index(b"\n") + 3 :])
    assert (theirs.password, theirs.digestType, theirs.lastEntryId) == (b"secret", 2, 3)


@pytest.mark.parametrize("cut", ["version", "size", "end", "state"])
def test_error_about_a_damaged_record_names_its_ledger_and_shows_no_password(cut: str) -> None:
    kind = DigestType.BOOKKEEPER_HMAC
    key = master_key(b"pass-word", kind)
    made = LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("a",)),), digest_type=kind, password=b"pass-word", master_key=key)
    document = encode_ledger(made)
    damaged = {
        "version": document.replace(b"\t3\n", b"\t2\n"),
        "size": document + b"x",
        "end": document[:40],
        "state": document.replace(b"\x28\x01", b"\x28\x09"),
    }[cut]
    with pytest.raises(UnreadableRecordError, match="ledger 7") as raised:
        decode_ledger(7, damaged)
    assert "pass-word" not in str(raised.value)


@pytest.mark.parametrize("text", [b"bookie-1", b"team"])
def test_ledger_record_with_invalid_utf8_is_refused_with_its_name(text: bytes) -> None:
    """The raw bytes used to be returned instead, so that a list of all ledgers had bookie ids that are no text."""
    fragments = (Fragment(0, ("bookie-1",)),)
    kind = DigestType.BOOKKEEPER_CRC32C
    made = LedgerMetadata(
        7, 1, 1, 1, fragments, digest_type=kind, custom_metadata={"team": b"billing"}, master_key=master_key(b"", kind)
    )
    document = encode_ledger(made)
    assert text in document
    with pytest.raises(UnreadableRecordError, match="ledger 7"):
        decode_ledger(7, document.replace(text, b"\xff" * len(text)))


def test_registration_with_invalid_utf8_is_refused_with_its_name() -> None:
    document = service_info("127.0.0.1:3182", b'{"bookie_id":"b7"}')
    with pytest.raises(MetadataStoreError, match="b7"):
        decode_registration("b7", document.replace(b'"b7"', b'"\xff7"'))


@given(st.binary())
def test_record_of_random_bytes_is_refused_with_its_name(rest: bytes) -> None:
    for decode, document in (
        (lambda d: decode_ledger(7, d), b"BookieMetadataFormatVersion\t3\n" + rest),
        (lambda d: decode_registration("b7", d), b"\x32" + rest),
    ):
        with pytest.raises(MetadataStoreError, match="7"):
            decode(document)


@pytest.mark.parametrize(
    "fields",
    [{"ctime": -1}, {"ctime": 2**62}, {"lastEntryId": -2}, {"length": -1}, {"lastEntryId": None}],
    ids=str,
)
def test_ledger_record_with_impossible_numbers_is_refused(fields: dict[str, int | None]) -> None:
    """An impossible creation time made the snapshot of all ledgers fail."""
    ledger = _SCHEMA.message("Ledger")(
        quorumSize=1, ackQuorumSize=1, ensembleSize=1, length=5, state=3, digestType=1, lastEntryId=2, ctime=7, cToken=1
    )
    ledger.segment.add(ensembleMember=["a"], firstEntryId=0)
    assert decode_ledger(7, _HEAD + _length(ledger)).ctime_ms == 7
    for name, value in fields.items():
        ledger.ClearField(name)
        if value is not None:
            setattr(ledger, name, value)
    with pytest.raises(UnreadableRecordError, match="ledger 7"):
        decode_ledger(7, _HEAD + _length(ledger))


def _length(message: Any) -> bytes:
    document = message.SerializeToString()
    return _varint(len(document)) + document


def test_registration_uses_bookkeepers_format_only_with_the_bookkeeper_port() -> None:
    without = BookieRegistration("b", "h:1", 5)
    assert b"bookkeeper" not in encode_registration(without) and not is_service_info(encode_registration(without))
    both = BookieRegistration("b", "h:1", 5, bookkeeper_address="10.0.0.7:3181")
    document = encode_registration(both)
    assert is_service_info(document) and b"bookie-rpc" in document and b"10.0.0.7" in document
    assert decode_registration("b", document) == both

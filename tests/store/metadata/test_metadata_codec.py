"""Documents of the metadata store: each decodes to the encoded value or is refused with its name."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookspark.errors import MetadataStoreError
from bookspark.protocol.bookie.cookie import Cookie
from bookspark.protocol.ledger.accepted_loss import AcceptedLoss, Loss, LossKind
from bookspark.protocol.ledger.ledger_metadata import (
    DigestType,
    Fragment,
    LedgerMetadata,
    LedgerState,
    LedgerType,
    Replication,
)
from bookspark.store.metadata.records.bookie_registration import BookieRegistration
from bookspark.store.metadata.records.codec import (
    decode_cookie,
    decode_ledger,
    decode_registration,
    encode_cookie,
    encode_ledger,
    encode_registration,
)
from bookspark.store.metadata.records.names import decode_name, encode_name
from bookspark.store.metadata.zookeeper.layout import Layout, LedgerManager, ledger_ids
from tests.store.metadata.kit import ledger

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def ledgers(draw: st.DrawFn) -> LedgerMetadata:
    ensemble_size = draw(st.integers(1, 5))
    write_quorum = draw(st.integers(1, ensemble_size))
    ensembles = st.lists(TEXT, min_size=ensemble_size, max_size=ensemble_size, unique=True).map(tuple)
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 2**62), max_size=4)))]
    return LedgerMetadata(
        ledger_id=draw(st.integers(0, 2**31)),
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=draw(st.integers(1, write_quorum)),
        fragments=tuple(Fragment(first, draw(ensembles)) for first in firsts),
        state=draw(st.sampled_from(LedgerState)),
        last_entry_id=draw(st.integers(-1, 2**63 - 1)),
        length=draw(st.integers(0, 2**63 - 1)),
        digest_type=draw(st.sampled_from([kind for kind in DigestType if not kind.bookkeepers])),
        master_key=draw(st.binary()),
        ledger_type=draw(st.sampled_from(LedgerType)),
        replication=draw(st.sampled_from(Replication)),
        ctime_ms=draw(st.integers(0, 253_402_300_799_999)),
        c_token=draw(st.integers(0, 2**64 - 1)),
        custom_metadata=draw(st.dictionaries(TEXT, st.binary())),
    )


@given(ledgers())
def test_ledger_metadata_decodes_to_the_encoded_value(metadata: LedgerMetadata) -> None:
    assert decode_ledger(metadata.ledger_id, encode_ledger(metadata)) == metadata


@given(st.builds(Cookie, TEXT, st.lists(TEXT).map(tuple), TEXT, TEXT))
def test_cookie_decodes_to_the_encoded_value(cookie: Cookie) -> None:
    assert decode_cookie(encode_cookie(cookie), "here") == cookie


@given(st.builds(BookieRegistration, TEXT, TEXT, INT64, TEXT, INT64, st.booleans()))
def test_registration_decodes_to_the_encoded_value(registration: BookieRegistration) -> None:
    assert decode_registration("b", encode_registration(registration)) == registration


@given(st.binary())
def test_random_bytes_are_refused_with_the_records_name(document: bytes) -> None:
    for decode in (decode_ledger, decode_registration):
        with pytest.raises(MetadataStoreError, match="42"):
            decode(42, document)  # type: ignore[operator]
    with pytest.raises(MetadataStoreError, match="cookie in 42"):
        decode_cookie(document, "in 42")


WITH_LOSS = ledger(
    7,
    state=LedgerState.CLOSED,
    last_entry_id=9,
    accepted_loss=AcceptedLoss(
        "ann@host",
        5,
        ("bookie-1",),
        (
            Loss(LossKind.FENCE, -1, -1, ("bookie-1",)),
            Loss(LossKind.ENTRIES, 3, 4, ("bookie-0", "bookie-1", "bookie-2")),
            Loss(LossKind.END, 10, 10, ("bookie-1",)),
        ),
        ("entry 3 (bookie-1: not reachable)",),
    ),
)


def test_accepted_loss_is_a_field_of_the_ledgers_document() -> None:
    document = encode_ledger(WITH_LOSS)
    assert decode_ledger(7, document) == WITH_LOSS
    assert json.loads(document)["acceptedLoss"]["losses"][1] == {
        "kind": "entries",
        "firstEntryId": 3,
        "lastEntryId": 4,
        "bookies": ["bookie-0", "bookie-1", "bookie-2"],
    }


def test_only_records_with_an_accepted_loss_have_format_version_2() -> None:
    """An older client refuses such a record; otherwise its next compare-and-set would drop the field."""
    assert json.loads(encode_ledger(WITH_LOSS))["formatVersion"] == 2
    document = json.loads(encode_ledger(ledger(7)))
    assert document["formatVersion"] == 1 and "acceptedLoss" not in document


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("losses", [{"kind": "entries", "firstEntryId": 4, "lastEntryId": 3, "bookies": ["b"]}]),
        ("losses", [{"kind": "entries", "firstEntryId": 3, "lastEntryId": 3, "bookies": []}]),
        ("losses", [{"kind": "entries", "firstEntryId": 77, "lastEntryId": 78, "bookies": ["b"]}]),
        ("losses", [{"kind": "other", "firstEntryId": 3, "lastEntryId": 3, "bookies": ["b"]}]),
        ("losses", "all"),
        ("namedBookies", [1]),
    ],
)
def test_impossible_accepted_loss_is_refused(field: str, value: object) -> None:
    document = json.loads(encode_ledger(WITH_LOSS))
    document["acceptedLoss"][field] = value
    with pytest.raises(MetadataStoreError, match="ledger 7"):
        decode_ledger(7, json.dumps(document).encode())


def test_accepted_loss_in_custom_metadata_stays_custom_metadata() -> None:
    label = {"bookspark.accepted_loss": b'{"by": "ann", "at_ms": 5, "not_known": ["entry 3"]}'}
    found = decode_ledger(7, encode_ledger(ledger(7, custom_metadata=label)))
    assert found.custom_metadata == label and found.accepted_loss is None


def test_ledger_document_has_the_fields_of_ledger_metadata_format() -> None:
    document = json.loads(
        encode_ledger(ledger(7, master_key=b"key", custom_metadata={"a": b"b"}, c_token=9, ctime_ms=17))
    )
    assert document == {
        "formatVersion": 1,
        "quorumSize": 3,
        "ensembleSize": 3,
        "ackQuorumSize": 2,
        "length": 0,
        "lastEntryId": -1,
        "state": "OPEN",
        "segment": [{"ensembleMember": ["bookie-1", "bookie-2", "bookie-3"], "firstEntryId": 0}],
        "digestType": "CRC32C",
        "password": "a2V5",
        "ctime": 17,
        "customMetadata": {"a": "Yg=="},
        "cToken": 9,
        "ledgerType": "PD_JOURNAL",
        "replication": "best_effort",
    }


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(encode_ledger(ledger(7))), **fields}).encode()


@pytest.mark.parametrize(
    ("document", "why"),
    [
        (changed(formatVersion=3), "format version 3 .* upgrade"),
        (changed(formatVersion=3, somethingNew=1, state="NEWER"), "format version 3 .* upgrade"),
        (changed(somethingNew=1), "unknown field `somethingNew`"),
        (changed(state="LOST"), "LOST"),
        (changed(ackQuorumSize=4), "contradicts itself"),
        (changed(segment=[]), "contradicts itself"),
        (changed(length="long"), "length"),
        (encode_ledger(ledger(7))[:-9], "can't be read"),
        (b"", "can't be read"),
        (b"[]", "can't be read"),
        (b"\xff\xfe", "can't be read"),
    ],
)
def test_bad_document_is_refused_with_its_ledger_and_the_reason(document: bytes, why: str) -> None:
    with pytest.raises(MetadataStoreError, match=f"ledger 7.*{why}"):
        decode_ledger(7, document)


def test_registration_with_an_unknown_field_is_read() -> None:
    document = json.loads(encode_registration(BookieRegistration("b", "a:1", 3)))
    assert decode_registration("b", json.dumps({**document, "rack": "r1"}).encode()).address == "a:1"


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1))
def test_record_name_decodes_from_its_node_name(name: str) -> None:
    node = encode_name(name)
    assert decode_name(node) == name
    assert "/" not in node and node not in (".", "..") and node.isascii() and node.isprintable()


@given(st.integers(0, 9_999_999_999), st.sampled_from(LedgerManager))
def test_ledger_id_decodes_from_its_path(ledger_id: int, manager: LedgerManager) -> None:
    layout = Layout("/root", manager)
    *above, leaf = layout.ledger(ledger_id).removeprefix(f"{layout.ledgers}/").split("/")
    assert ledger_ids([leaf, "LAYOUT", "idgen", "L"], "".join(above)) == [ledger_id]

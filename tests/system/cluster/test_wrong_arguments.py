"""Wrong arguments on real processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookspark import BookKeeper, DigestType, errors


@pytest.fixture
def bookkeeper(cluster):
    """A client whose ledger id counter a test may read."""
    return cluster.bookkeeper()


@pytest.mark.parametrize("digest_type", ["CRC32C", "hmac", "Hmac_sha1", "DUMMY"])
def test_digest_type_can_be_given_as_text(bookkeeper, digest_type):
    """Text was taken unchecked: the appends were acknowledged, and no read accepted their entries."""
    with bookkeeper.create_ledger(digest_type=digest_type, password=b"pw") as ledger:
        ledger.append(b"precious")
    assert ledger.metadata.digest_type is DigestType[digest_type.upper()]
    assert [one.payload for one in bookkeeper.open_ledger(ledger.ledger_id, b"pw").read()] == [b"precious"]


def test_wrong_ledger_arguments_are_refused_and_write_nothing(bookkeeper):
    ledgers, last = bookkeeper.list_ledgers(), bookkeeper.metadata.last_ledger_id()
    wrong: list[tuple[str, Callable[[], object]]] = [
        ("digest_type", lambda: bookkeeper.create_ledger(digest_type="md5")),
        ("custom_metadata", lambda: bookkeeper.create_ledger(custom_metadata={"team": "billing"})),
        ("custom_metadata", lambda: bookkeeper.create_ledger(custom_metadata={7: b"x"})),
        ("custom_metadata", lambda: bookkeeper.create_ledger(custom_metadata={"\ud800": b"x"})),
        ("password", lambda: bookkeeper.create_ledger(password="secret")),
        ("ensemble_size", lambda: bookkeeper.create_ledger("3")),
        ("ensemble_size", lambda: bookkeeper.create_ledger(3.0)),
        ("ensemble_size", lambda: bookkeeper.create_ledger(10**9)),
        ("write_quorum", lambda: bookkeeper.create_ledger(3, 4, 2)),
        ("ack_quorum", lambda: bookkeeper.create_ledger(3, 2, 3)),
        ("ack_quorum", lambda: bookkeeper.create_ledger(3, 3, 0)),
        ("ack_quorum", lambda: bookkeeper.create_ledger(3, 3, True)),
        ("ledger_id", lambda: bookkeeper.open_ledger(-1)),
        ("ledger_id", lambda: bookkeeper.delete_ledger(10**10)),
        ("bookie_id", lambda: bookkeeper.bookie_status("../cookies")),
    ]
    for name, call in wrong:
        with pytest.raises(errors.InvalidArgumentError, match=name) as told:
            call()
        assert told.value.argument == name
    assert bookkeeper.list_ledgers() == ledgers and bookkeeper.metadata.last_ledger_id() == last


def test_wrong_payloads_and_positions_are_refused_and_append_nothing(bookkeeper):
    ledger = bookkeeper.create_ledger()
    for payload in ("text", None, 5, [b"x"]):
        for append in (ledger.append, ledger.append_async):
            with pytest.raises(errors.InvalidArgumentError, match="payload of type"):
                append(payload)
    for payloads in ("text", b"abc", None, ["a"], [b"a", 5], (b"%d" % i for i in range(3)), {b"a"}):
        for append in (ledger.append_batch, ledger.append_batch_async):
            with pytest.raises(errors.InvalidArgumentError, match="payloads of type"):
                append(payloads)
    for timeout in (-1, float("nan"), float("inf"), "5"):
        with pytest.raises(errors.InvalidArgumentError, match="timeout"):
            ledger.close(timeout=timeout)
    assert ledger.append(bytearray(b"bytes")) == 0 and ledger.append_batch((memoryview(b"a"), b"b")) == range(1, 3)
    ledger.close()
    reader = bookkeeper.open_ledger(ledger.ledger_id)
    assert [one.payload for one in reader.read()] == [b"bytes", b"a", b"b"]
    for first in (-1, "0", 0.0, True):
        with pytest.raises(errors.InvalidArgumentError, match="first"):
            reader.read(first)


@pytest.mark.parametrize(
    "zookeeper", ["", "http://h:1", "h:0", "h:99999", "h:1/zookeeper", "h:1,,h:2", "h\0:1", 5, None]
)
def test_malformed_zookeeper_address_is_refused_at_once(zookeeper):
    with pytest.raises(errors.InvalidArgumentError, match="zookeeper"):
        BookKeeper(zookeeper)

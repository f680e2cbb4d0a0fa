"""The ``repr`` of objects with a ledger's master key, used in log lines and errors, does not show the key."""

from __future__ import annotations

import dataclasses

import pytest

from bookspark.protocol.bookie.bookie_ledger import BookieLedger, MasterKeyNoted
from bookspark.protocol.ledger.ledger_metadata import Fragment, LedgerMetadata
from bookspark.protocol.logs.log_options import LogOptions
from bookspark.protocol.logs.log_record import LogRecord
from bookspark.store.bookie.disk.control_state import LedgersNoted
from bookspark.store.bookie.space.rewriting import LedgerFacts
from bookspark.store.wire.digests import master_key
from bookspark.store.wire.header import Header, Kind

KEY = master_key(b"password")


@pytest.mark.parametrize(
    "holder",
    [
        Header(Kind.ADD, 1, 7, master_key=KEY),
        LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("b1",)),), master_key=KEY, password=KEY),
        BookieLedger(7, KEY),
        MasterKeyNoted(7, KEY),
        LedgersNoted(b"......" + KEY),
        LedgerFacts(1, 1, KEY),
        LogRecord("orders", LogOptions(), KEY),
    ],
    ids=lambda holder: type(holder).__name__,
)
def test_repr_of_a_master_key_holder_does_not_show_the_key(holder):
    told = f"{holder!r} {holder} {holder!s}"
    for form in (repr(KEY)[2:-1], KEY.hex(), str(list(KEY))):
        assert form not in told
    if dataclasses.is_dataclass(holder):
        assert "master_key" not in told

"""The messages of BookKeeper's wire protocol, version 3, as tables of field numbers.

Source: BookKeeper's ``BookkeeperProtocol.proto``; enumerations are numbers here.
"""

from __future__ import annotations

from enum import IntEnum, IntFlag

from bookspark.support.protobuf_messages import Schema


class Operation(IntEnum):
    """Operation of a request of version 3."""

    READ_ENTRY = 1
    ADD_ENTRY = 2
    AUTH = 5
    WRITE_LAC = 6
    READ_LAC = 7
    GET_BOOKIE_INFO = 8
    START_TLS = 9
    FORCE_LEDGER = 10
    GET_LIST_OF_ENTRIES = 11
    BATCH_READ_ENTRY = 12


class ReadFlag(IntEnum):
    """Flag of a READ_ENTRY."""

    FENCE = 1
    ENTRY_PIGGYBACK = 2


class BookieInfo(IntFlag):
    """Requested figures of a GET_BOOKIE_INFO."""

    TOTAL_BYTES = 1
    FREE_BYTES = 2


RECOVERY_ADD = 1
"""Flag of a recoverer's ADD_ENTRY."""
DEFERRED_SYNC = 1
"""Write flag of an add acknowledged before its sync."""
VERSION_3 = 3

SCHEMA = Schema(
    "bookspark.bookkeeper.protocol",
    {
        "PacketHeader": (
            ("version", 1, "int32"),
            ("operation", 2, "int32"),
            ("txnId", 3, "uint64"),
            ("priority", 4, "uint32"),
        ),
        "Request": (
            ("header", 1, "PacketHeader"),
            ("read", 100, "ReadRequest"),
            ("add", 101, "AddRequest"),
            ("auth", 102, "AuthMessage"),
            ("writeLac", 103, "WriteLacRequest"),
            ("readLac", 104, "OfLedger"),
            ("bookieInfo", 105, "BookieInfoRequest"),
            ("startTls", 106, "Empty"),
            ("force", 107, "OfLedger"),
            ("entries", 108, "OfLedger"),
        ),
        "ReadRequest": (
            ("ledgerId", 1, "int64"),
            ("entryId", 2, "int64"),
            ("masterKey", 3, "bytes"),
            ("previousLac", 4, "int64"),
            ("timeOut", 5, "int64"),
            ("flag", 100, "int32"),
        ),
        "AddRequest": (
            ("ledgerId", 1, "int64"),
            ("entryId", 2, "int64"),
            ("masterKey", 3, "bytes"),
            ("body", 4, "bytes"),
            ("writeFlags", 5, "int32"),
            ("flag", 100, "int32"),
        ),
        "WriteLacRequest": (
            ("ledgerId", 1, "int64"),
            ("lac", 2, "int64"),
            ("masterKey", 3, "bytes"),
            ("body", 4, "bytes"),
        ),
        "BookieInfoRequest": (("requested", 1, "int64"),),
        "OfLedger": (("ledgerId", 1, "int64"),),
        "Empty": (),
        "AuthMessage": (("pluginName", 1, "string"), ("payload", 2, "bytes")),
        "Response": (
            ("header", 1, "PacketHeader"),
            ("status", 2, "int32"),
            ("read", 100, "ReadResponse"),
            ("add", 101, "EntryResponse"),
            ("auth", 102, "AuthMessage"),
            ("writeLac", 103, "LedgerResponse"),
            ("readLac", 104, "LacResponse"),
            ("bookieInfo", 105, "BookieInfoResponse"),
            ("startTls", 106, "Empty"),
            ("force", 107, "LedgerResponse"),
            ("entries", 108, "EntriesResponse"),
        ),
        "ReadResponse": (
            ("status", 1, "int32"),
            ("ledgerId", 2, "int64"),
            ("entryId", 3, "int64"),
            ("body", 4, "bytes"),
            ("maxLac", 5, "int64"),
            ("lacUpdateTimestamp", 6, "int64"),
        ),
        "EntryResponse": (("status", 1, "int32"), ("ledgerId", 2, "int64"), ("entryId", 3, "int64")),
        "LedgerResponse": (("status", 1, "int32"), ("ledgerId", 2, "int64")),
        "LacResponse": (
            ("status", 1, "int32"),
            ("ledgerId", 2, "int64"),
            ("lacBody", 3, "bytes"),
            ("lastEntryBody", 4, "bytes"),
        ),
        "BookieInfoResponse": (
            ("status", 1, "int32"),
            ("totalDiskCapacity", 2, "int64"),
            ("freeDiskSpace", 3, "int64"),
        ),
        "EntriesResponse": (("status", 1, "int32"), ("ledgerId", 2, "int64"), ("availability", 3, "bytes")),
    },
)

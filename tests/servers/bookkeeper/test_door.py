"""The BookKeeper port: BookKeeper's clients get the bookie's entries byte for byte, under the same decisions as our clients."""

from __future__ import annotations

import contextlib
import struct
import subprocess
import sys
import threading
import zlib
from pathlib import Path

import pytest
from crc32c import crc32c

from bookspark.errors import ConfigurationError, MetadataStoreError, NoSuchLedgerError
from bookspark.protocol.bookie.bookie_ledger import LimboNoted
from bookspark.protocol.ledger.bookkeeper_keys import kept_key
from bookspark.protocol.ledger.ledger_metadata import DigestType, Fragment, LedgerMetadata
from bookspark.servers.bookkeeper.entries import body_of, entry_of
from bookspark.servers.bookkeeper.messages import Operation
from bookspark.servers.daemon.bookie_process import fence_check, key_check
from bookspark.store.bookie.holdings.reads import Fetched, Stop
from bookspark.store.bookie.serving import porch, served_bookie
from bookspark.store.bookie.storage import Storage
from bookspark.store.metadata.memory.memory_store import MemoryStore
from bookspark.store.wire.digests import digester, master_key
from bookspark.store.wire.header import Status, WireError
from tests.awaiting import await_that
from tests.servers.bookkeeper.kit import KEY, PASSWORD, add_2, body, framed, open_door, read_2, request
from tests.store.bookie.kit import SECONDS_MAX, Client, config

EOK, ENOLEDGER, ENOENTRY, EBADREQ, EIO, EUA, EFENCED, UNKNOWN = 0, 402, 403, 404, 501, 502, 504, 507
BOOKKEEPERS = [kind for kind in DigestType if kind.bookkeepers]


def add(txn, ledger_id, entry_id, payload=b"payload", key=KEY, **options):
    made = options.pop("body", None) or body(ledger_id, entry_id, payload, **options.pop("made", {}))
    return request(
        Operation.ADD_ENTRY, txn, "add", ledgerId=ledger_id, entryId=entry_id, masterKey=key, body=made, **options
    )


def read(txn, ledger_id, entry_id, **options):
    return request(Operation.READ_ENTRY, txn, "read", ledgerId=ledger_id, entryId=entry_id, **options)


@pytest.mark.parametrize("digest_type", BOOKKEEPERS)
def test_body_decodes_to_an_entry_and_encodes_back_to_the_same_bytes(digest_type):
    made = body(7, 3, b"some payload", 2, digest_type=digest_type)
    entry = entry_of(made, 7, 3, digest_type)
    assert entry[:5] == (7, 3, 2, 48, b"some payload")
    assert entry.digest == digester(digest_type, PASSWORD)(*entry[:5])
    assert body_of(entry) == made


@pytest.mark.parametrize("digest_type", BOOKKEEPERS)
def test_body_of_another_entry_is_refused(digest_type):
    made = body(7, 3, b"payload", 2, digest_type=digest_type)
    for bad, ids in ((made, (8, 3)), (made, (7, 4)), (made[:31], (7, 3)), (body(7, 3, b"x", 3), (7, 3))):
        with pytest.raises(WireError):
            entry_of(bad, *ids, digest_type)
    if digest_type in (DigestType.BOOKKEEPER_CRC32, DigestType.BOOKKEEPER_CRC32C):
        with pytest.raises(WireError, match="digest"):
            entry_of(made[:-1] + b"X", 7, 3, digest_type)


def test_a_copy_by_bookkeepers_replication_is_accepted_with_the_ledgers_latest_lac(tmp_path):
    """BookKeeper's ``BookieRecoveryTest`` showed that the copy was refused: it carries the last-add-confirmed (LAC) of the whole
    ledger, beyond its own entry id."""
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        copies = [body(7, i, b"payload", 9) for i in range(3)]
        caller.send(*(add(i, 7, i, body=one, flag=1) for i, one in enumerate(copies)))
        assert [caller.answer().status for _ in copies] == [EOK] * 3
        caller.send(read(4, 7, 1), add(5, 7, 3, made={"confirmed": 3}))
        found, refused = caller.answer(), caller.answer()
        if found.header.txnId == 5:
            found, refused = refused, found
        assert (found.read.body, found.read.maxLac) == (copies[1], 9)
        # A writer can't have confirmed entries that it has not sent.
        assert refused.status == EUA


@pytest.mark.parametrize("stranger_at", ["this port", "our own port"])
def test_two_keys_meet_at_the_port_and_the_metadata_decides(tmp_path, stranger_at):
    """A stranger's entry before the owner's first one; and after it."""
    store, strangers_key = MemoryStore(), b"s" * 20
    owners = kept_key(KEY)
    store.create_ledger(LedgerMetadata(7, 1, 1, 1, (Fragment(0, ("bookie-test",)),), master_key=owners))
    checks = {"check_key": key_check(store), "check_fence": fence_check(store, "bookie-test")}
    with open_door(config(tmp_path), checks=checks) as (_, call, address):
        owner, stranger = call(), call()
        if stranger_at == "this port":
            stranger.send(add(1, 7, 5, b"by a stranger", key=strangers_key))
            assert stranger.answer().status == EOK
        else:
            with ours(address) as client:
                assert client.add(7, 5, master_key=b"s" * 16).status == Status.OK
        made = body(7, 0, b"the owner's")
        owner.send(add(1, 7, 0, body=made))
        assert owner.answer().status == EOK
        stranger.send(add(2, 7, 1, b"by a stranger", key=strangers_key))
        assert stranger.answer().status == EUA
        owner.send(read(2, 7, 0), read(3, 7, 5))
        found = {answer.header.txnId: answer for answer in (owner.answer(), owner.answer())}
        assert found[2].read.body == made and found[3].status == ENOENTRY


def test_master_keys_equal_bookkeepers():
    # SHA-1("ledger" ‖ "secret"), computed by another program.
    assert KEY.hex() == subprocess.run(
        ["sha1sum"], input=b"ledgersecret", capture_output=True, check=True
    ).stdout[:40].decode()  # fmt: skip
    assert master_key(PASSWORD, DigestType.BOOKKEEPER_HMAC) == kept_key(KEY) != kept_key(bytes(20))


@pytest.mark.parametrize("digest_type", BOOKKEEPERS)
@contextlib.contextmanager
def ours(address):
    """A client of our own protocol."""
    client = Client(address)
    try:
        yield client
    finally:
        client.close()


@pytest.mark.parametrize("digest_type", BOOKKEEPERS)
def test_entries_of_bookkeepers_client_are_read_back_by_both_clients(tmp_path, digest_type):
    two, three = (
        [body(ledger_id, i, bytes([i]) * (10 + i), i - 1, digest_type=digest_type) for i in range(5)]
        for ledger_id in (2, 3)
    )
    with open_door(config(tmp_path), lambda ledger_id: digest_type) as (_, call, address):
        caller = call()
        caller.send(*(add(i, 3, i, body=one) for i, one in enumerate(three)))
        assert caller.statuses(5) == dict.fromkeys(range(5), EOK)
        for i, one in enumerate(three):
            caller.send(read(i, 3, i))
            assert caller.answer().read.body == one
        caller.send(*(add_2(KEY, one) for one in two))
        assert sorted(caller.answer_2()[:3] for _ in two) == [(0, 2, i) for i in range(5)]
        for i, one in enumerate(two):
            caller.send(read_2(2, i))
            assert caller.answer_2()[3] == one
        with ours(address) as client:
            for ledger_id in (2, 3):
                found, status = client.read(ledger_id, 0, 4)
                assert status.status == Status.OK
                assert [entry.payload for entry in found] == [bytes([i]) * (10 + i) for i in range(5)]
                assert all(entry.digest == digester(digest_type, PASSWORD)(*entry[:5]) for entry in found)


def test_adds_that_arrive_together_share_entry_batches(tmp_path):
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        caller.send(b"".join(add(i, 7, i) for i in range(1, 20)))
        assert [caller.answer().status for _ in range(19)] == [EOK] * 19
        pieces = server.storage.holdings.plan_read(7, 0, 19, 0, sparse=False).pieces
        assert pieces[0].last == 0 and len(pieces) < 20


def test_conflicting_add_among_many_is_refused_alone(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(add(0, 7, 2, b"kept"))
        assert caller.answer().status == EOK
        caller.send(b"".join(add(i, 7, i, b"like") for i in range(5)))
        by_entry = {(a := caller.answer()).add.entryId: a.status for _ in range(5)}
        assert by_entry == {0: EOK, 1: EOK, 2: EIO, 3: EOK, 4: EOK}
        caller.send(read(1, 7, 2))
        assert caller.answer().read.body.endswith(b"kept")


def test_repeated_add_is_answered_ok(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        for confirmed in (-1, 1):
            caller.send(add(0, 7, 2, made={"confirmed": confirmed}))
            assert caller.answer().status == EOK


def test_a_fenced_ledger_refuses_its_writer_and_not_its_recoverer(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        caller.send(read(1, 7, -1, flag=1, masterKey=KEY))
        fenced = caller.answer()
        assert (fenced.status, fenced.read.body) == (EOK, body(7, 0, b"payload"))
        caller.send(add(2, 7, 1), add(3, 7, 1, flag=1))
        assert caller.statuses(2) == {2: EFENCED, 3: EOK}
        caller.send(add_2(KEY, body(7, 2, b"payload")))
        assert caller.answer_2()[0] == 104
        caller.send(add_2(KEY, body(7, 2, b"payload"), flags=2))
        assert caller.answer_2()[0] == 0


def test_a_fence_without_the_right_key_does_nothing(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        caller.send(read(1, 7, -1, flag=1, masterKey=bytes(20)), read(2, 7, -1, flag=1), add(3, 7, 1))
        assert caller.statuses(3) == {1: EUA, 2: EBADREQ, 3: EOK}
        caller.send(add(4, 7, 2, key=bytes(20)), add(5, 7, 2, key=b"short"))
        assert caller.statuses(2) == {4: EUA, 5: EUA}


def test_absent_entries_and_ledgers_are_answered_with_bookkeepers_codes(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        caller.send(read(1, 7, 5), read(2, 8, 5), read(3, 8, -1))
        assert caller.statuses(3) == {1: ENOENTRY, 2: ENOLEDGER, 3: ENOLEDGER}
        caller.send(read_2(7, 5), read_2(8, 5))
        assert [caller.answer_2()[0] for _ in range(2)] == [2, 1]
        # A fenced ledger without entries.
        caller.send(read(4, 9, -1, flag=1, masterKey=KEY))
        assert caller.answer().status == ENOENTRY


def test_bookie_in_limbo_never_answers_that_an_entry_is_absent(tmp_path):
    """If an entry lost in a crash were answered as absent, a recovery would close the ledger before it."""
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        server.storage.holdings.control.of(7).replay(LimboNoted(7, 1))
        lac = request(Operation.READ_LAC, 4, "readLac", ledgerId=7)
        caller.send(read(1, 7, 1), read(2, 7, -1), read(3, 7, -1, flag=1, masterKey=KEY), lac)
        assert caller.statuses(4) == dict.fromkeys((1, 2, 3, 4), UNKNOWN)
        caller.send(read_2(7, 1), read_2(7, -1))
        assert [caller.answer_2()[0] for _ in range(2)] == [107, 107]


def test_lac_advances_by_entries_and_by_explicit_lac(tmp_path):
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        signed = struct.pack(">qq", 7, 1) + b"sum."
        write = request(Operation.WRITE_LAC, 2, "writeLac", ledgerId=7, lac=1, masterKey=KEY, body=signed)
        forged = request(Operation.WRITE_LAC, 3, "writeLac", ledgerId=7, lac=9, masterKey=KEY, body=signed)
        of_another = request(Operation.WRITE_LAC, 4, "writeLac", ledgerId=8, lac=1, masterKey=KEY, body=signed)
        caller.send(add(0, 7, 0), add(1, 7, 1, made={"confirmed": 0}))
        assert [caller.answer().status for _ in range(2)] == [EOK, EOK]
        asked = request(Operation.READ_LAC, 4, "readLac", ledgerId=7)
        caller.send(asked)
        found = caller.answer().readLac
        assert (found.HasField("lacBody"), found.lastEntryBody) == (False, body(7, 1, b"payload", 0))
        caller.send(write, forged, of_another)
        assert caller.statuses(3) == {2: EOK, 3: EBADREQ, 4: EBADREQ}
        caller.send(asked, read(5, 7, 0))
        assert caller.answer().readLac.lacBody == signed
        assert caller.answer().read.maxLac == 1 == server.storage.holdings.ledger(7).last_add_confirmed


def test_explicit_lac_with_a_later_lac_in_its_body_is_that_of_the_body(tmp_path):
    """BookKeeper's client fills in the field, and then the body: an entry may be acknowledged in between."""
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        for lac, later in ((-1, 2), (3, 5)):
            signed = struct.pack(">qq", 7, later) + b"sum."
            caller.send(request(Operation.WRITE_LAC, 2, "writeLac", ledgerId=7, lac=lac, masterKey=KEY, body=signed))
            assert caller.answer().status == EOK
            caller.send(request(Operation.READ_LAC, 4, "readLac", ledgerId=7))
            assert caller.answer().readLac.lacBody == signed
            assert server.storage.holdings.ledger(7).last_add_confirmed == later


def test_an_older_explicit_lac_does_not_replace_a_newer_one(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        for lac in (300, 5):
            signed = struct.pack(">qq", 7, lac) + b"sum."
            caller.send(request(Operation.WRITE_LAC, 2, "writeLac", ledgerId=7, lac=lac, masterKey=KEY, body=signed))
            assert caller.answer().status == EOK
        caller.send(request(Operation.READ_LAC, 4, "readLac", ledgerId=7))
        assert caller.answer().readLac.lacBody == struct.pack(">qq", 7, 300) + b"sum."


def test_a_long_poll_waits_for_the_lac_and_returns_the_entry(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller, poll = call(), call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        poll.send(read(1, 7, -1, flag=2, previousLac=-1, timeOut=60_000), read(2, 7, 0))
        # A later request on the same connection is answered first.
        assert poll.answer().header.txnId == 2
        caller.send(add(1, 7, 1, made={"confirmed": 0}))
        told = poll.answer()
        assert (told.header.txnId, told.status, told.read.entryId, told.read.maxLac) == (1, EOK, 0, 0)
        assert told.read.body == body(7, 0, b"payload")
        poll.send(read(3, 7, -1, flag=2, previousLac=0, timeOut=20))
        late = poll.answer()
        assert (late.status, late.read.maxLac, late.read.HasField("body")) == (EOK, 0, False)
        poll.send(read(4, 7, 1, flag=2, previousLac=0, timeOut=20))
        assert poll.answer().status == EBADREQ


def test_a_batched_read_keeps_to_its_count_and_size(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        bodies = [body(7, i, bytes(100)) for i in range(10)]
        caller.send(*(add_2(KEY, one) for one in bodies))
        assert {caller.answer_2()[0] for _ in bodies} == {0}

        def ask(first, count, size):
            caller.send(framed(struct.pack(">BBHqqqiq", 2, 7, 0, 7, first, 11, count, size)))
            code, _, _, rest = caller.answer_2()
            found, at = [], 8
            while at < len(rest):
                (length,) = struct.unpack_from(">I", rest, at)
                found.append(rest[at + 4 : at + 4 + length])
                at += 4 + length
            return code, found

        assert ask(0, 4, 1 << 20) == (0, bodies[:4])
        assert ask(0, 0, 1 << 20) == (0, bodies)
        assert ask(8, 100, 1 << 20) == (0, bodies[8:])
        # The size limits the whole answer.
        assert ask(0, 10, 36 + 3 * (len(bodies[0]) + 4)) == (0, bodies[:3])
        assert ask(0, 10, 3 * (len(bodies[0]) + 4)) == (0, bodies[:2])
        assert ask(0, 10, 1) == (0, bodies[:1])
        assert ask(20, 10, 1 << 20) == (2, [])


def test_batched_read_of_small_entries_returns_as_many_as_fit(tmp_path):
    """BookKeeper's ``BookKeeperTest.testBatchReadWithV2Protocol`` showed that the size limit was compared with the size of the
    entries' batches on disk, which is ten times as much if each entry was added alone."""
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        bodies = [body(7, i, b"foobar") for i in range(20)]
        for one in bodies:
            caller.send(add_2(KEY, one))
            assert caller.answer_2()[0] == 0
        for count, wanted in ((0, 5), (20, 5), (4, 4)):
            size = 36 + 5 * (len(bodies[0]) + 4)
            caller.send(framed(struct.pack(">BBHqqqiq", 2, 7, 0, 7, 0, 11, count, size)))
            code, _, _, rest = caller.answer_2()
            assert (code, rest[8:]) == (0, b"".join(struct.pack(">I", len(one)) + one for one in bodies[:wanted]))


@pytest.mark.parametrize("digest_type", BOOKKEEPERS)
def test_explicit_lac_survives_a_restart_if_its_digest_needs_no_password(tmp_path, digest_type):
    """BookKeeper's ``ExplicitLacTest.testExplicitLACIsPersisted`` showed that its readers did not get the LAC back."""
    asked = request(Operation.READ_LAC, 4, "readLac", ledgerId=7)
    named = struct.pack(">qq", 7, 1)
    sums = {
        DigestType.BOOKKEEPER_CRC32C: struct.pack(">I", crc32c(named)),
        DigestType.BOOKKEEPER_CRC32: struct.pack(">Q", zlib.crc32(named)),
        DigestType.BOOKKEEPER_DUMMY: b"",
    }
    with open_door(config(tmp_path), lambda ledger_id: digest_type) as (_, call, _):
        caller = call()
        made = {"digest_type": digest_type}
        caller.send(add(0, 7, 0, made=made), add(1, 7, 1, made=made | {"confirmed": 0}))
        assert [caller.answer().status for _ in range(2)] == [EOK, EOK]
        caller.send(request(Operation.WRITE_LAC, 2, "writeLac", ledgerId=7, lac=1, masterKey=KEY, body=named + b"sum."))
        assert caller.answer().status == EOK
    with open_door(config(tmp_path), lambda ledger_id: digest_type) as (_, call, _):
        caller = call()
        for _ in range(2):
            caller.send(asked)
            told = caller.answer()
            assert (told.status, told.readLac.HasField("lacBody")) == (EOK, digest_type in sums)
            assert told.readLac.lacBody == (named + sums[digest_type] if digest_type in sums else b"")


def test_deferred_adds_are_durable_after_a_force(tmp_path):
    options = config(tmp_path)
    with open_door(options) as (_, call, _):
        caller = call()
        caller.send(*(add(i, 7, i, writeFlags=1) for i in range(5)))
        assert [caller.answer().status for _ in range(5)] == [EOK] * 5
        caller.send(request(Operation.FORCE_LEDGER, 9, "force", ledgerId=7))
        assert caller.answer().status == EOK
    storage = Storage(options).open()
    assert storage.holdings.last_entry_id(7) == 4
    storage.close()


def test_auth_bookie_info_start_tls_and_invalid_ids_are_answered(tmp_path):
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(request(Operation.AUTH, 1, "auth", pluginName="x", payload=b"y"))
        assert caller.answer().auth.pluginName == "AuthDisabledPlugin"
        caller.send(request(Operation.GET_BOOKIE_INFO, 2, "bookieInfo", requested=3))
        info = caller.answer().bookieInfo
        assert info.totalDiskCapacity > info.freeDiskSpace > 0
        caller.send(request(Operation.START_TLS, 3, "startTls"))
        assert caller.answer().status == EBADREQ, "this bookie has no certificate"
        caller.send(read(5, -5, 0), read(6, 1 << 40, 0), read(7, 7, -9))
        assert [caller.answer().status for _ in range(3)] == [EBADREQ] * 3


def test_add_with_an_unsupported_ledger_id_is_refused_as_unauthorized(tmp_path):
    """BookKeeper's ``BookieWriteLedgerTest`` creates ledgers with ids that we don't support. Its client got EBADREQ and changed
    the ensemble a hundred times a second, forever; with EUA it gives up."""
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(add(1, (1 << 31) - 1, 0))
        assert caller.answer().status == EUA


def test_refused_requests_of_a_client_do_not_fill_the_log(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(served_bookie, "TOLD_SECONDS", 3600.0)
    with open_door(config(tmp_path)) as (_, call, _):
        caller = call()
        caller.send(*(add(k, (1 << 31) - 1, k) for k in range(100)))
        assert caller.statuses(100) == dict.fromkeys(range(100), EUA)
    assert len([record for record in caplog.records if "refused" in record.getMessage()]) == 1


def test_adds_wait_for_the_ledgers_digest_type_in_order(tmp_path):
    asked, go_on = threading.Event(), threading.Event()

    def slow(ledger_id):
        asked.set()
        assert go_on.wait(SECONDS_MAX)
        return DigestType.BOOKKEEPER_CRC32C

    with open_door(config(tmp_path), slow) as (server, call, _):
        caller = call()
        caller.send(*(add(i, 7, i) for i in range(10)), read(10, 8, 0))
        assert asked.wait(SECONDS_MAX)
        assert caller.answer().header.txnId == 10
        go_on.set()
        assert caller.statuses(10) == dict.fromkeys(range(10), EOK)
        assert server.storage.holdings.last_entry_id(7) == 9


@pytest.mark.parametrize(
    ("error", "status"), [(NoSuchLedgerError("gone"), ENOLEDGER), (MetadataStoreError("away"), EIO), (OSError(), EIO)]
)
def test_unknown_digest_type_refuses_the_add_and_is_read_again(tmp_path, error, status):
    calls = []

    def failing(ledger_id):
        calls.append(ledger_id)
        if len(calls) == 1:
            raise error
        return DigestType.BOOKKEEPER_CRC32C

    with open_door(config(tmp_path), failing) as (_, call, _):
        caller = call()
        caller.send(add(1, 7, 0))
        assert caller.answer().status == status
        caller.send(add(2, 7, 0))
        assert caller.answer().status == EOK
        assert calls == [7, 7]


def test_ledger_with_a_digest_of_ours_refuses_adds_of_bookkeepers_clients(tmp_path):
    with open_door(config(tmp_path), lambda ledger_id: DigestType.DUMMY) as (_, call, _):
        caller = call()
        caller.send(add(1, 7, 0, made={"digest_type": DigestType.BOOKKEEPER_DUMMY}))
        assert caller.answer().status == EUA


def test_entries_of_our_client_are_read_through_the_bookkeeper_port(tmp_path):
    with open_door(config(tmp_path)) as (_, call, address):
        with ours(address) as client:
            client.add(7, 0, 4)
            found, _ = client.read(7, 0, 4)
        caller = call()
        caller.send(*(read(i, 7, i) for i in range(5)))
        assert [caller.answer().read.body for _ in range(5)] == [body_of(entry) for entry in found]


def test_damaged_entry_is_answered_as_an_error_not_as_absent(tmp_path):
    options = config(tmp_path)
    with open_door(options) as (_, call, _):
        caller = call()
        caller.send(add(0, 7, 0, b"p" * 5000))
        assert caller.answer().status == EOK
    [path] = Path(options.directories[0]).glob("logs/*.arrow*")
    damaged = bytearray(path.read_bytes())
    at = damaged.index(b"p" * 100)
    damaged[at] ^= 1
    with open_door(options) as (server, call, _):
        path.write_bytes(damaged)
        server.storage.files.clear()
        caller = call()
        for _ in range(2):
            caller.send(read(1, 7, 0))
            assert caller.answer().status == EIO
            caller.send(read_2(7, 0))
            assert caller.answer_2()[0] == 101


def test_unread_answers_of_a_client_take_bounded_memory(tmp_path):
    """A request of 24 bytes asks for 256 KiB: without the bound, thousands of requests would fill the memory."""
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(add_2(KEY, body(7, 0, bytes(256 << 10))))
        assert caller.answer_2()[0] == 0
        for _ in range(2):
            # From now on the log is open and the entry in the page cache, so the event loop reads it without a disk thread.
            caller.send(read_2(7, 0))
            assert caller.answer_2()[0] == 0
        [connection] = server._admission.connections
        most = 0
        sent = connection.send

        def counted(*pieces):
            nonlocal most
            sent(*pieces)
            most = max(most, sum(map(len, connection._answers)) + connection.unsent_bytes)

        connection.send = counted
        caller.send(*(read_2(7, 0) for _ in range(100)))
        # The other requests are held until the client reads the first answers.
        await_that(lambda: connection._writing_paused)
        assert connection._receiver.unfinished > 60 * len(read_2(7, 0)) and most < 4 << 20
        for _ in range(100):
            assert caller.answer_2()[0] == 0
        assert most < 4 << 20


def test_first_adds_of_many_ledgers_are_memory_of_their_peer_and_delay_another_peers_by_few_looks(tmp_path):
    """They had a queue of 32 MiB beside the budget, in the order of arrival: an owner's first add stood 40 s behind a stranger's
    31,800, whose connection may have ended."""
    many, looked, go_on = 3000, [], threading.Semaphore(0)

    def slow(ledger_id):
        assert go_on.acquire(timeout=SECONDS_MAX)
        looked.append(ledger_id)
        if ledger_id >= many:
            raise NoSuchLedgerError(f"ledger {ledger_id}")
        return DigestType.BOOKKEEPER_CRC32C

    with open_door(config(tmp_path), slow) as (server, call, _):
        stranger, owner, memory = call(), call(), server._admission.memory
        stranger.send(*(add_2(KEY, body(many + number, 0, b"")) for number in range(many)))
        await_that(lambda: memory.bound > many << 10)
        owner.send(add(1, 7, 0), add(2, 7, 1))
        # The stranger's looks under way, and one in his turn.
        go_on.release(8)
        assert owner.statuses(2) == {1: EOK, 2: EOK}
        assert stranger.answer_2()[0] == 1  # no such ledger
        stranger.socket.close()
        await_that(lambda: memory.bound == 0)
        go_on.release(many)
        owner.send(add(3, 8, 0))
        assert owner.answer().status == EOK and len(looked) < 20


@pytest.mark.parametrize("failing", [Fetched([], Stop.FAILED), OSError("no memory")])
def test_failed_read_is_answered_as_an_error_not_as_absent(tmp_path, failing):
    def fetch(*_, **__):
        if isinstance(failing, OSError):
            raise failing
        return failing

    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        server.storage.files.fetch = fetch
        caller.send(read(1, 7, 0))
        assert caller.answer().status == EIO
        caller.send(read_2(7, -1))
        assert caller.answer_2()[0] == 101


# -- connections without a valid request


def test_connection_with_another_protocol_is_closed(tmp_path):
    with open_door(config(tmp_path)) as (server, call, _):
        for said in (b"GET / HTTP/1.1\r\n\r\n", b"BSPK" + bytes(200), b"\0\0\0\0", b"\xff" * 20):
            caller = call()
            caller.send(said)
            with pytest.raises(ConnectionError):
                caller.frame()
        await_that(lambda: not server._admission.strangers and not server._admission.connections)


def test_connection_without_a_first_request_is_closed_after_a_time_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(porch, "STRANGER_SECONDS", 0.2)
    with open_door(config(tmp_path)) as (_, call, _):
        for said in (b"", add(0, 7, 0)[:9]):
            caller = call()
            caller.send(said)
            with pytest.raises(ConnectionError):
                caller.frame()


def test_invalid_bytes_after_a_valid_request_close_the_connection(tmp_path):
    with open_door(config(tmp_path)) as (server, call, _):
        caller = call()
        caller.send(add(0, 7, 0))
        assert caller.answer().status == EOK
        caller.send(framed(b"\2\x63\0\0nonsense"))
        with pytest.raises(ConnectionError):
            caller.frame()
        await_that(lambda: not server._admission.connections)


# -- the port


def test_bookkeeper_port_with_a_shared_secret_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match="bookkeeper_port"):
        config(tmp_path, bookkeeper_port=3181, shared_secret_file="x")


def test_bookie_without_the_bookkeeper_port_imports_none_of_its_modules():
    script = (
        "import sys, bookspark.servers.daemon.bookie_process; "
        "print([name for name in sys.modules if name.startswith(('bookspark.servers.bookkeeper', 'google.protobuf'))])"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=SECONDS_MAX
    )
    assert found.stdout.strip() == "[]"

"""Ledgers of a BookKeeper cluster are copied whole or not at all. The source is one of our clusters with the BookKeeper
door; tests/system/acceptance has a real BookKeeper."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from bookspark import BookKeeper, DigestType, errors
from bookspark.local import LocalCluster
from bookspark.operations.moving import Copied, EntryReader, Source, copy_ledger

BOOKKEEPERS = [kind for kind in DigestType if kind.bookkeepers]
PASSWORD = b"secret"


def written(there: LocalCluster, payloads: list[bytes], close: bool = True, **options: Any) -> int:
    """Create a ledger with these entries in the source cluster."""
    options = {"digest_type": DigestType.BOOKKEEPER_CRC32C, "password": PASSWORD, **options}
    ledger = there.bookkeeper().create_ledger(**options)
    for start, end in pairwise([*range(0, len(payloads), 50), len(payloads)]):
        ledger.append_batch(payloads[start:end])
    if close:
        ledger.close()
    return ledger.ledger_id


def payloads_of(bookkeeper: BookKeeper, ledger_id: int) -> list[bytes]:
    with bookkeeper.open_ledger(ledger_id, PASSWORD) as ledger:
        return [entry.payload for entry in ledger.read()]


PAYLOADS = [bytes([i % 256]) * (i * 7 % 5000) for i in range(170)]


@pytest.mark.parametrize("digest_type", BOOKKEEPERS)
@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 1)])
def test_copied_ledger_equals_its_source_and_a_second_copy_finds_it(
    there: LocalCluster,
    here: LocalCluster,
    source: Source,
    reader: EntryReader,
    digest_type: DigestType,
    quorums: tuple[int, int, int],
) -> None:
    names = dict(zip(("ensemble_size", "write_quorum", "ack_quorum"), quorums, strict=True))
    ledger_id = written(there, PAYLOADS, digest_type=digest_type, custom_metadata={"owner": b"billing"}, **names)
    bookkeeper, size = here.bookkeeper(), sum(map(len, PAYLOADS))
    assert copy_ledger(source, reader, bookkeeper, ledger_id) == Copied(ledger_id, len(PAYLOADS), size, was_there=False)
    found = bookkeeper.get_ledger_metadata(ledger_id)
    assert (found.ensemble_size, found.write_quorum, found.ack_quorum) == quorums
    assert (found.digest_type, dict(found.custom_metadata)) == (digest_type, {"owner": b"billing"})
    assert payloads_of(bookkeeper, ledger_id) == PAYLOADS
    with pytest.raises(errors.UnauthorizedAccessError):
        bookkeeper.open_ledger(ledger_id, b"another")
    assert copy_ledger(source, reader, bookkeeper, ledger_id).was_there


def test_empty_ledger_is_copied(there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader) -> None:
    ledger_id = written(there, [])
    assert copy_ledger(source, reader, here.bookkeeper(), ledger_id) == Copied(ledger_id, 0, 0, was_there=False)
    assert here.bookkeeper().get_ledger_metadata(ledger_id).closed


def test_open_ledger_is_not_copied(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader
) -> None:
    ledger_id = written(there, [b"x"], close=False)
    with pytest.raises(errors.ReadError, match=f"shell readledger -ledgerid {ledger_id} -force-recovery"):
        copy_ledger(source, reader, here.bookkeeper(), ledger_id)
    with pytest.raises(errors.NoSuchLedgerError):
        here.bookkeeper().get_ledger_metadata(ledger_id)


def test_different_ledger_with_the_same_id_stays_unchanged(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader
) -> None:
    ledger_id, bookkeeper = written(there, [b"there"]), here.bookkeeper()
    with bookkeeper.create_ledger_adv(ledger_id, password=PASSWORD) as ledger:
        ledger.append_at(0, b"other")
    with pytest.raises(errors.LedgerExistsError, match="its entries are others"):
        copy_ledger(source, reader, bookkeeper, ledger_id)
    longer = written(there, [b"a", b"b"])
    with bookkeeper.create_ledger_adv(longer, password=PASSWORD) as ledger:
        ledger.append_at(0, b"a")
    with pytest.raises(errors.LedgerExistsError, match=f"bookspark ledger delete {longer}"):
        copy_ledger(source, reader, bookkeeper, longer)
    assert payloads_of(bookkeeper, ledger_id) == [b"other"] and payloads_of(bookkeeper, longer) == [b"a"]


def test_copy_succeeds_while_a_source_bookie_is_down(there: LocalCluster, here: LocalCluster, source: Source) -> None:
    ledger_id = written(there, PAYLOADS[:100], ensemble_size=3, write_quorum=2, ack_quorum=2)
    addresses = source.addresses()
    silent = there.bookies[0]
    silent.kill()
    try:
        with EntryReader(addresses) as reader:
            assert copy_ledger(source, reader, here.bookkeeper(), ledger_id).entries == 100
    finally:
        silent.start()


def spoiled(monkeypatch: pytest.MonkeyPatch, is_spoiled: Callable[[str, int], bool]) -> None:
    """Flip a bit of the payload that the source bookie returns, where `is_spoiled(bookie_id, entry_id)`."""
    ask = EntryReader._ask

    def spoiling(
        self: EntryReader, bookie_id: str, ledger_id: int, ids: list[int]
    ) -> Iterator[tuple[int, bytes | str]]:
        for entry_id, told in ask(self, bookie_id, ledger_id, ids):
            bad = isinstance(told, bytes) and is_spoiled(bookie_id, entry_id)
            yield entry_id, bytes((*told[:-1], told[-1] ^ 1)) if bad and isinstance(told, bytes) else told

    monkeypatch.setattr(EntryReader, "_ask", spoiling)


@pytest.mark.parametrize("digest_type", [kind for kind in BOOKKEEPERS if kind is not DigestType.BOOKKEEPER_DUMMY])
def test_entry_copy_with_a_wrong_digest_is_never_copied(
    there: LocalCluster,
    here: LocalCluster,
    source: Source,
    reader: EntryReader,
    monkeypatch: pytest.MonkeyPatch,
    digest_type: DigestType,
) -> None:
    payloads = [b"payload %d" % i for i in range(30)]
    one, all_copies = (written(there, payloads, digest_type=digest_type) for _ in range(2))
    bad = there.bookies[1].bookie_id
    spoiled(monkeypatch, lambda bookie_id, entry_id: bookie_id == bad)
    copy_ledger(source, reader, here.bookkeeper(), one)
    assert payloads_of(here.bookkeeper(), one) == payloads
    monkeypatch.undo()
    spoiled(monkeypatch, lambda bookie_id, entry_id: entry_id == 17)
    with pytest.raises(errors.ReadError, match=f"entry 17 of ledger {all_copies}.*digest"):
        copy_ledger(source, reader, here.bookkeeper(), all_copies)
    with pytest.raises(errors.NoSuchLedgerError):
        here.bookkeeper().get_ledger_metadata(all_copies)


def test_written_entries_are_read_back_and_compared_before_copy_succeeds(
    there: LocalCluster, here: LocalCluster, source: Source, reader: EntryReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    from bookspark.store.client.writing.ledger_handle import LedgerHandleAdv

    ledger_id, append = written(there, PAYLOADS[:20]), LedgerHandleAdv.append_at_async
    monkeypatch.setattr(
        LedgerHandleAdv,
        "append_at_async",
        lambda self, entry_id, payload: append(self, entry_id, b"other" if entry_id == 7 else payload),
    )
    with pytest.raises(errors.DataLossError, match=f"the copy of ledger {ledger_id}"):
        copy_ledger(source, reader, here.bookkeeper(), ledger_id)


def test_copy_writes_nothing_to_the_source_cluster(there: LocalCluster, here: LocalCluster) -> None:
    ledger_id = written(there, PAYLOADS[:20])
    servers, _, chroot = there.zookeeper.removeprefix("zk://").partition("/")
    client = KazooClient(servers)
    client.start()

    def nodes(path: str) -> dict[str, tuple[int, int]]:
        names, stat = client.get_children(path, include_data=True)
        found = {path: (stat.version, stat.cversion)}
        for name in names:
            found |= nodes(f"{path}/{name}")
        return found

    try:
        before = nodes(f"/{chroot}")
        with Source(f"{there.zookeeper}/ledgers") as source, EntryReader(source.addresses()) as reader:
            assert ledger_id in source.ledger_ids()
            copy_ledger(source, reader, here.bookkeeper(), ledger_id)
        assert nodes(f"/{chroot}") == before
    finally:
        client.stop()
        client.close()


def test_ledger_ids_of_both_bookkeeper_ledger_managers_are_listed_and_read(there: LocalCluster) -> None:
    ledger_id, long = written(there, [b"x"]), 12_345_678_901
    servers, _, chroot = there.zookeeper.removeprefix("zk://").partition("/")
    client = KazooClient(servers)
    client.start()
    try:
        digits = f"{ledger_id:010}"
        value, _ = client.get(f"/{chroot}/ledgers/{digits[:2]}/{digits[2:6]}/L{digits[6:]}")
        client.create(f"/{chroot}/ledgers/000/0000/0123/4567/L8901", value, makepath=True)
        with Source(f"{there.zookeeper}/ledgers") as source:
            assert {ledger_id, long} <= set(source.ledger_ids())
            assert source.ledger(long).ledger_id == long
            with pytest.raises(errors.NoSuchLedgerError, match=str(long + 1)):
                source.ledger(long + 1)
    finally:
        client.delete(f"/{chroot}/ledgers/000", recursive=True)
        client.stop()
        client.close()


@pytest.mark.parametrize("place", ["", "/nowhere"])
def test_path_without_a_hierarchical_bookkeeper_cluster_is_refused(
    here: LocalCluster, place: str, tmp_path: Path
) -> None:
    servers, _, _ = here.zookeeper.removeprefix("zk://").partition("/")
    with pytest.raises((errors.ConfigurationError, errors.NoSuchClusterError), match=r"/ledgers|LAYOUT"):
        Source(f"{servers}{place}")
    with pytest.raises(errors.NoSuchClusterError, match="hierarchical"):
        Source(f"{here.zookeeper}/ledgers")
